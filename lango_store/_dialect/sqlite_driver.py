"""How a transaction that writes begins on sqlite3's connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from lango_store._dialect.base import ensure_transaction


@contextmanager
def immediate(connection: sa.Connection) -> Iterator[None]:
    """Commit the writes of a block together; nobody else writes meanwhile."""
    with ensure_transaction(connection):
        driver: Any = connection.connection.driver_connection
        if getattr(driver, "autocommit", None) is False and driver.in_transaction:
            # Python 3.12 on: the driver has begun a deferred transaction, which cannot wait for the write lock
            # once it has read.
            connection.exec_driver_sql("ROLLBACK")
        begin_immediate(connection)
        yield


def begin_immediate(connection: sa.Connection) -> None:
    """Take the write lock, unless a transaction has begun."""
    # A stock driver begins a transaction at the first INSERT, but not at a SAVEPOINT, whose release would then commit.
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
