"""What a call of `LangoSession` costs on PostgreSQL: statements and round trips, counted on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agents import Usage
from support.databases import MakeDatabase
from support.statements import Counts, counted, watched

from lango_store import Message, Store
from lango_store.integrations.openai_agents import LangoSession

from .responses import CALL_OSLO, EXCHANGE, QUESTION, REASONING, Item


class Run:
    def __init__(self) -> None:
        self.usage = Usage()


def count(engine: sa.Engine, folder: Path, call: Callable[[LangoSession], Awaitable[Any]], *before: Item) -> Counts:
    """Count what a call sends after `before` was added, on a connection that has prepared nothing for it."""

    async def main() -> Counts:
        with Store(engine) as store:
            session = LangoSession("k", store)
            await LangoSession("other", store).add_items([QUESTION])
            await session.add_items(list(before))
            with counted(engine, folder) as counts:
                await call(session)
            return counts

    return asyncio.run(main())


BATCHES = [[QUESTION], [REASONING], [CALL_OSLO], EXCHANGE, EXCHANGE * 150]


@pytest.mark.parametrize("before", [[], EXCHANGE], ids=["the first", "a later one"])
@pytest.mark.parametrize("batch", BATCHES, ids=["one", "a record", "a call", "several", "a thousand"])
def test_adding_items_is_one_statement_and_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, before: list[Item], batch: list[Item]
) -> None:
    counts = count(one_connection, tmp_path, lambda session: session.add_items(batch), *before)
    assert counts == Counts(1, 1)


@pytest.mark.parametrize("before", [[], EXCHANGE], ids=["the first", "a later one"])
def test_adding_items_with_what_they_cost_is_no_more(
    one_connection: sa.Engine, tmp_path: Path, before: list[Item]
) -> None:
    async def add(session: LangoSession) -> None:
        await session.add_items(EXCHANGE, wrapper=wrapper)

    run = Run()
    wrapper: Any = run

    async def main() -> Counts:
        with Store(one_connection) as store:
            session = LangoSession("k", store)
            await session.add_items(before)
            await session.get_items(wrapper=wrapper)
            run.usage.add(Usage(requests=1, input_tokens=7))
            with counted(one_connection, tmp_path) as counts:
                await add(session)
            assert store.conversation("k").total_usage() == {"requests": 1, "input_tokens": 7}
            return counts

    assert asyncio.run(main()) == Counts(1, 1)


def test_a_resumed_run_looks_once_for_what_is_stored_of_it(one_connection: sa.Engine, tmp_path: Path) -> None:
    run = Run()
    wrapper: Any = run
    run.usage.add(Usage(requests=1, total_tokens=7))

    async def main() -> list[Counts]:
        with Store(one_connection) as store:
            session, found = LangoSession("k", store), []
            store.conversation("k").save_turn([Message.user("a")], {"requests": 1, "total_tokens": 7}, create=True)
            for _ in range(2):
                with counted(one_connection, tmp_path) as counts:
                    await session.add_items(EXCHANGE, wrapper=wrapper)
                found.append(counts)
            return found

    first, later = asyncio.run(main())
    assert first.statements == 3
    assert later == Counts(1, 1)


@pytest.mark.parametrize("before", [EXCHANGE, EXCHANGE * 50], ids=["some", "many"])
def test_reading_the_last_items_is_one_statement_and_all_are_two(
    one_connection: sa.Engine, tmp_path: Path, before: list[Item]
) -> None:
    assert count(one_connection, tmp_path, lambda session: session.get_items(3), *before) == Counts(1, 1)
    assert count(one_connection, tmp_path, lambda session: session.get_items(), *before) == Counts(2, 2)


def test_reading_no_items_asks_for_nothing(one_connection: sa.Engine, tmp_path: Path) -> None:
    assert count(one_connection, tmp_path, lambda session: session.get_items(0), *EXCHANGE) == Counts(0, 0)


def test_the_last_items_are_read_without_those_before(one_connection: sa.Engine, tmp_path: Path) -> None:
    """Of 5,000 rows the database looks at as many as are wanted, and at the session's own."""

    async def main() -> None:
        with Store(one_connection) as store:
            store.append_messages("k", [Message.user("a" * 100) for _ in range(5_000)], create=True)
            with one_connection.connect() as connection:
                connection.exec_driver_sql("ANALYZE")
                connection.commit()
            with watched(one_connection) as statements:
                assert len(await LangoSession("k", store).get_items(20)) == 20
            (statement,) = [each for each in statements if "lango_message" in str(each)]
            with one_connection.connect() as connection:
                cursor: Any = connection.connection.cursor()
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT TEXT) {statement}", {"key": "k", "now": None, "limit": 20})
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on lango_message" not in plan
            assert "Sort" not in plan
            assert "rows=20" in plan

    asyncio.run(main())


def test_adding_items_on_sqlite_is_one_transaction(make_sqlite: MakeDatabase) -> None:
    async def main() -> None:
        with Store(make_sqlite()) as store:
            session = LangoSession("k", store)
            await session.add_items([QUESTION])
            with watched(store.engine) as statements:
                await session.add_items([QUESTION])
            assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]

    asyncio.run(main())
