"""Statements that reach the database, collected and counted."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa


@contextmanager
def watched(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect the statements that reach the driver through new connections of this engine.

    Only new connections are observed: a checkout listener of the pool would make the store take another path.
    """
    seen: list[str] = []

    class Watching(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            seen.append(query)
            return super().execute(query, *args, **options)

        def executemany(self, query: Any, *args: Any, **options: Any) -> None:
            seen.append(query)
            super().executemany(query, *args, **options)

    class WatchingServer(psycopg.ServerCursor[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            seen.append(query)
            return super().execute(query, *args, **options)

    def trace(text: str) -> None:
        # SQLite repeats a write for each trigger that it fires.
        if seen[-1:] != [text] or "lango_session" not in text or text.startswith("SELECT"):
            seen.append(text)

    def watch(driver: Any, _: object) -> None:
        if engine.dialect.name == "sqlite":
            driver.set_trace_callback(trace)
        else:
            driver.cursor_factory, driver.server_cursor_factory = Watching, WatchingServer

    engine.dispose()
    sa.event.listen(engine, "connect", watch)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "connect", watch)
        engine.dispose()


@dataclass
class Counts:
    """The number of statements of a call, and of waits for the server."""

    statements: int = 0
    round_trips: int = 0


@contextmanager
def counted(engine: sa.Engine, folder: Path) -> Iterator[Counts]:
    """Count what reaches the server through an engine of one connection: statements, and waits for an answer."""
    counts = Counts()
    with watched(engine) as statements, (folder / "trace").open("w") as file:
        with engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
        statements.clear()
        driver.pgconn.trace(file.fileno())
        yield counts
        driver.pgconn.untrace()
        counts.statements = len(statements)
    counts.round_trips = len(re.findall(r"\tF\t\d+\t(?:Sync|Query)\b", (folder / "trace").read_text()))


def plan_of(engine: sa.Engine, statement: str, filters: dict[str, Any]) -> str:
    """Return how the database runs a statement that lists sessions."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
            return "\n".join(str(row[-1]) for row in rows)
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        values = {"now": moment, "limit": 21, "cursor_time": moment, "cursor_key": "chat:5"} | filters
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", values))
