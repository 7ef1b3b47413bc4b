"""Each session has one row; these functions read, lock and write it."""

import functools
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, IfTimeBound, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    BEFORE_ANY_EXPIRY,
    LIVE,
    LIVE_SESSION,
    NOW,
    SESSION,
    column,
    number,
    of_session,
)
from lango_store._operations.rows import SESSION_COLUMNS, decode_session, encode_session, session_info, whole_number
from lango_store._operations.session.guards import Guard
from lango_store._rows.encoding import checked_key, decode_time
from lango_store._values.model import UNSET, SessionChanges, SessionFields, SessionInfo, Unset
from lango_store._values.value import copied
from lango_store.errors import (
    Conflict,
    NotPermitted,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    SessionOnHold,
    quoted,
)
from lango_store.tables import expired_at

MAX_TTL: Final = timedelta(days=36_525)

MAX_DURATION: Final = timedelta(days=1)

MAX_TRIES: Final = 3
"""The maximum number of tries of a write: an expired session may be revived after a try matched no row."""


# Arguments


def seconds(ttl: timedelta | None, name: str = "ttl") -> float | None:
    """Check a TTL and return it in seconds."""
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta):  # a number could mean seconds or minutes
        raise TypeError(f"{name} is {type(ttl).__name__}: give a timedelta, such as timedelta(minutes=30), or None")
    if not timedelta(0) < ttl <= MAX_TTL:
        raise ValueError(f"{name} {ttl} is not between 0 and 100 years: give None for a session that never expires")
    return ttl.total_seconds()


def check_duration(
    name: str, value: timedelta, least: timedelta = timedelta(0), most: timedelta = MAX_DURATION
) -> timedelta:
    """Return a duration between two limits; raise TypeError or ValueError for any other value."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} is {type(value).__name__}: give a timedelta, such as timedelta(minutes=2)")
    if not least <= value <= most:
        raise ValueError(f"{name}={value} is not between {least} and {most}")
    return value


# Read and lock a session

_time = Statement(lambda _: sa.select(NOW))


def server_time(connection: AnyConnection) -> datetime:
    """Return the current time of the database's clock."""
    return decode_time(_time.run(connection, {"now": None})[0][0])


def new_incarnation() -> dict[str, int]:
    """Return a random incarnation and revision, which distinguish a session from earlier ones with its key."""
    return {"incarnation": secrets.randbits(63), "revision": secrets.randbits(48)}  # a float holds 53 bits


REVISED: Final = {"revision": SESSION.c.revision + sa.literal_column("1", sa.BigInteger())}
"""The new revision after a change of messages, fields, values, counters or the expiry; other writes keep it."""

_select = Statement(lambda _: sa.select(LIVE, SESSION.c.incarnation, *SESSION_COLUMNS).where(of_session(SESSION)))


def row_of(connection: AnyConnection, now: Moment, key: str) -> dict[str, Any]:
    """Return the row of a live session; raise `SessionNotFound` or `SessionExpired` if it is not live."""
    return decode_session(_live_row(connection, now, key)[1])


def _live_row(connection: AnyConnection, now: Moment, key: str) -> tuple[int, Sequence[Any]]:
    """Return the incarnation and the row of a live session, not decoded."""
    rows = _select.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)})
    if not rows:
        raise SessionNotFound(key)
    live, incarnation, *row = rows[0]
    if not live:
        raise SessionExpired(key, decode_session(row)["expires_at"])
    return incarnation, row


def info_with_incarnation(connection: AnyConnection, now: Moment, key: str) -> tuple[int, SessionInfo]:
    """Return the incarnation of a live session, which differs from that of earlier ones with its key, and its info."""
    incarnation, row = _live_row(connection, now, key)
    return incarnation, session_info(row)


def info(connection: AnyConnection, now: Moment, key: str) -> SessionInfo:
    """Return a live session without its messages."""
    return info_with_incarnation(connection, now, key)[1]


@dataclass(frozen=True)
class Expected:
    """The facts that a write expects of a session; None accepts anything.

    With `intact_since`, no message was changed or removed since this `SessionInfo` was loaded.
    """

    last_seq: int | None = None
    revision: int | None = None
    guard: Guard | None = None
    intact_since: SessionInfo | None = None

    def __post_init__(self) -> None:
        for name, value, description in (
            ("after", self.last_seq, "seq: give 0 for the start of the session"),
            ("expect", self.revision, "revision: SessionInfo.revision is one"),
        ):
            if value is not None and (type(value) is not int or not 0 <= value < 2**63):
                raise ValueError(f"{name}={quoted(value)} is not a {description}")
        if not isinstance(self.intact_since, SessionInfo | None):
            raise TypeError(f"intact_since is {type(self.intact_since).__name__}: give the result of info()")

    @property
    def needs_session(self) -> bool:
        """True if only an existing session can meet these expectations."""
        return bool(self.last_seq) or (self.revision, self.guard, self.intact_since) != (None, None, None)

    def check(self, key: str, session: "Locked | SessionInfo") -> None:
        """Raise `Conflict` for a session with other numbers; the guard is not checked."""
        last_seq, revision = session.last_seq, session.revision
        if self.last_seq is not None and last_seq != self.last_seq:
            raise Conflict(key, expected=self.last_seq, last_seq=last_seq)
        if self.revision is not None and revision != self.revision:
            raise Conflict(key, expected=self.revision, last_seq=last_seq, revision=revision)
        if self.intact_since is None:
            return
        bound = bound_intact(self.intact_since)
        if not bound["since"] <= revision <= bound["since_limit"] or removed(session) != bound["removed"]:
            message = f"messages of session {quoted(key)} were changed or removed since `intact_since`: read it again"
            raise Conflict(key, expected=self.intact_since.last_seq, last_seq=last_seq, message=message)


def removed(session: "Locked | SessionInfo") -> int:
    """Return a number that removals, edits and compactions change, but appends do not."""
    return session.last_seq - session.message_count - session.record_count


def bound_intact(since: SessionInfo) -> dict[str, int]:
    """Return the values to bind in a statement that needs the messages of an earlier `SessionInfo`.

    A revision starts at a random number, so a slightly higher one is that of the same session.
    """
    return {"since": since.revision, "since_limit": since.revision + 2**20, "removed": removed(since)}


ANYTHING: Final = Expected()


def raise_unmatched(
    connection: AnyConnection, now: Moment, key: str, expected: Expected = ANYTHING, *, tries_left: int = 1
) -> None:
    """Raise the error that explains why a write matched no row of the session.

    If the session is now live and as expected, return, so that the caller tries again. But if no tries are left, raise
    `NotPermitted`, because the database does not allow the role to write the row.
    """
    expected.check(key, info(connection, now, key))
    if expected.guard is not None:
        expected.guard.check(connection, key)
    if not tries_left:
        raise not_permitted(key)


def not_permitted(key: str) -> NotPermitted:
    """Return the error for a session whose rows can be read but not written."""
    return NotPermitted(
        f"session {quoted(key)} exists, but the database did not write to its rows: a row-level security policy or a "
        "trigger prevents it, see `lango-store doctor`"
    )


_alive = Statement(lambda _: sa.select(LIVE).where(of_session(SESSION)))


def exists(connection: AnyConnection, now: Moment, key: str) -> bool:
    """Return True if a live session has this key."""
    rows = _alive.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)})
    return bool(rows) and bool(rows[0][0])


class Locked(NamedTuple):
    """The state of a locked session, which other writers cannot change."""

    last_seq: int
    message_count: int
    record_count: int
    incarnation: int
    revision: int
    last_turn_no: int

    @property
    def state(self) -> tuple[int, int]:
        """A pair that removals, edits and compactions change, but appends do not."""
        return self.incarnation, removed(self)


_lock = Statement(
    lambda _: sa.select(*(SESSION.c[name] for name in Locked._fields)).where(LIVE_SESSION).with_for_update()
)


def lock(connection: AnyConnection, now: Moment, key: str) -> Locked:
    """Lock a live session: other writers wait until the transaction ends."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now)}
    tries = MAX_TRIES
    while not (rows := _lock.run(connection, values)):
        tries -= 1
        raise_unmatched(connection, now, key, tries_left=tries)
    if {*map(type, rows[0])} != {int}:
        for name, stored in zip(Locked._fields, rows[0], strict=True):
            whole_number(key, name, stored)
    return Locked(*rows[0])


_lock_any = Statement(lambda _: sa.update(SESSION).where(of_session(SESSION)).values(revision=SESSION.c.revision))


def lock_any(connection: sa.Connection, key: str) -> None:
    """Lock a session, live or expired, for a change of its rows that its counters do not show.

    The lock is an update of the row, so another transaction with an earlier snapshot fails if it writes to the session.
    """
    _lock_any.run_many(connection, [{"key": key}])


def change(connection: sa.Connection, key: str, values: Mapping[str, Any]) -> None:
    """Change the row and the revision of a locked session; raise `NotPermitted` if nothing was written."""
    changed = {SESSION.c[name]: value for name, value in (REVISED | dict(values)).items()}
    if not connection.execute(sa.update(SESSION).where(of_session(SESSION, key)).values(changed)).rowcount:
        raise_unmatched(connection, BEFORE_ANY_EXPIRY, key, tries_left=0)


_FIELDS: Final = (*SessionFields.__annotations__, "forked_from")
_PARAMETERS: Final = {name: f"session_{name}" for name in _FIELDS}
"""The parameters of fields: the same statement binds columns of messages, of which some have the same names."""
_NULL_FIELDS: Final[dict[str, Any]] = dict.fromkeys(_PARAMETERS.values())
_BOUND: Final = _PARAMETERS | {name: name for name in ("key", "ttl_seconds", "incarnation", "revision")}


def insertion(dialect: Dialect, counts: Mapping[str, Any]) -> Any:
    """Build the insert of a new session with these counters; bind the items of `New.row` and `new_incarnation()`.

    All other columns get the table's defaults, which are cheaper than bound values.
    """
    bound: dict[str, Any] = {name: column(SESSION.c[name], parameter) for name, parameter in _BOUND.items()}
    expires_at = dialect.next_expiry(NOW, bound["ttl_seconds"])
    computed = {"created_at": NOW, "updated_at": NOW, "expires_at": expires_at}
    values: dict[str, Any] = {**bound, **computed, **counts}
    row = sa.select(*values.values())
    return dialect.insert(SESSION).from_select(list(values), row, include_defaults=False)


_insert = Statement(
    lambda dialect: (
        insertion(dialect, {})
        .on_conflict_do_nothing(index_elements=[SESSION.c.key])
        .returning(SESSION.c.created_at, SESSION.c.expires_at, SESSION.c.revision)
    )
)


def check_fields(fields: Mapping[str, Any], kind: type) -> None:
    """Raise TypeError for a name that is not a field of a TypedDict."""
    known = kind.__annotations__  # typing.get_type_hints would take as long as an append
    for name in fields.keys() - known:
        raise TypeError(f"a session has no {quoted(name)}: give {', '.join(known)}")


class NewSession:
    """A session about to be created, encoded.

    Raises:
        InvalidKey: The key cannot be stored.
        InvalidValue: A field cannot be stored.
        TypeError: The TTL is not a timedelta.
        ValueError: The TTL is not between 0 and 100 years.
    """

    def __init__(self, key: str, ttl: timedelta | None, fields: Mapping[str, Any]) -> None:
        self.key = key
        self.ttl = ttl
        self.fields = {name: value for name, value in fields.items() if value is not None}
        fields = {_PARAMETERS[name]: value for name, value in encode_session(self.fields).items()}
        self.row = _NULL_FIELDS | fields | {"key": checked_key(key), "ttl_seconds": seconds(ttl)}


def insert(connection: AnyConnection, now: Moment, new: NewSession) -> SessionInfo | None:
    """Create a session, or return None if a live or an expired session has its key."""
    values = new.row | new_incarnation() | {"now": dialect_of(connection).time(now)}
    rows = _insert.run(connection, values)
    if not rows:
        return None
    created_at, expires_at, revision = rows[0]
    return info_of_new(new, decode_time(created_at), None if expires_at is None else decode_time(expires_at), revision)


def info_of_new(new: NewSession, created_at: datetime, expires_at: datetime | None, revision: int) -> SessionInfo:
    """Return the `SessionInfo` of a session that was just created, without messages."""
    value = SessionInfo(
        key=new.key,
        created_at=created_at,
        updated_at=created_at,
        expires_at=expires_at,
        ttl_seconds=seconds(new.ttl),
        revision=revision,
    )
    return value.model_copy(update=copied(new.fields))


def exists_error(connection: AnyConnection, now: Moment, key: str) -> SessionExists | NotPermitted:
    """Return the error for a key that belongs to a live, an expired or a hidden session."""
    rows = _alive.run(connection, {"key": key, "now": dialect_of(connection).time(now)})
    if rows:
        return SessionExists(key, expired=not rows[0][0])
    return NotPermitted(
        f"the database refuses to create session {quoted(key)}, and this role sees no such session: use another key"
    )


# Change, revive, delete


def _build_update(dialect: Dialect, names: Sequence[str], *, activity: bool, expect: bool) -> sa.Executable:
    values: dict[str, Any] = {name: column(SESSION.c[name], f"new_{name}") for name in names}
    if activity:
        values["updated_at"] = NOW
    values |= REVISED if values or expect else {"revision": SESSION.c.revision}
    which = of_session(SESSION) if names == ("hold",) else LIVE_SESSION  # an expired session can be held until a purge
    statement = sa.update(SESSION).where(which).values({SESSION.c[name]: value for name, value in values.items()})
    if expect:
        statement = statement.where(SESSION.c.revision == number("expect"))
    if "last_consolidated" in names:
        statement = statement.where(SESSION.c.message_count >= values["last_consolidated"])
    return statement.returning(*SESSION_COLUMNS)


@functools.cache
def _update(names: tuple[str, ...], activity: bool, expect: bool) -> Statement:
    return Statement(lambda dialect: _build_update(dialect, names, activity=activity, expect=expect))


def update(
    connection: AnyConnection, now: Moment, key: str, fields: Mapping[str, Any], *, activity: bool, expected: Expected
) -> SessionInfo:
    """Replace these fields of a live session and no others; `updated_at` changes only with `activity`."""
    check_fields(fields, SessionChanges)
    encoded = encode_session(fields)
    consolidated = encoded.get("last_consolidated", 0)
    if not (type(consolidated) is int and 0 <= consolidated < 2**63):
        raise ValueError(f"last_consolidated={quoted(consolidated)} is not a count of messages: give 0 or more")
    statement = _update(tuple(sorted(encoded)), activity, expected.revision is not None)
    values = {f"new_{name}": value for name, value in encoded.items()}
    values |= {"key": checked_key(key), "now": dialect_of(connection).time(now), "expect": expected.revision}
    tries = MAX_TRIES
    while not (rows := _run_write(connection, statement, values)):
        tries -= 1
        count = row_of(connection, now, key)["message_count"]
        if consolidated > count:
            raise ValueError(f"last_consolidated={consolidated} is more than the session's {count} messages")
        raise_unmatched(connection, now, key, expected, tries_left=tries)
    return session_info(rows[0])


def _run_write(connection: AnyConnection, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    with dialect_of(connection).bytes_for_bad_text(connection):  # a row that a write returns cannot be read again
        return statement.run(connection, values)


def _build_touch(dialect: Dialect, *, with_ttl: bool) -> sa.Executable:
    values: dict[str, Any] = {"expires_at": dialect.next_expiry(NOW, SESSION.c.ttl_seconds)}
    if with_ttl:
        ttl = column(SESSION.c.ttl_seconds, "ttl")
        expires_at = IfTimeBound(column(SESSION.c.expires_at, "until"), dialect.next_expiry(NOW, ttl))
        values = {"ttl_seconds": ttl, "expires_at": expires_at}
    return sa.update(SESSION).where(of_session(SESSION)).values(values | REVISED).returning(*SESSION_COLUMNS)


_touch = Statement(lambda dialect: _build_touch(dialect, with_ttl=False))
_touch_with_ttl = Statement(lambda dialect: _build_touch(dialect, with_ttl=True))


def touch(connection: AnyConnection, now: Moment, key: str, ttl: timedelta | None | Unset) -> SessionInfo:
    """Restart a session's TTL, or replace it with `ttl`; this revives an expired session."""
    dialect = dialect_of(connection)
    values: dict[str, Any] = {"key": checked_key(key), "now": dialect.time(now)}
    if ttl is not UNSET:
        values |= {"ttl": seconds(ttl), "until": dialect.time(now + ttl) if now and ttl else None}
    rows = _run_write(connection, _touch if ttl is UNSET else _touch_with_ttl, values)
    if not rows:
        raise_unmatched(connection, BEFORE_ANY_EXPIRY, key, tries_left=0)
    return session_info(rows[0])


NOT_ON_HOLD: Final = SESSION.c.hold.is_(None)
"""Matches sessions that may be deleted."""

_hold = Statement(lambda _: sa.select(SESSION.c.hold).where(of_session(SESSION), ~NOT_ON_HOLD))


def check_hold(connection: AnyConnection, key: str) -> None:
    """Raise `SessionOnHold` if a session has a hold."""
    for (hold,) in _hold.run(connection, {"key": key}):
        raise SessionOnHold(key, hold)


_any = sa.delete(SESSION).where(of_session(SESSION), NOT_ON_HOLD).returning(SESSION.c.key)
_delete_any = Statement(lambda _: _any)
_delete_at_revision = Statement(lambda _: _any.where(SESSION.c.revision == number("expect")))


def delete(connection: AnyConnection, key: str, expected: Expected = ANYTHING) -> bool:
    """Delete a session with all its rows; return False if there is none. Raise `Conflict` or `SessionOnHold`."""
    statement = _delete_any if expected.revision is None else _delete_at_revision
    if statement.run(connection, {"key": checked_key(key), "expect": expected.revision}):
        return True
    if expected.revision is not None:
        with suppress(SessionNotFound):
            raise_unmatched(connection, BEFORE_ANY_EXPIRY, key, expected)
    check_hold(connection, key)
    return False


_delete_expired = Statement(lambda _: sa.delete(SESSION).where(of_session(SESSION), NOT_ON_HOLD, expired_at(NOW)))


def delete_expired(connection: sa.Connection, now: datetime, key: str) -> None:
    """Delete a session if it has expired and has no hold."""
    _delete_expired.run_many(connection, [{"key": checked_key(key), "now": dialect_of(connection).time(now)}])
