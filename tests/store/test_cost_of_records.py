"""Records cost an append and a load no statement, and a long log of them no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import contents, message
from support.recorded import SAID, noted, record
from support.statements import Counts, counted, watched

from lango_store import DatabaseUnavailable, Store, create_engine


def test_a_load_of_a_log_with_records_is_two_round_trips(one_connection: sa.Engine, tmp_path: Path) -> None:
    with Store(one_connection) as store:
        noted(store)
        with counted(one_connection, tmp_path) as counts:
            assert contents(store.get("k").messages) == SAID
        assert counts == Counts(2, 2)


def cost_of_the_end(engine: sa.Engine, number: int) -> tuple[int, int]:
    """Say what the last 50 of a log cost whose every fourth row is a message: rows and pages, or SQLite's steps."""
    with Store(engine) as store:
        store.create("k", messages=[each for n in range(number) for each in (message(n), *[record("x" * 300)] * 3)])
        with watched(engine) as statements:
            assert contents(store.messages("k", last=50)) == list(range(number - 50, number))
    (statement,) = statements
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        if engine.dialect.name == "sqlite":
            steps: list[int] = []
            driver.set_progress_handler(lambda: steps.append(1), 1)
            driver.execute(statement).fetchall()
            driver.set_progress_handler(None, 0)
            return len(steps), 0
        connection.exec_driver_sql("ANALYZE lango_message")  # as autovacuum does
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        values = {"key": "k", "limit": 50, "now": None}
        plan = connection.exec_driver_sql(explained, values).scalar_one()[0]["Plan"]
        (walk,) = [part for part in _parts(plan) if part.get("Index Name") == "pk_lango_message"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return walk["Actual Rows"] + walk["Rows Removed by Filter"], pages


def _parts(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(part for below in plan.get("Plans", []) for part in _parts(below))]


@not_on_a_cluster("each part of a table has a plan of its own there")
def test_the_end_of_a_log_of_records_costs_no_more_the_longer_the_log_is(make_database: MakeDatabase) -> None:
    engines = [create_engine(make_database()) for _ in range(2)]
    short, long = map(cost_of_the_end, engines, (500, 2_500))
    for engine in engines:
        engine.dispose()
    assert long[0] == pytest.approx(short[0], rel=0.02)
    assert long[1] <= short[1] + 3  # the index is a level deeper
    if engines[0].dialect.name == "postgresql":
        assert short[0] == 200  # four rows for each message


def test_what_a_large_record_holds_is_not_read_with_the_messages(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    large = "r" * 100_000
    with Store(url) as store:
        store.create("k", messages=[message("first"), record(large), message("last"), record(large)])
    path = Path(sa.make_url(url).database or "")
    pages = path.read_bytes()
    holding = b"r" * 4_000
    damaged = [b"\xff" * 4 + each[4:] if holding in each else each for each in _pages(pages)]
    assert sum(holding in each for each in damaged) > 40
    path.write_bytes(b"".join(damaged))
    with Store(url) as store:
        with pytest.raises(DatabaseUnavailable, match="malformed"):
            store.conversation("k").all_messages()
        assert contents(store.get("k").messages) == contents(store.messages("k", last=2)) == ["first", "last"]
        assert len(store.conversation("k").history()) == 2
        last = store.conversation("k").last_message()
        assert last is not None
        assert last.content == "last"


def _pages(file: bytes, size: int = 4096) -> list[bytes]:
    return [file[at : at + size] for at in range(0, len(file), size)]
