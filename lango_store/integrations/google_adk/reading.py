"""Sessions of ADK's as our tables have them: two statements for one of them, two for all of an app's."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from google.adk.events import Event

from lango_store.access import Access
from lango_store.columns import as_stored
from lango_store.dialect import AnyConnection, Moment, dialect_of
from lango_store.encoding import NO_CONTENT, content_fault, decode_role, decode_time
from lango_store.errors import DamagedMessage
from lango_store.integrations.google_adk import state
from lango_store.integrations.google_adk.events import events, moment
from lango_store.integrations.google_adk.lines import Line, timestamp_of
from lango_store.integrations.google_adk.state import Place
from lango_store.operations.binds import (
    LIVE,
    LIVE_SESSION,
    MESSAGE,
    OF_ITS_TURN,
    SESSION,
    SHARED_VALUE,
    TURN,
    VALUE,
    number,
    of_session,
    session_key,
    time,
)
from lango_store.operations.lists import end_of_prefix
from lango_store.operations.rows import seq_or_zero, stored_json, stored_time, whole_number
from lango_store.statement import Statement

_Kind = TypeVar("_Kind", list[Any], dict[str, Any])


class Found(NamedTuple):
    """A live session as it was at one moment."""

    state: dict[str, Any]
    events: list[Event]
    last_update_time: float
    revision: int
    last_event: str | None
    """The id of its last event, whether that was asked for or not."""


class Chosen(NamedTuple):
    """Which events are asked for: those since a time, of these the last ones."""

    since: float | None = None
    last: int | None = None

    def of(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Return the lines that are asked for."""
        if self.since is not None:
            lines = [line for line in lines if line.timestamp >= self.since]
        return lines if self.last is None else lines[max(len(lines) - self.last, 0) :]


ALL: Final = Chosen()


def find(access: Access, place: Place, chosen: Chosen = ALL) -> Found | None:
    """Read a live session in two statements; None if there is none."""
    with access.single_read() as connection:
        head = _head(connection, access.moment(connection), place)
        if head is None or not head.lines:
            return None if head is None else _found(head, [], chosen)
        lines = _lines(connection, head, chosen)
    if lines:
        return _found(head, lines, chosen)
    with access.snapshot() as connection:  # somebody has taken messages away in between, or the session
        head = _head(connection, access.moment(connection), place)
        return None if head is None else _found(head, _lines(connection, head, chosen), chosen)


# One session: its row and its values


class Head(NamedTuple):
    """A session's row, as far as ADK is concerned, with its values and those that it shares."""

    key: str
    incarnation: int
    created_at: datetime
    last_seq: int
    lines: int
    summary_turn: int | None
    summarized_upto: int
    revision: int
    state: dict[str, Any]

    @property
    def removed(self) -> int:
        """What every removal and compaction changes, and no append."""
        return self.last_seq - self.lines


_session_and_values = Statement(
    lambda _: (
        sa.select(
            SESSION.c.incarnation,
            as_stored(SESSION.c.created_at),
            SESSION.c.last_seq,
            SESSION.c.message_count + SESSION.c.record_count,
            SESSION.c.summary_turn,
            SESSION.c.summarized_upto,
            SESSION.c.revision,
            VALUE.c.session_key,
            VALUE.c.name,
            as_stored(VALUE.c.value),
        )
        .select_from(SESSION.outerjoin(VALUE, of_session(VALUE, SESSION.c.key)))
        .where(LIVE_SESSION)
    )
)
_shared_values = Statement(
    lambda _: sa.select(SHARED_VALUE.c.scope, SHARED_VALUE.c.name, as_stored(SHARED_VALUE.c.value)).where(
        sa.or_(*(SHARED_VALUE.c.scope == session_key(name) for name in ("app_scope", "user_scope")))
    )
)


def _head(connection: AnyConnection, now: Moment, place: Place) -> Head | None:
    bound = {"key": place.key, "app_scope": place.app_scope, "user_scope": place.user_scope}
    rows = _session_and_values.run(connection, bound | {"now": dialect_of(connection).time(now)})
    if not rows:
        return None
    incarnation, created_at, last_seq, lines, summary_turn, summarized_upto, revision, *_ = rows[0]
    values = [row[-3:] for row in rows if row[-3] is not None] + _shared_values.run(connection, bound)
    return Head(
        place.key,
        whole_number(place.key, "incarnation", incarnation),
        stored_time(place.key, "created_at", created_at),
        whole_number(place.key, "last_seq", last_seq),
        whole_number(place.key, "message_count", lines),
        summary_turn,
        whole_number(place.key, "summarized_upto", summarized_upto),
        whole_number(place.key, "revision", revision),
        {state.unscoped(scope, name, place): _value(scope, name, text) for scope, name, text in values},
    )


def _value(scope: str, name: str, text: Any) -> Any:
    return stored_json(scope, 0, f"value {name!r}", text)


# One session: its events

_COLUMNS: Final = [
    as_stored(MESSAGE.c[name])
    for name in ("seq", "id", "role", "author", "name", "tool_call_id", "text", "content", "tool_calls", "extra")
]
_OWN_TURN: Final = sa.and_(OF_ITS_TURN, TURN.c.first_seq == TURN.c.last_seq)
_LAST_SEQ: Final = (
    sa.select(sa.func.max(MESSAGE.c.seq))
    .where(of_session(MESSAGE), MESSAGE.c.seq <= number("last_seq"))
    .scalar_subquery()
)
_REMOVED: Final = (
    sa.select(SESSION.c.last_seq - SESSION.c.message_count - SESSION.c.record_count)
    .where(of_session(SESSION), SESSION.c.incarnation == number("incarnation"))
    .scalar_subquery()
)


@functools.cache
def _log(*, since: bool, backwards: bool) -> Statement:
    """Return what reads the window and the records beside it, the last line always."""
    wanted = [
        of_session(MESSAGE),
        MESSAGE.c.seq > number("summarized_upto"),
        MESSAGE.c.seq <= number("last_seq"),
        number("removed") == _REMOVED,
    ]
    if since:
        wanted.append(sa.or_(MESSAGE.c.created_at >= time("since"), MESSAGE.c.seq == _LAST_SEQ))
    columns = (*_COLUMNS, as_stored(MESSAGE.c.created_at), MESSAGE.c.turn_no, as_stored(TURN.c.usage))
    query = sa.select(*columns).select_from(MESSAGE.outerjoin(TURN, _OWN_TURN)).where(*wanted)
    if backwards:
        return Statement(lambda _: query.order_by(MESSAGE.c.seq.desc()).limit(number("limit")))
    return Statement(lambda _: query.order_by(MESSAGE.c.seq))


def _lines(connection: AnyConnection, head: Head, chosen: Chosen) -> list[Line]:
    """Read the lines of a session that may be asked for, and its last one."""
    # Where there is a summary it comes first, though its seq is higher.
    backwards = chosen.last is not None and chosen.since is None and head.summary_turn is None
    values = {name: getattr(head, name) for name in ("key", "last_seq", "incarnation", "removed", "summarized_upto")}
    if chosen.since is not None:
        values["since"] = dialect_of(connection).time(moment(chosen.since))
    if backwards:
        values["limit"] = max(chosen.last or 0, 1)
    rows = _log(since=chosen.since is not None, backwards=backwards).run(connection, values)
    if backwards:
        rows.reverse()
    if head.summary_turn is not None:
        rows.sort(key=lambda row: row[-2] != head.summary_turn)
    lines = [_line(head.key, row) for row in rows]
    if chosen != ALL and not all(line.is_event for line in lines):  # a record of somebody else's was counted
        return _lines(connection, head, ALL)
    return lines


def _line(key: str, row: Sequence[Any]) -> Line:
    seq, id, role, author, name, call_id, text, content, calls, extra, created_at, _, usage = row
    if fault := content_fault(text, content) if content is not None or not isinstance(text, str) else None:
        raise DamagedMessage(key, seq_or_zero(seq), *fault)
    try:
        role = decode_role(role)
    except ValueError as error:
        raise DamagedMessage(key, seq_or_zero(seq), "role", str(error)) from None
    if text is None and content != NO_CONTENT:
        text = stored_json(key, seq, "content", content)
    extra = _json(key, seq, "extra", extra, dict)
    return Line(
        seq,
        id,
        role,
        author,
        name,
        call_id,
        text,
        _json(key, seq, "tool_calls", calls, list),
        extra,
        _timestamp(key, seq, extra, created_at),
        _json(key, seq, "usage of its turn", usage, dict),
    )


def _timestamp(key: str, seq: Any, extra: Mapping[str, Any], created_at: Any) -> float:
    try:
        return timestamp_of(extra, decode_time(created_at))
    except (ValueError, TypeError) as error:
        raise DamagedMessage(key, seq_or_zero(seq), "created_at", str(error)) from None


def _json(key: str, seq: Any, field: str, text: Any, kind: type[_Kind]) -> _Kind:
    """Decode a JSON column that holds a list or a dict, nothing as an empty one."""
    value = kind() if text is None else stored_json(key, seq, field, text)
    if not isinstance(value, kind):
        raise DamagedMessage(key, seq_or_zero(seq), field, f"is {type(value).__name__}, not a {kind.__name__}")
    return value


def _found(head: Head, lines: Sequence[Line], chosen: Chosen) -> Found:
    said = [line for line in lines if line.is_event]
    last = max(lines, key=lambda line: line.seq, default=None)
    return Found(
        head.state,
        events(head.key, chosen.of(said)),
        head.created_at.timestamp() if last is None else last.timestamp,
        head.revision,
        said[-1].event_id if said else None,
    )


# All sessions of an app

_RANGE: Final = ("prefix", "prefix_end")
_last: Final = MESSAGE.alias("last")
_LAST_OF_EACH: Final = (
    sa.select(sa.func.max(MESSAGE.c.seq)).where(of_session(MESSAGE, SESSION.c.key)).correlate(SESSION).scalar_subquery()
)


def _within(column: sa.Column[str], low: str, high: str) -> sa.ColumnElement[bool]:
    return sa.and_(column >= session_key(low), column < session_key(high))


_sessions = Statement(
    lambda _: (
        sa.select(
            SESSION.c.key,
            as_stored(SESSION.c.created_at),
            _last.c.seq,
            as_stored(_last.c.created_at),
            as_stored(_last.c.extra),
        )
        .select_from(SESSION.outerjoin(_last, sa.and_(of_session(_last, SESSION.c.key), _last.c.seq == _LAST_OF_EACH)))
        .where(_within(SESSION.c.key, *_RANGE), LIVE)
    )
)
_values = Statement(
    lambda _: sa.select(VALUE.c.session_key, VALUE.c.name, as_stored(VALUE.c.value)).where(
        _within(VALUE.c.session_key, *_RANGE)
    )
)
_all_shared_values = Statement(
    lambda _: sa.select(SHARED_VALUE.c.scope, SHARED_VALUE.c.name, as_stored(SHARED_VALUE.c.value)).where(
        sa.or_(
            _within(SHARED_VALUE.c.scope, "users", "users_end"),
            SHARED_VALUE.c.scope == session_key("app_scope"),
        )
    )
)


def find_all(access: Access, app_name: str, user_id: str | None) -> list[tuple[Place, Found]]:
    """Read all live sessions of an app, or of a user in it, without events, the one updated last at the end."""
    prefix, users = state.key_prefix(app_name, user_id), state.users_prefix(app_name)
    of_user = None if user_id is None else state.user_scope(app_name, user_id)
    bound = {
        "prefix": prefix,
        "prefix_end": end_of_prefix(prefix),
        "app_scope": state.app_scope(app_name),
        "users": users if of_user is None else of_user,
        "users_end": end_of_prefix(users) if of_user is None else f"{of_user}\x01",  # what sorts next to it
    }
    with access.snapshot() as connection:
        rows = _sessions.run(connection, bound | {"now": dialect_of(connection).time(access.moment(connection))})
        values: dict[str, list[tuple[str, str]]] = {}
        for scope, name, text in _values.run(connection, bound) + _all_shared_values.run(connection, bound):
            values.setdefault(scope, []).append((name, text))
    found = [(place, _listed(place, row, values)) for row in rows if (place := state.found_at(row[0]))]
    return sorted(found, key=lambda each: (each[1].last_update_time, each[0].user_id, each[0].session_id))


def _listed(place: Place, row: Sequence[Any], values: Mapping[str, list[tuple[str, str]]]) -> Found:
    key, created_at, seq, last_at, extra = row
    merged = {  # decoded for each session: what is done to one is seen in no other
        state.unscoped(scope, name, place): _value(scope, name, text)
        for scope in (place.key, place.app_scope, place.user_scope)
        for name, text in values.get(scope, ())
    }
    extra = _json(key, seq, "extra", extra, dict)
    return Found(merged, [], _timestamp(key, seq, extra, created_at if seq is None else last_at), 0, None)
