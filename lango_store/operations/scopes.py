"""Whose values a scope holds: those of the session with that key if there is one, else values that sessions share.

A scope has one meaning at a time: no session is made under the key of a shared scope that holds values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from lango_store.dialect import AnyConnection, Dialect, dialect_of
from lango_store.errors import InvalidKey
from lango_store.operations.binds import SESSION, VALUE, key_column, of_session, of_sessions
from lango_store.statement import Statement

_any_session: Final = SESSION.alias("any_session")
_shared: Final = sa.exists().where(of_session(VALUE), VALUE.c.session_key.is_(None))

IS_OF_A_SESSION: Final = sa.exists().where(of_session(_any_session))
"""Whether a session, live or expired, has the bound key."""

IS_NOT_SHARED: Final = ~_shared
"""Whether no value of the scope that is the bound key is shared. More would cost an append that makes sessions more."""


def is_of_no_session(scopes: sa.ColumnElement[Sequence[str]]) -> sa.ColumnElement[bool]:
    """Whether no session has one of these keys, an array of them."""
    return ~sa.exists().where(key_column(_any_session) == sa.any_(scopes))


_is_shared = Statement(lambda _: sa.select(sa.and_(_shared, ~IS_OF_A_SESSION)))
_is_of_a_session = Statement(lambda _: sa.select(IS_OF_A_SESSION))


_adopt = Statement(
    lambda _: (
        sa.update(VALUE)
        .where(of_session(VALUE), VALUE.c.session_key.is_(None), IS_OF_A_SESSION)
        .values(session_key=VALUE.c.scope)
        .returning(sa.literal_column("1"))
    )
)


def adopt(connection: AnyConnection, key: str) -> None:
    """Make values the session's own that were set while they were shared, at the moment in which it was made."""
    _adopt.run(connection, {"key": key})


_ADRIFT: Final = sa.delete(VALUE).where(VALUE.c.session_key.is_(None))
"""What no foreign key deletes under a session's key: values that were set at the moment in which it was made."""


def _left(dialect: Dialect) -> sa.Delete:
    """Delete what no foreign key deletes of sessions' values."""
    return _ADRIFT if dialect.values_follow else sa.delete(VALUE)


_drop_left = Statement(lambda dialect: _left(dialect).where(of_session(VALUE)).returning(sa.literal_column("1")))


def dropped_with(dialect: Dialect, gone: sa.CTE) -> sa.CTE:
    """Delete the values that a foreign key would leave of sessions, in the statement that deletes these."""
    return _ADRIFT.where(dialect.key_in(VALUE.c.scope, sa.select(gone.c.key))).cte("adrift")


def drop_left(connection: AnyConnection, key: str) -> None:
    """Delete the values that are left of a session that was just deleted."""
    _drop_left.run(connection, {"key": key})


def drop_all_left(connection: sa.Connection, keys: Sequence[str]) -> None:
    """Delete the values that are left of sessions that were just deleted."""
    if keys:
        connection.execute(_left(dialect_of(connection)).where(of_sessions(VALUE, keys)))


def is_shared(connection: AnyConnection, key: str) -> bool:
    """Return whether values stand in a scope that is not a session's."""
    return bool(_is_shared.run(connection, {"key": key})[0][0])


def is_of_a_session(connection: AnyConnection, scope: str) -> bool:
    """Return whether a scope is the key of a session, live or expired."""
    return bool(_is_of_a_session.run(connection, {"key": scope})[0][0])


def refuse_shared(connection: AnyConnection, key: str) -> None:
    """Raise `InvalidKey` for the key of a new session that is the scope of shared values."""
    if is_shared(connection, key):
        raise InvalidKey(
            f"session key: {key!r} is a scope of values that sessions share: give the session another key, "
            f"or drop_values({key!r}) first"
        )


def refuse_sessions(connection: AnyConnection, scopes: Sequence[str]) -> None:
    """Raise `InvalidKey` for a scope that is the key of a session, which another session does not write to."""
    for scope in scopes:
        if is_of_a_session(connection, scope):
            raise InvalidKey(
                f"scope: {scope!r} is the key of another session: set its values with set_values({scope!r}, …)"
            )
