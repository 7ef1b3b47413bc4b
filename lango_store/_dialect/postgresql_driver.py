"""What is set on psycopg's connections, and put back at the end of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect.base import ensure_transaction

READ_COMMITTED: Final = 2  # as psycopg numbers them
REPEATABLE_READ: Final = 3
_ACTIVE: Final = 1


def is_answering(driver: Any) -> bool:
    """Whether the server's answer to a statement is not read to its end."""
    return bool(driver.pgconn.transaction_status == _ACTIVE)


@contextmanager
def read_committed(connection: sa.Connection) -> Iterator[None]:
    """Commit the writes of a block together, whatever isolation level the engine has."""
    # Our statements take row locks and look again: READ COMMITTED is enough, and fails nobody who waited.
    with isolated(connection, READ_COMMITTED), ensure_transaction(connection):
        yield


@contextmanager
def isolated(connection: sa.Connection, level: int, *, read_only: bool | None = None) -> Iterator[None]:
    """Let the driver begin its next transaction at a level; one that a listener has begun stays as it is."""
    # Settings of the driver, sent with its BEGIN: no round trip, and before a host's listener runs its query.
    driver: Any = connection.connection.dbapi_connection
    if driver.pgconn.transaction_status:
        yield
        return
    settings = {} if read_only is None else {"read_only": read_only}
    with changed(driver, autocommit=False, isolation_level=level, **settings):
        try:
            yield
        finally:
            if not driver.closed and driver.pgconn.transaction_status:
                driver.rollback()


@contextmanager
def unbounded(connection: sa.Connection) -> Iterator[None]:
    """Let a longer change wait for its server without end, and prepare no statement."""
    # Behind a pooler, a prepared statement would stay with another connection to the server.
    driver: Any = connection.connection.dbapi_connection
    patience = {"patience": None} if hasattr(driver, "patience") else {}  # where there is a `statement_timeout`
    with changed(driver, prepare_threshold=None, **patience):
        yield


@contextmanager
def changed(driver: Any, **settings: Any) -> Iterator[None]:
    """Change settings of the driver for a block; a connection that is closed or interrupted keeps them."""
    before = {name: getattr(driver, name) for name in settings}
    _set(driver, settings)
    try:
        yield
    finally:
        if not driver.closed and not is_answering(driver):
            _set(driver, before)


def set_config(connection: sa.Connection, name: str, value: object, *, local: bool = True) -> None:
    """Change a setting of the server, for this transaction only or for the connection."""
    connection.execute(sa.select(sa.func.set_config(name, str(value), local)))


def _set(driver: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if getattr(driver, name) != value:
            setattr(driver, name, value)
