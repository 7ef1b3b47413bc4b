"""The statements that each method sends to PostgreSQL, and the tables that they read without a session key."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from support.every_method import CallsByMethod, calls_of, prepare

from lango_store import Store, create_engine
from lango_store.tables import FEATURE_TABLE, Base

KEYS: Final = {
    table.name: next(iter(table.primary_key.columns)).name
    for table in Base.metadata.sorted_tables
    if table.name != FEATURE_TABLE  # its rows belong to no session
}
"""The column that names the session of a row, by table."""

Sent = tuple[str, Any]
"""A statement and its parameters."""


def fill(store: Store, cold: Path) -> None:
    """Delete all sessions, and create those that the calls need."""
    for info in list(store.iter_sessions(expired=None)):
        store.delete(info.key)
    prepare(store, cold)


def every_call(calls: CallsByMethod) -> list[tuple[type, str, int]]:
    """Return the class, the method and the index of each call."""
    return [(kind, name, way) for kind in calls for name in calls[kind] for way in range(len(calls[kind][name]))]


def sent(url: str, folder: Path, without: Collection[str]) -> dict[str, list[Sent]]:
    """Return the statements that each method sends, with their parameters."""
    seen: list[Sent] = []

    class RecordingCursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            seen.append((query, params))
            return super().execute(query, params, **options)

        def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
            rows = list(params_seq)
            seen.append((query, rows[0]))
            super().executemany(query, rows, **options)

    def record(driver: Any, _: object) -> None:
        driver.cursor_factory = RecordingCursor

    engine = create_engine(url)
    sa.event.listen(engine, "connect", record)
    statements: dict[str, list[Sent]] = {}
    cold = folder / "cold.db"
    with Store(engine) as store:
        fill(store, cold)
        calls = calls_of(store, cold)
        for kind, name, way in every_call(calls):
            if name in without:
                continue
            seen.clear()
            calls[kind][name][way]()
            ours = [each for each in seen if each[0].split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")]
            statements.setdefault(f"{kind.__name__}.{name}", []).extend(ours)
            if not all(text.startswith("SELECT") for text, _ in ours):
                fill(store, cold)
                calls = calls_of(store, cold)
    engine.dispose()
    return statements


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the tables that a plan reads, each with its conditions."""
    if plan.get("Relation Name") in KEYS and "Scan" in plan["Node Type"]:
        yield plan["Relation Name"], " ".join(plan.get(name, "") for name in ("Index Cond", "Recheck Cond", "Filter"))
    for part in plan.get("Plans", ()):
        yield from scans(part)


def tables_without_key(connection: psycopg.Connection[Any], text: str, params: Any) -> set[str]:
    """Return the tables that a statement reads without a session key, according to its query plan."""
    (row,) = connection.execute(f"EXPLAIN (FORMAT JSON) {text}", params).fetchall()
    return {table for table, conditions in scans(row[0][0]["Plan"]) if f"({KEYS[table]} = " not in conditions}


def methods_reading_any_session(url: str, folder: Path, *, without: Collection[str] = ()) -> set[str]:
    """Call every method, and return those with a statement that does not select a session by its key."""
    statements = sent(url, folder, without)
    with psycopg.connect(url.replace("postgresql+psycopg:", "postgresql:")) as connection:
        for way in ("seqscan", "hashjoin", "mergejoin"):  # otherwise, the planner reads small tables whole
            connection.execute(f"SET enable_{way} = off")
        return {
            method
            for method, sent_by_method in statements.items()
            if any(tables_without_key(connection, *each) for each in sent_by_method)
        }
