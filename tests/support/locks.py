"""Waiting until a statement waits for a lock of another transaction, or threads for a connection."""

import threading
from typing import Any

import sqlalchemy as sa
from support.databases import CITUS

SOMEBODY_WAITS = (
    f"SELECT 1 FROM {'citus' if CITUS else 'pg'}_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
"""Queries for statements that wait for a lock, by database."""


def until_one_waits(engine: sa.Engine) -> None:
    """Return when a statement waits for a lock of another transaction."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(100_000):
            if connection.exec_driver_sql(SOMEBODY_WAITS).first():
                return
    raise AssertionError("no statement waits for a lock")


def wait_for_waiters(engine: sa.Engine, number: int) -> None:
    """Return when this number of threads wait for a connection of the pool."""
    queue: Any = engine.pool._pool  # type: ignore[attr-defined]
    while queue._waiting < number:
        threading.Event().wait(0.001)
