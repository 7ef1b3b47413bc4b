"""Tool calls that were begun: a row is stored before the tool runs, and gets the seq of the result afterwards.

The seq of the message and the position in it identify a call, because ids of calls are not unique in a session. The
token in the row decides which attempt may finish the call. The time limit `until` only separates running calls from
unknown ones. All functions that write need a transaction.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import KEY, MESSAGE, NOW, SESSION, column, number, of_session, session_key
from lango_store._operations.log import appends, messages
from lango_store._operations.log.appends import Batch
from lango_store._operations.rows import session_value, stored_json, stored_time
from lango_store._operations.session import lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._rooms.tool_calls import waiting
from lango_store._rooms.tool_calls.errors import CallFinished, CallInProgress, CallNotFound, CallUnknown
from lango_store._rooms.tool_calls.tables import CALL
from lango_store._rooms.tool_calls.values import BegunCall
from lango_store._rooms.turns_in_progress.errors import LeaseLost
from lango_store._rooms.turns_in_progress.leases import Lease
from lango_store._rooms.turns_in_progress.owed import NEVER, NEVER_STORED
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store._values.reports import Page
from lango_store.errors import Conflict, InvalidCursor, quoted


@dataclass(frozen=True)
class Place:
    """A tool call: the session, the seq of the message that asks for it, and its position in that message."""

    key: str
    seq: int
    position: int

    def __str__(self) -> str:
        return f"call {self.position} of message {self.seq} of session {quoted(self.key)}"

    @cached_property
    def bound(self) -> dict[str, Any]:
        """The values to bind in a statement with `_OF_PLACE`."""
        return {"key": self.key, "message_seq": self.seq, "position": self.position}


@dataclass(frozen=True)
class Attempt:
    """An attempt to run a call: a random token, a key for the tool if the call has none yet, and the time limit."""

    token: int
    effect_key: str
    limit: timedelta


def asked(connection: AnyConnection, place: Place) -> ToolCall:
    """Return a call as its message asks for it.

    A stored result also has `tool_calls`. Beginning one of these would run the tool again.

    Raises:
        LangoStoreError: There is no such call, or the message does not ask for it.
    """
    message = _message(connection, place)
    if message is None:
        raise CallNotFound(f"there is no {place}: give the seq of a stored message and a position in its tool_calls")
    if message.role.canonical is not MessageRole.ASSISTANT:
        fact = f"message {place.seq} of session {quoted(place.key)} has the role {message.role} and asks for no call"
        raise CallNotFound(f"{fact}: give the seq of the assistant message that asks for the call")
    call = message.tool_calls[place.position]
    if call.answered:
        raise CallFinished(f"{place} already has an output in its message: use that output, and do not run the tool")
    return call


def _message(connection: AnyConnection, place: Place) -> Message | None:
    """Return the message of a place; None if there is no such message, or no such position in its `tool_calls`."""
    messages.check_seq("seq", place.seq)
    if type(place.position) is not int:
        raise TypeError(f"position is {type(place.position).__name__}: give the position of a call, from 0")
    message = messages.at(connection, place.key, place.seq)
    return message if message is not None and 0 <= place.position < len(message.tool_calls) else None


def begin(
    connection: AnyConnection, now: Moment, place: Place, attempt: Attempt, lease: Lease | None, *, idempotent: bool
) -> tuple[ToolCall, str, Message | None, bool]:
    """Record that a call begins; return the call, its key for the tool, its stored result, if any, and if it waits.

    A call with a result, or one that waits for its result from outside, does not begin again. An unknown call begins
    again only if it is `idempotent`.

    Raises:
        CallInProgress: The time limit of an earlier attempt has not passed.
        CallUnknown: The call is unknown and not `idempotent`.
        LeaseLost: The session no longer has the lease.
    """
    now, dialect = now or sessions.server_time(connection), dialect_of(connection)
    with dialect.short_transaction(connection):
        if lease is None:
            sessions.lock(connection, now, place.key)
        else:
            lease.renew(connection, now, place.key)
        call = asked(connection, place)
        begun = {"token": attempt.token, "begun_at": dialect.time(now), "until": dialect.time(now + attempt.limit)}
        row = _row(connection, place)
        if row is None:
            _write(connection, place, _insert, begun | {"effect_key": attempt.effect_key})
            return call, attempt.effect_key, None, False
        if (result := _result(connection, place, row)) is not None:
            return call, row.effect_key, result, False
        if row.result_seq is None and _until(place, row) == NEVER:
            return call, row.effect_key, None, True
        is_free = row.token is None and row.result_seq is None
        if not is_free and row.token != attempt.token:
            _check_ended(place, row, now)
            if not idempotent:
                raise CallUnknown(place.key, place.seq, place.position, row.effect_key)
        _write(connection, place, _begin_again, begun)
        return call, row.effect_key, None, False


def finish(
    connection: AnyConnection, now: Moment, place: Place, token: int, result: Batch, expected: Expected
) -> Message:
    """Append the result of a call, which ends it; raise `Conflict` if the call no longer belongs to this attempt.

    A lease in `expected` is extended if the session still has it. Otherwise the result is stored too: the tool has
    already run.
    """
    with dialect_of(connection).short_transaction(connection):
        last_seq = sessions.lock(connection, now, place.key).last_seq
        row = _row(connection, place)
        if row is None or row.token != token or not row.is_in_log:
            raise _lost(place, last_seq)
        if (stored := _result(connection, place, row)) is not None:  # an earlier try was committed
            return stored
        try:
            return _record(connection, now, place, result, expected)
        except LeaseLost:
            return _record(connection, now, place, result)


def wait(connection: AnyConnection, place: Place, token: int, last_seq: int) -> bool:
    """Let a call of a locked session wait for its result from outside; return False if it waits already.

    Raises:
        Conflict: The call no longer belongs to this attempt.
    """
    row = _row(connection, place)
    if row is None or row.token != token or not row.is_in_log:
        raise _lost(place, last_seq)
    if is_new := _until(place, row) != NEVER:
        _write(connection, place, _wait, {})
    return is_new


def end_wait(connection: AnyConnection, place: Place, result_seq: int) -> None:
    """Record the result of a call that waited, which a turn has taken from the inbox."""
    _end.run(connection, place.bound | {"result_seq": result_seq})


def end_waits(connection: sa.Connection, now: datetime, key: str, after: int) -> None:
    """End the waits of calls of messages after a seq, which are set aside: these calls are then unknown."""
    _end_waits.run_many(connection, [{"key": key, "after": after, "now": dialect_of(connection).time(now)}])


def _lost(place: Place, last_seq: int) -> Conflict:
    fact = f"{place} was resolved, or begun again, or its message was removed"
    message = f"{fact}: the result of this attempt was not stored"
    return Conflict(place.key, expected=last_seq, last_seq=last_seq, message=message)


def _record(
    connection: AnyConnection, now: Moment, place: Place, result: Batch, expected: Expected = ANYTHING
) -> Message:
    """Append the result of a call; its id is new, because only one result of an attempt is stored."""
    (stored,) = appends.append(connection, now, place.key, result, expected)
    _write(connection, place, _end, {"result_seq": stored.seq})
    return stored


_OF_PLACE: Final = sa.and_(
    of_session(CALL), CALL.c.message_seq == number("message_seq"), CALL.c.position == number("position")
)
_update: Final = sa.update(CALL).where(_OF_PLACE).returning(CALL.c.effect_key)
_begun: Final = {name: column(CALL.c[name]) for name in ("token", "begun_at", "until")}
_place: Final = {"session_key": KEY, "message_seq": number("message_seq"), "position": number("position")}
_insert: Final = Statement(
    lambda _: (
        sa.insert(CALL).values(_place | _begun | {"effect_key": column(CALL.c.effect_key)}).returning(CALL.c.effect_key)
    )
)
_begin_again: Final = Statement(lambda _: _update.values(_begun | {"result_seq": sa.null()}))
_end: Final = Statement(lambda _: _update.values(result_seq=number("result_seq")))
_IS_WAITING: Final = sa.and_(CALL.c.until == NEVER_STORED, CALL.c.result_seq.is_(None))
_wait: Final = Statement(lambda _: _update.values(until=NEVER_STORED))
_end_waits: Final = Statement(
    sa.update(CALL)
    .where(of_session(CALL), CALL.c.message_seq > number("after"), CALL.c.until == NEVER_STORED)
    .where(CALL.c.result_seq.is_(None))
    .values(until=NOW)
)
_ENDED: Final = sa.case((CALL.c.until == NEVER_STORED, CALL.c.begun_at), else_=CALL.c.until)  # it waits no more
_forget_attempt: Final = Statement(lambda _: _update.values(token=sa.null(), result_seq=sa.null(), until=_ENDED))
_leave: Final = Statement(
    lambda _: _update.where(CALL.c.token == number("token"), CALL.c.result_seq.is_(None), ~_IS_WAITING).values(
        until=NOW
    )
)


def _write(connection: AnyConnection, place: Place, statement: Statement, values: dict[str, Any]) -> None:
    """Write the row of a call; raise `NotPermitted` if no row was written, since the tool could then run twice."""
    if not statement.run(connection, place.bound | values):
        raise sessions.not_permitted(place.key)


def leave(connection: sa.Connection, now: datetime, place: Place, token: int) -> bool:
    """If the call still belongs to this attempt and has no result, end its time limit now, so that it is unknown.

    Return True if it had no result.
    """
    return bool(_leave.run(connection, place.bound | {"token": token, "now": dialect_of(connection).time(now)}))


def resolve(
    connection: sa.Connection, now: datetime, place: Place, result: Callable[[ToolCall], Batch] | None
) -> Message | None:
    """Record a result for a call that is not running, or let the call run again if `result` is None.

    Raises:
        CallInProgress: The time limit of the call has not passed.
        LangoStoreError: The call was never begun, or already has a result.
    """
    sessions.lock(connection, now, place.key)
    row = _row(connection, place)
    if row is None:
        asked(connection, place)
        raise CallNotFound(f"{place} was never begun: calls.begin() runs it")
    if not row.is_in_log:
        raise CallNotFound(f"the message of {place} is set aside: switch to its alternative first")
    if _result(connection, place, row) is not None:
        raise CallFinished(f"{place} already has a result: message {row.result_seq}")
    if row.token is not None:
        _check_ended(place, row, now)
    _write(connection, place, _forget_attempt, {})
    if result is None:
        return None
    return _record(connection, now, place, result(call_of(connection, place)))


def call_of(connection: AnyConnection, place: Place) -> ToolCall:
    """Return a call that was begun; one without id and name if its message was redacted."""
    message = _message(connection, place)
    return ToolCall(id="", name="") if message is None else message.tool_calls[place.position]


class _Row(NamedTuple):
    effect_key: str
    token: int | None
    until: Any
    result_seq: int | None
    is_in_log: bool


_IS_OF_PLACE: Final = sa.and_(of_session(MESSAGE, CALL.c.session_key), MESSAGE.c.seq == CALL.c.message_seq)
_select: Final = Statement(
    lambda _: sa.select(
        *(as_stored(CALL.c[name]) for name in _Row._fields if name in CALL.c), sa.exists().where(_IS_OF_PLACE)
    ).where(_OF_PLACE)
)


def _row(connection: AnyConnection, place: Place) -> _Row | None:
    rows = _select.run(connection, place.bound)
    return _Row(*rows[0]) if rows else None


def _result(connection: AnyConnection, place: Place, row: _Row) -> Message | None:
    stored = None if row.result_seq is None else messages.at(connection, place.key, row.result_seq)
    return None if stored is None else stored.model_copy(update={"replayed": True})


def _until(place: Place, row: _Row) -> datetime:
    return stored_time(place.key, f"until of {place}", row.until)


def _check_ended(place: Place, row: _Row, now: datetime) -> None:
    until = _until(place, row)
    if row.result_seq is None and until > now:
        raise CallInProgress(place.key, place.seq, place.position, until)


# Read

_ASKING: Final = MESSAGE.alias("asking")
_RESULT: Final = MESSAGE.alias("result")
_state: Final = sa.case(
    (_RESULT.c.seq.is_not(None), "finished"),
    (_IS_WAITING, "waiting"),
    (sa.and_(CALL.c.token.is_(None), CALL.c.result_seq.is_(None)), "retry"),
    (sa.and_(CALL.c.result_seq.is_(None), CALL.c.until > NOW), "running"),
    else_="unknown",
)
_PLACE: Final = (CALL.c.session_key, CALL.c.message_seq, CALL.c.position)
_FIELDS: Final[dict[str, sa.ColumnElement[Any]]] = {
    "key": CALL.c.session_key,
    "seq": CALL.c.message_seq,
    "position": CALL.c.position,
    "name": as_stored(_ASKING.c.tool_calls),
    "effect_key": CALL.c.effect_key,
    "state": _state,
    "begun_at": as_stored(CALL.c.begun_at),
    "until": as_stored(CALL.c.until),
    "result_seq": CALL.c.result_seq,
}
"""The fields of `BegunCall`, but with all tool calls of the message in place of the call's name."""

_IS_ASKING: Final = sa.and_(of_session(_ASKING, CALL.c.session_key), _ASKING.c.seq == CALL.c.message_seq)
_IS_RESULT: Final = sa.and_(of_session(_RESULT, CALL.c.session_key), _RESULT.c.seq == CALL.c.result_seq)
_LIST: Final = sa.select(*_FIELDS.values()).join(_ASKING, _IS_ASKING).outerjoin(_RESULT, _IS_RESULT).order_by(*_PLACE)
_of_session: Final = Statement(lambda _: _LIST.where(of_session(CALL)))


@cache
def _unknown(names: tuple[str, ...], *, first: bool) -> Statement:
    query = _LIST.join(SESSION, of_session(SESSION, CALL.c.session_key)).where(waiting.IS_UNKNOWN).limit(lists.LIMIT)
    last = sa.tuple_(session_key("cursor_key"), number("cursor_seq"), number("cursor_position"))
    of_page = () if first else (sa.tuple_(*_PLACE) > last,)
    return Statement(lambda dialect: query.where(*lists.conditions(dialect, names), *of_page))


_RESULT_ROLES: Final = [sa.literal_column(f"'{role}'", sa.Text()) for role in MessageRole if role.canonical == "tool"]
_of_results: Final = Statement(
    lambda _: (
        sa.select(CALL.c.result_seq, CALL.c.message_seq, CALL.c.position)
        .join(_RESULT, _IS_RESULT)
        .where(of_session(CALL), CALL.c.result_seq.between(number("first"), number("last")))
        .where(_RESULT.c.role.in_(_RESULT_ROLES))
        # Few results are stored long after their calls. From the end, the limit is reached after a few rows.
        .order_by(CALL.c.message_seq.desc(), CALL.c.position.desc())
        .limit(number("limit"))
    )
)


def read_of_results(connection: AnyConnection, key: str, seqs: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the seq and the position of the call that each of a range of results answers, if it was begun.

    `seqs` are the seqs of all results in the range.
    """
    if not seqs:
        return {}
    bound = {"key": checked_key(key), "first": min(seqs), "last": max(seqs), "limit": len(seqs)}
    return {result: (seq, position) for result, seq, position in _of_results.run(connection, bound)}


def read(connection: AnyConnection, now: Moment, key: str) -> list[BegunCall]:
    """Return the calls of a live session that were begun, in the order of their messages."""
    sessions.row_of(connection, now, key)
    bound = {"key": checked_key(key), "now": dialect_of(connection).time(now)}
    return [_decoded(row) for row in _of_session.run(connection, bound)]


_CURSOR: Final = re.compile(r"([0-9]{1,18})_([0-9]{1,9})")  # a seq and a position


def page_of_unknown(
    connection: AnyConnection, now: Moment, chosen: Filter, limit: int, cursor: str | None
) -> Page[BegunCall]:
    """Return a page of the unknown calls of chosen sessions, in the order of their sessions and messages."""
    lists.check_limit(limit)
    bound = chosen.values(dialect_of(connection), now) | {"limit": limit + 1}
    if cursor is not None:
        place, _, bound["cursor_key"] = lists.read_cursor(cursor, "calls.list_unknown")
        if not (found := _CURSOR.fullmatch(place)):
            raise InvalidCursor("the cursor is of another list: pass Page.next unchanged")
        bound |= {"cursor_seq": int(found[1]), "cursor_position": int(found[2])}
    items = [_decoded(row) for row in _unknown(chosen.names, first=cursor is None).run(connection, bound)]
    return lists.page_of(
        Page[BegunCall], items, limit, lambda last: (f"{last.seq}_{last.position}", last.begun_at, last.key)
    )


def _decoded(row: Sequence[Any]) -> BegunCall:
    value = dict(zip(_FIELDS, row, strict=True))
    key, seq = value["key"], value["seq"]
    asked = [] if value["name"] is None else stored_json(key, seq, "tool_calls", value["name"])
    value["name"] = asked[value["position"]]["name"] if value["position"] < len(asked) else ""
    times = {name: stored_time(key, name, value[name]) for name in ("begun_at", "until")}
    return session_value(BegunCall, value | times)
