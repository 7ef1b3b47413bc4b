"""Waiting for somebody to wait: a test goes on when a statement waits for a lock that another transaction has."""

import sqlalchemy as sa
from support.databases import CITUS

SOMEBODY_WAITS = (
    f"SELECT 1 FROM {'citus' if CITUS else 'pg'}_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
"""Whether a statement waits for another's lock, on whatever server."""


def until_one_waits(engine: sa.Engine) -> None:
    """Come back when a statement waits for another's lock."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(100_000):
            if connection.exec_driver_sql(SOMEBODY_WAITS).first():
                return
    raise AssertionError("nobody waits for a lock")
