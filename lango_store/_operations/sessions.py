"""Sessions as rows of their own: look up, lock, create; and why a write met none."""

from __future__ import annotations

import secrets
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import BEFORE_ANY_EXPIRY, LIVE, LIVE_SESSION, NOW, SESSION, column, of_session
from lango_store._operations.rows import SESSION_COLUMNS, decode_session, encode_session, session_value, whole_number
from lango_store._rows.encoding import checked_key, decode_time
from lango_store._values.model import SessionFields, SessionInfo
from lango_store.errors import (
    Conflict,
    LangoStoreError,
    NotPermitted,
    SessionExists,
    SessionExpired,
    SessionNotFound,
)

MAX_TTL: Final = timedelta(days=36_525)

TRIES: Final = 3
"""How often a write is tried that meets no row though its session is live: somebody may have revived it just now."""


# Values in and out


def seconds(ttl: timedelta | None) -> float | None:
    """Check a TTL and return it in seconds."""
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta):  # a number would be seconds for some, minutes for others
        raise TypeError(f"ttl is {type(ttl).__name__}: give a timedelta, such as timedelta(minutes=30), or None")
    if not timedelta(0) < ttl <= MAX_TTL:
        raise ValueError(f"ttl {ttl} is not between 0 and 100 years: give None for a session that never expires")
    return ttl.total_seconds()


# One session

_time = Statement(lambda _: sa.select(NOW))


def server_time(connection: AnyConnection) -> datetime:
    """Return the time by the database's clock."""
    return decode_time(_time.run(connection, {"now": None})[0][0])


def new_life() -> dict[str, int]:
    """Return two random numbers that tell a session that is made now from those that had its key before.

    Its writes are counted from `revision` on, which is small enough to be a whole number in JSON for everybody.
    """
    return {"incarnation": secrets.randbits(63), "revision": secrets.randbits(48)}


REVISED: Final = {"revision": SESSION.c.revision + sa.literal_column("1", sa.BigInteger())}
"""What every write to a session changes."""

LIFE: Final = [LIVE, SESSION.c.incarnation, *SESSION_COLUMNS]
"""What `decoded_life` reads: whether a session lives, which life of its key it is, and what `decode_session` reads."""

_select = Statement(lambda _: sa.select(*LIFE).where(of_session(SESSION)))


def row_of(connection: AnyConnection, now: Moment, key: str) -> dict[str, Any]:
    """Return a live session's row; `SessionNotFound` or `SessionExpired` if there is none."""
    return life_of(connection, now, key)[1]


def life_of(connection: AnyConnection, now: Moment, key: str) -> tuple[int, dict[str, Any]]:
    """Return which life of its key a live session is, and its row."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now)}
    return decoded_life(key, _select.run(connection, values))


def decoded_life(key: str, rows: Sequence[Sequence[Any]]) -> tuple[int, dict[str, Any]]:
    """Decode the row that was looked up; `SessionNotFound` or `SessionExpired` if there is none that lives."""
    if not rows:
        raise SessionNotFound(key)
    live, incarnation, *row = rows[0]
    value = decode_session(row)
    if not live:
        raise SessionExpired(key, value["expires_at"])
    return incarnation, value


def any_row_of(connection: AnyConnection, key: str) -> dict[str, Any] | None:
    """Return a session's row, expired or not; None if there is none."""
    rows = _select.run(connection, {"key": key, "now": dialect_of(connection).time(BEFORE_ANY_EXPIRY)})
    return decoded_life(key, rows)[1] if rows else None


def info(connection: AnyConnection, now: Moment, key: str) -> SessionInfo:
    """Return a live session without its messages."""
    return session_value(SessionInfo, row_of(connection, now, key))


@dataclass(frozen=True)
class Expected:
    """What a session has to be at for a write: its `last_seq`, its `revision`, or both; None is whatever it is."""

    last_seq: int | None = None
    revision: int | None = None

    def __post_init__(self) -> None:
        for name, given, what in (
            ("after", self.last_seq, "seq: give 0 for the start of the session"),
            ("expect", self.revision, "revision: SessionInfo.revision is one"),
        ):
            if given is not None and (type(given) is not int or not 0 <= given < 2**63):
                raise ValueError(f"{name}={given!r} is not a {what}")

    @property
    def needs_session(self) -> bool:
        """Whether these expectations can only hold for a session that already exists."""
        return bool(self.last_seq) or self.revision is not None

    def missed(self, key: str) -> Conflict:
        """Return the error for a write that would make its session, and needs one that was there before."""
        name, value = ("after", self.last_seq) if self.last_seq else ("expect", self.revision)
        return Conflict(
            key,
            expected=value or 0,
            last_seq=0,
            message=f"there is no session {key!r} that {name}={value} could be of: leave it out to make one",
        )

    def check(self, key: str, last_seq: int, revision: int) -> None:
        """Raise `Conflict` for a session that is not there."""
        if self.last_seq is not None and last_seq != self.last_seq:
            raise Conflict(key, expected=self.last_seq, last_seq=last_seq)
        if self.revision is not None and revision != self.revision:
            raise Conflict(key, expected=self.revision, last_seq=last_seq, revision=revision)


ANYTHING: Final = Expected()


def refuse(
    connection: AnyConnection, now: Moment, key: str, expected: Expected = ANYTHING, *, tries_left: int = 1
) -> None:
    """Raise why a write to the session met no row; returns if there is no reason left by now and it may be tried again.

    `NotPermitted` after the last try: the database does not let the row be written.
    """
    value = row_of(connection, now, key)
    expected.check(key, value["last_seq"], value["revision"])
    if not tries_left:
        raise not_permitted(key)


def not_permitted(key: str) -> NotPermitted:
    """Return the error for rows of a session that can be read, and that the database does not write."""
    return NotPermitted(
        f"session {key!r} exists, but the database did not write to its rows: a row-level security policy or a trigger "
        "keeps them, see `lango-store doctor`"
    )


_alive = Statement(lambda _: sa.select(LIVE).where(of_session(SESSION)))


def exists(connection: AnyConnection, now: Moment, key: str) -> bool:
    """Return whether a live session has this key."""
    rows = _alive.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)})
    return bool(rows) and bool(rows[0][0])


class Locked(NamedTuple):
    """What a session is at while nobody else writes to it."""

    last_seq: int
    message_count: int
    record_count: int
    incarnation: int
    revision: int
    last_turn_no: int

    @property
    def state(self) -> tuple[int, int]:
        """What every removal and compaction changes, and no append: see `messages.load_life`."""
        return self.incarnation, self.last_seq - self.message_count - self.record_count


_lock = Statement(
    lambda _: sa.select(*(SESSION.c[name] for name in Locked._fields)).where(LIVE_SESSION).with_for_update()
)


def lock(connection: AnyConnection, now: Moment, key: str) -> Locked:
    """Lock a live session: other writers wait until the transaction ends."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now)}
    tries = TRIES
    while not (rows := _lock.run(connection, values)):
        tries -= 1
        refuse(connection, now, key, tries_left=tries)
    return Locked(*(whole_number(key, name, stored) for name, stored in zip(Locked._fields, rows[0], strict=True)))


def change(connection: sa.Connection, key: str, values: Mapping[str, Any]) -> None:
    """Change the row of a locked session; `NotPermitted` if the database keeps it as it is."""
    statement = (
        sa.update(SESSION)
        .where(of_session(SESSION, key))
        .values({SESSION.c[n]: v for n, v in (REVISED | dict(values)).items()})
    )
    if not connection.execute(statement).rowcount:
        raise not_written(connection, key)


def not_written(connection: AnyConnection, key: str) -> LangoStoreError:
    """Return why a write to a session, expired or not, met no row: there is none, or the database keeps it."""
    return SessionNotFound(key) if any_row_of(connection, key) is None else not_permitted(key)


_UNSAID: Final[dict[str, Any]] = dict.fromkeys((*typing.get_type_hints(SessionFields), "forked_from"))
_BOUND: Final = ("key", *_UNSAID, "ttl_seconds", "incarnation", "revision")


def insertion(dialect: Dialect, counts: Mapping[str, Any]) -> Any:
    """Insert a new session with these counters; binds `encoded` and `new_life`.

    What is left out the table's defaults say, which cost an append less than values that are bound.
    """
    given: dict[str, Any] = {name: column(SESSION.c[name]) for name in _BOUND}
    expires_at = dialect.next_expiry(NOW, given["ttl_seconds"])
    computed = {"created_at": NOW, "updated_at": NOW, "expires_at": expires_at}
    values: dict[str, Any] = {**given, **computed, **counts}
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
    known = tuple(typing.get_type_hints(kind))
    for name in fields.keys() - known:
        raise TypeError(f"a session has no field {name!r}: give {', '.join(known)}")


class New:
    """A session about to be created, encoded.

    Raises:
        InvalidKey: The key cannot be stored.
        InvalidValue: A field cannot be stored.
    """

    def __init__(self, key: str, ttl: timedelta | None, fields: Mapping[str, Any]) -> None:
        self.key = key
        self.ttl = ttl
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.row = _UNSAID | encode_session(self.fields) | {"key": checked_key(key), "ttl_seconds": seconds(ttl)}


def insert(connection: AnyConnection, now: Moment, new: New) -> SessionInfo | None:
    """Create a session; None if its key is taken, by a live or an expired one."""
    values = new.row | new_life() | {"now": dialect_of(connection).time(now)}
    rows = _insert.run(connection, values)
    if not rows:
        return None
    created_at, expires_at, revision = rows[0]
    return made(new, decode_time(created_at), None if expires_at is None else decode_time(expires_at), revision)


def made(new: New, created_at: datetime, expires_at: datetime | None, revision: int) -> SessionInfo:
    """Return the value of a session that was just made, without messages."""
    value = SessionInfo(
        key=new.key,
        created_at=created_at,
        updated_at=created_at,
        expires_at=expires_at,
        ttl_seconds=seconds(new.ttl),
        revision=revision,
    )
    return value.model_copy(update=new.fields)


def exists_error(connection: AnyConnection, now: Moment, key: str) -> SessionExists:
    """Return the error for a key that is taken, saying whether its session has expired."""
    return SessionExists(key, expired=not exists(connection, now, key))
