"""Sessions as rows of their own: change, revive, delete."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, WhereGiven, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE_SESSION, NOW, SESSION, column, number, of_session
from lango_store._operations.rows import SESSION_COLUMNS, decode_session, encode_session, session_value
from lango_store._operations.sessions import (
    ANYTHING,
    REVISED,
    TRIES,
    Expected,
    any_row_of,
    check_fields,
    not_written,
    refuse,
    row_of,
    seconds,
)
from lango_store._rows.encoding import checked_key
from lango_store._values.model import UNSET, SessionChanges, SessionInfo, Unset
from lango_store.tables import expired_at


def _build_update(dialect: Dialect, names: Sequence[str], *, activity: bool, expect: bool) -> sa.Executable:
    values: dict[str, Any] = {name: column(SESSION.c[name], f"new_{name}") for name in names}
    if activity:
        values["updated_at"] = NOW
    values |= REVISED if values or expect else {"revision": SESSION.c.revision}
    statement = (
        sa.update(SESSION).where(LIVE_SESSION).values({SESSION.c[name]: value for name, value in values.items()})
    )
    if expect:
        statement = statement.where(SESSION.c.revision == number("expect"))
    if "last_consolidated" in names:
        statement = statement.where(SESSION.c.message_count >= values["last_consolidated"])
    return statement.returning(*SESSION_COLUMNS)


@functools.cache
def _update(names: tuple[str, ...], activity: bool, expect: bool) -> Statement:
    return Statement(lambda dialect: _build_update(dialect, names, activity=activity, expect=expect))


def update(
    connection: AnyConnection,
    now: Moment,
    key: str,
    fields: Mapping[str, Any],
    *,
    activity: bool,
    expected: Expected,
) -> SessionInfo:
    """Replace fields of a live session; what is left out stays, `updated_at` too unless this is activity."""
    check_fields(fields, SessionChanges)
    given = encode_session(fields)
    consolidated = given.get("last_consolidated")
    if consolidated is not None and not (type(consolidated) is int and 0 <= consolidated < 2**63):
        raise ValueError(f"last_consolidated={consolidated!r} is not a count of messages: give 0 or more")
    statement = _update(tuple(sorted(given)), activity, expected.revision is not None)
    values = {f"new_{name}": value for name, value in given.items()}
    values |= {"key": checked_key(key), "now": dialect_of(connection).time(now), "expect": expected.revision}
    tries = TRIES
    while not (rows := _written(connection, statement, values)):
        tries -= 1
        count = row_of(connection, now, key)["message_count"]
        if consolidated is not None and consolidated > count:
            raise ValueError(f"last_consolidated={consolidated} is more than the session's {count} messages")
        refuse(connection, now, key, expected, tries_left=tries)
    return session_value(SessionInfo, decode_session(rows[0]))


def _written(connection: AnyConnection, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    with dialect_of(connection).bytes_for_bad_text(connection):  # what was written cannot be read a second time
        return statement.run(connection, values)


def _build_touch(dialect: Dialect, *, anew: bool, activity: bool) -> sa.Executable:
    values: dict[str, Any] = {"expires_at": dialect.next_expiry(NOW, SESSION.c.ttl_seconds)}
    if anew:
        ttl = column(SESSION.c.ttl_seconds, "ttl")
        expires_at = WhereGiven(column(SESSION.c.expires_at, "until"), dialect.next_expiry(NOW, ttl))
        values = {"ttl_seconds": ttl, "expires_at": expires_at}
    if activity:
        values["updated_at"] = NOW
    return sa.update(SESSION).where(of_session(SESSION)).values(values | REVISED).returning(*SESSION_COLUMNS)


_touch = {
    (anew, activity): Statement(lambda d, a=anew, b=activity: _build_touch(d, anew=a, activity=b))  # type: ignore[misc]
    for anew in (False, True)
    for activity in (False, True)
}


def touch(
    connection: AnyConnection, now: Moment, key: str, ttl: timedelta | None | Unset, *, activity: bool
) -> SessionInfo:
    """Move a session's expiry to a TTL from now, its own if none is given; revives an expired session."""
    dialect = dialect_of(connection)
    values: dict[str, Any] = {"key": checked_key(key), "now": dialect.time(now)}
    if ttl is not UNSET:
        values |= {"ttl": seconds(ttl), "until": dialect.time(now + ttl) if now and ttl else None}
    rows = _written(connection, _touch[ttl is not UNSET, activity], values)
    if not rows:
        raise not_written(connection, key)
    return session_value(SessionInfo, decode_session(rows[0]))


_any = sa.delete(SESSION).where(of_session(SESSION)).returning(SESSION.c.key)
_delete_any = Statement(lambda _: _any)
_delete_at_revision = Statement(lambda _: _any.where(SESSION.c.revision == number("expect")))


def delete(connection: AnyConnection, key: str, expected: Expected = ANYTHING) -> bool:
    """Delete a session and all that belongs to it; False if there was none."""
    statement = _delete_any if expected.revision is None else _delete_at_revision
    if statement.run(connection, {"key": checked_key(key), "expect": expected.revision}):
        return True
    if expected.revision is not None:
        found = any_row_of(connection, key)
        if found is not None:
            expected.check(key, found["last_seq"], found["revision"])
    return False


def delete_expired(connection: sa.Connection, now: datetime, key: str) -> None:
    """Delete a session if it has expired."""
    connection.execute(sa.delete(SESSION).where(of_session(SESSION, checked_key(key)), expired_at(now)))
