"""Suspensions: requests for an answer from outside the program, answered once. Tokens are stored as digests."""

import hashlib
import json
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Final, NamedTuple, Self

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    LIVE_SESSION,
    NOW,
    SESSION,
    column,
    number,
    of_session,
    session_key,
    text,
    time,
)
from lango_store._operations.log.appends import Batch
from lango_store._operations.rows import session_value, stored_json, stored_time
from lango_store._operations.session import lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._rooms.tool_calls import calls, waiting
from lango_store._rooms.tool_calls.calls import Place
from lango_store._rooms.tool_calls.errors import AlreadyAnswered, SuspensionExpired, SuspensionNotFound
from lango_store._rooms.tool_calls.tables import SUSPENSION
from lango_store._rooms.tool_calls.values import Suspension
from lango_store._rooms.turns_in_progress import inbox, owed
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware, checked_key, encode_json, encode_text
from lango_store._values.model import Message, ToolCall
from lango_store._values.reports import Page
from lango_store.errors import InvalidCursor, InvalidState, SessionNotFound, quoted

_DIGEST_LENGTH: Final = 64
_TOKEN: Final = re.compile(r"([A-Za-z0-9_=-]{1,4000})\.([A-Za-z0-9_-]{43})")


def parse(token: str) -> tuple[str, str]:
    """Return the session key and the digest of a token; raise `SuspensionNotFound` if the text is not a token."""
    if isinstance(token, str) and (match := _TOKEN.fullmatch(token)):
        with suppress(ValueError):
            return checked_key(urlsafe_b64decode(match[1]).decode()), _digest(match[2])
    raise _not_found("this text is not the token of a suspension")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class NewSuspension:
    """A suspension about to be stored, encoded, with its token.

    Raises:
        InvalidKey: The session key is invalid.
        InvalidValue: The state or the reason cannot be stored.
        TypeError: The TTL is not a timedelta, or `calls` does not consist of pairs.
        ValueError: The TTL is out of range, or the calls belong to several messages.
    """

    def __init__(
        self, key: str, calls: Sequence[tuple[int, int]], state: Any, reason: str | None, ttl: timedelta | None
    ) -> None:
        secret = secrets.token_urlsafe(32)
        self.token: Final = f"{urlsafe_b64encode(checked_key(key).encode()).decode()}.{secret}"
        self.key, self.digest = key, _digest(secret)
        self.ttl: timedelta | datetime | None = None if sessions.seconds(ttl) is None else ttl
        if not all(isinstance(call, tuple | list) and len(call) == 2 for call in calls):
            raise TypeError("calls are pairs: give the seq of a message and the position of a call in it for each")
        self.places: Final = list(dict.fromkeys(Place(key, *call) for call in calls))
        if len({each.seq for each in self.places}) > 1:
            raise ValueError("calls name several messages: suspend the calls of each message separately")
        self.row: Final[dict[str, Any]] = {
            "session_key": key,
            "digest": self.digest,
            "message_seq": self.places[0].seq if self.places else None,
            "positions": encode_json([each.position for each in self.places], "calls") if self.places else None,
            "state": None if state is None else encode_json(state, "state"),
            "reason": encode_text(reason, "reason"),
            "handle": None,
        }


class NewWait(NewSuspension):
    """A suspension of a call that waits for its result from outside, encoded. Its token is never returned."""

    def __init__(self, place: Place, handle: Mapping[str, Any], until: datetime | timedelta) -> None:
        digest = digest_of_handle(handle)
        super().__init__(place.key, [(place.seq, place.position)], dict(handle), None, None)
        self.row["handle"] = digest
        if isinstance(until, timedelta):
            self.ttl = sessions.check_duration("until", until, most=sessions.MAX_TTL)
        else:
            self.ttl = inbox.check_instant("until", until)


def digest_of_handle(handle: Mapping[str, Any]) -> str:
    """Return the digest by which a call that waits is found."""
    if not isinstance(handle, Mapping) or not handle:
        raise TypeError(f"{quoted(handle)} is not a handle: give a JSON object, such as {{'job': 17}}")
    encode_json(dict(handle), "handle")
    return _digest(json.dumps(dict(handle), sort_keys=True))


_ROW: Final = [as_stored(each) for each in SUSPENSION.c]
_insert: Final = Statement(
    lambda dialect: (
        dialect.insert(SUSPENSION)
        .values({each.name: column(each) for each in SUSPENSION.c if not each.name.startswith("answer")})
        .on_conflict_do_nothing(index_elements=[SUSPENSION.c.session_key, SUSPENSION.c.digest])
    )
)


def suspend(connection: sa.Connection, now: datetime, new: NewSuspension) -> Suspension:
    """Store a suspension of a live session, and return it with its token."""
    sessions.lock(connection, now, new.key)
    for place in new.places:
        calls.asked(connection, place)
    time = dialect_of(connection).time
    due_at = now + new.ttl if isinstance(new.ttl, timedelta) else new.ttl
    _insert.run_many(connection, [new.row | {"created_at": time(now), "due_at": time(due_at)}])
    stored = _find(connection, new.key, new.digest)
    if stored is None:
        raise sessions.not_permitted(new.key)
    return stored.model_copy(update={"token": new.token})


class Answer(NamedTuple):
    """An encoded answer, and who has given it and why."""

    answer: str
    answered_by: str | None
    answered_why: str | None

    @classmethod
    def encode(cls, answer: Any, by: str | None, why: str | None) -> Self:
        """Encode an answer; raise `InvalidValue` if it cannot be stored."""
        return cls(encode_json(answer, "answer"), encode_text(by, "by"), encode_text(why, "why"))


_IS_OPEN: Final = sa.and_(
    SUSPENSION.c.answered_at.is_(None), sa.or_(SUSPENSION.c.due_at.is_(None), SUSPENSION.c.due_at > NOW)
)
_OF_ID: Final = sa.and_(of_session(SUSPENSION), SUSPENSION.c.digest == text("digest"))
_OF_TOKEN: Final = sa.and_(_OF_ID, SUSPENSION.c.handle.is_(None))
_answer: Final = Statement(
    lambda _: (
        sa.update(SUSPENSION)
        .where(_OF_TOKEN, _IS_OPEN, sa.exists().where(LIVE_SESSION))
        .values({name: column(SUSPENSION.c[name]) for name in Answer._fields} | {"answered_at": NOW})
        .returning(*_ROW)
    )
)
_note_answer: Final = Statement(sa.update(SESSION).where(LIVE_SESSION).values(owed.arrived(owed.ANSWERED)))


def answer(connection: sa.Connection, now: datetime, key: str, digest: str, answer: Answer) -> Suspension:
    """Store the answer of a suspension, and return the suspension.

    Raises:
        AlreadyAnswered: The suspension already has an answer.
        SuspensionExpired: The TTL of the suspension has passed.
        SuspensionNotFound: There is no such suspension, or its session is not live.
    """
    bound = {"key": checked_key(key), "digest": digest, "now": dialect_of(connection).time(now)} | answer._asdict()
    _note_answer.run_many(connection, [bound])  # rolled back if the answer is refused
    for row in _answer.run(connection, bound):
        return _decoded(row)
    try:
        sessions.row_of(connection, now, key)
    except SessionNotFound as error:
        raise _not_found(error.fact) from None
    stored = _find(connection, key, digest)
    if stored is None or stored.handle is not None:
        raise _not_found(f"session {quoted(key)} has no such suspension")
    if stored.answered_at is not None:
        raise AlreadyAnswered(stored.key, stored.id, stored.answer, stored.answered_at, stored.answered_by)
    if stored.due_at is not None and stored.due_at <= now:
        raise SuspensionExpired(stored.key, stored.due_at)
    raise sessions.not_permitted(key)


def find_and_answer(context: Context, key: str, digest: str, encoded: Answer) -> Suspension:
    """Store the answer of a suspension; a session that the context may not reach has none."""
    try:
        return context.transact_once(answer, key, digest, encoded)
    except SessionNotFound as error:
        raise _not_found(error.fact) from None


def _not_found(
    fact: str, those: str = "Store.suspensions.list() lists those that wait for an answer"
) -> SuspensionNotFound:
    return SuspensionNotFound(f"{fact}: {those}")


# Tool calls that wait for their result from outside

_WAITING: Final = "Store.calls.waiting() lists those that wait"
_IS_WAIT: Final = sa.and_(_OF_ID, SUSPENSION.c.handle.is_not(None))
_ended: Final = sa.update(SUSPENSION).where(_IS_WAIT).returning(*_ROW)
_end: Final = Statement(lambda _: _ended.where(_IS_OPEN).values(answered_at=NOW))
_end_taken: Final = Statement(
    lambda _: _ended.values(answered_at=sa.func.coalesce(SUSPENSION.c.answered_at, SUSPENSION.c.due_at))
)


def wait(connection: sa.Connection, now: datetime, new: NewWait, token: int, failure: Batch) -> None:
    """Store that a call waits for its result; at the end of the time, a turn takes its failure from the inbox.

    Raises:
        Conflict: The call no longer belongs to this attempt.
    """
    last_seq = sessions.lock(connection, now, new.key).last_seq
    if calls.wait(connection, new.places[0], token, last_seq):  # otherwise an earlier try was committed
        inbox.enqueue(connection, now, new.key, failure, due=suspend(connection, now, new).due_at)


def finish(
    connection: sa.Connection, now: datetime, key: str, id: str, result: Callable[[ToolCall, str], Batch]
) -> Message:
    """Put the result of a call that waits into the inbox, in the place of its failure; return the message.

    Raises:
        SuspensionExpired: The call has waited until its time limit.
        SuspensionNotFound: No call waits, or has waited, with this id.
    """
    sessions.lock(connection, now, key)
    bound = {"key": checked_key(key), "digest": id, "now": dialect_of(connection).time(now)}
    message_id = f"{inbox.RESULT}{id}"
    for row in _end.run(connection, bound):
        call = calls.call_of(connection, _place_of(_decoded(row)))
        return inbox.replace(connection, now, key, message_id, result(call, message_id))
    stored = _find(connection, key, id)
    if stored is None or stored.handle is None or stored.due_at is None:
        raise _not_found(f"session {quoted(key)} has no call that waits with this id", _WAITING)
    if stored.answered_at is None or stored.answered_at >= stored.due_at:
        raise SuspensionExpired(key, stored.due_at, "the call has failed, and a turn gets this failure as its result")
    return inbox.find(connection, key, message_id)


def _place_of(wait: Suspension) -> Place:
    return Place(wait.key, *wait.calls[0])


def _end_of(connection: sa.Connection, key: str, message_id: str) -> Callable[[int], object] | None:
    """End the wait of a call, whose result a turn takes; return what records the seq of the result."""
    for row in _end_taken.run(connection, {"key": key, "digest": message_id.removeprefix(inbox.RESULT)}):
        return partial(calls.end_wait, connection, _place_of(_decoded(row)))
    return None


inbox.ENDS.append(_end_of)
_waits_after: Final = Statement(
    sa.select(SUSPENSION.c.digest).where(
        of_session(SUSPENSION), SUSPENSION.c.handle.is_not(None), SUSPENSION.c.message_seq > number("after")
    )
)


def append_results(connection: sa.Connection, now: datetime, key: str, after: int) -> bool:
    """Move the results of calls of messages after a seq from the inbox to the log of a locked session.

    Return False if no such result waits in the inbox.
    """
    ids = {f"{inbox.RESULT}{digest}" for (digest,) in _waits_after.run(connection, {"key": key, "after": after})}
    results = inbox.append(connection, now, key, None, lambda each: each.id in ids) if ids else []
    for result in results:
        if end := _end_of(connection, key, str(result.id)):
            end(result.seq)
    return bool(results)


def find_waiting(connection: AnyConnection, now: Moment, chosen: Filter, handle: str) -> Suspension:
    """Return the call that waits with a handle or, without one, the first that has waited.

    Raises:
        SuspensionNotFound: There is none in the chosen sessions.
        InvalidState: Several calls wait with the handle.
    """
    bound = chosen.values(dialect_of(connection), now) | {"limit": 2, "handle": handle}
    rows = _page(chosen.names, "handle", "waits").run(connection, bound)
    if len(rows) > 1:
        raise InvalidState("several calls wait with this handle: pass an item of Store.calls.waiting() instead")
    for row in rows or _page(chosen.names, "handle").run(connection, bound):
        return _decoded(row)
    raise _not_found("no call waits with this handle", _WAITING)


_delete: Final = Statement(lambda _: sa.delete(SUSPENSION).where(_OF_TOKEN).returning(SUSPENSION.c.digest))


def delete(connection: sa.Connection, now: datetime, key: str, digest: str) -> bool:
    """Delete a suspension of a live session, answered or not; return True if there was one."""
    sessions.lock(connection, now, key)
    return bool(_delete.run(connection, {"key": key, "digest": digest}))


_select: Final = Statement(lambda _: sa.select(*_ROW).where(_OF_ID))
_all: Final = Statement(
    lambda _: sa.select(*_ROW).where(of_session(SUSPENSION)).order_by(SUSPENSION.c.created_at, SUSPENSION.c.digest)
)


def _find(connection: AnyConnection, key: str, digest: str) -> Suspension | None:
    rows = _select.run(connection, {"key": key, "digest": digest})
    return _decoded(rows[0]) if rows else None


def read(connection: AnyConnection, now: Moment, key: str) -> list[Suspension]:
    """Return the suspensions of a live session, answered or not, oldest first."""
    sessions.row_of(connection, now, key)
    return [_decoded(row) for row in _all.run(connection, {"key": checked_key(key)})]


_POSITION: Final = (SUSPENSION.c.created_at, SUSPENSION.c.session_key, SUSPENSION.c.digest)
_CONDITIONS: Final = {
    "due_before": SUSPENSION.c.due_at < time("due_before"),
    "asks": waiting.IS_UNANSWERED,
    "waits": waiting.IS_WAITING,
    "handle": SUSPENSION.c.handle == text("handle"),
    "cursor": sa.tuple_(*_POSITION) > sa.tuple_(time("cursor_time"), session_key("cursor_key"), text("cursor_digest")),
}


@cache
def _page(names: tuple[str, ...], *own: str) -> Statement:
    query = sa.select(*_ROW).join(SESSION, of_session(SESSION, SUSPENSION.c.session_key))
    query = query.where(*(_CONDITIONS[name] for name in own)).order_by(*_POSITION).limit(lists.LIMIT)
    return Statement(lambda dialect: query.where(*lists.conditions(dialect, names)))


def page(
    connection: AnyConnection, now: Moment, chosen: Filter, times: Mapping[str, Any], limit: int, cursor: str | None
) -> Page[Suspension]:
    """Return a page of the suspensions of chosen sessions that have no answer, oldest first.

    `times` has the names of other conditions, "asks" or "waits" among them, and the times that they bind, or None.
    """
    lists.check_limit(limit)
    dialect = dialect_of(connection)
    own = [*times]
    bound = chosen.values(dialect, now) | {"limit": limit + 1}
    bound |= {name: dialect.time(aware(each, name)) for name, each in times.items() if each is not None}
    if cursor is not None:
        own.append("cursor")
        bound["cursor_digest"], moment, bound["cursor_key"] = lists.read_cursor(cursor, "Store.suspensions")
        bound["cursor_time"] = dialect.time(moment)
        if len(bound["cursor_digest"]) != _DIGEST_LENGTH:
            raise InvalidCursor("the cursor is of another list: pass Page.next unchanged")
    items = [_decoded(row) for row in _page(chosen.names, *own).run(connection, bound)]
    return lists.page_of(Page[Suspension], items, limit, lambda last: (last.id, last.created_at, last.key))


def _decoded(row: Sequence[Any]) -> Suspension:
    value = {name: each for name, each in zip(SUSPENSION.c.keys(), row, strict=True) if each is not None}
    key, id = value.pop("session_key"), value.pop("digest")
    field = f"suspension {str(id)[:8]}"
    for name in value.keys() & {"positions", "state", "answer"}:
        value[name] = stored_json(key, 0, f"{field}, {name}", value[name])
    for name in value.keys() & {"created_at", "due_at", "answered_at"}:
        value[name] = stored_time(key, f"{field}, {name}", value[name])
    if value.pop("handle", None) is not None:
        value["handle"] = value.pop("state", {})
    seq = value.pop("message_seq", None)
    calls = [(seq, position) for position in value.pop("positions", ())]
    return session_value(Suspension, value | {"key": key, "id": id, "calls": calls})
