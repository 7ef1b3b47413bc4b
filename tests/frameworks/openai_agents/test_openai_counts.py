"""Statements and round trips of `LangoSession` on PostgreSQL, counted on the wire."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agents import RunContextWrapper, Usage
from support.databases import MakeDatabase
from support.statements import Counts, counted, watched

from lango_store import Message, Store
from lango_store.integrations.openai_agents import LangoSession

from .responses import CALL_OSLO, EXCHANGE, QUESTION, REASONING, Item

pytestmark = pytest.mark.anyio


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


BATCHES = [[QUESTION], [REASONING], [CALL_OSLO], EXCHANGE * 150]


@pytest.mark.parametrize("before", [[], EXCHANGE], ids=["the first", "a later one"])
@pytest.mark.parametrize("batch", BATCHES, ids=["one", "a record", "a call", "a thousand"])
def test_add_items_takes_one_statement(
    one_connection: sa.Engine, tmp_path: Path, before: list[Item], batch: list[Item]
) -> None:
    assert count(one_connection, tmp_path, lambda session: session.add_items(batch), *before) == Counts(1, 1)


@pytest.mark.parametrize("requests", [0, 1], ids=["a new run", "a resumed run"])
async def test_add_items_with_usage_takes_one_statement_and_a_resumed_run_looks_once_for_its_turns(
    one_connection: sa.Engine, tmp_path: Path, requests: int
) -> None:
    wrapper = RunContextWrapper(None, usage=Usage(requests=requests, input_tokens=7 * requests))
    with Store(one_connection) as store:
        session = LangoSession("k", store)
        store.conversation("k").save_turn([Message.user("a")], {"requests": 1, "input_tokens": 7}, create=True)
        sent = []
        for _ in range(2):
            with counted(one_connection, tmp_path) as counts:
                await session.add_items(EXCHANGE, wrapper=wrapper)
            sent.append(counts)
            wrapper.usage.add(Usage(requests=1, input_tokens=7))
        assert [sent[0].statements, sent[1]] == [1 + 2 * requests, Counts(1, 1)]
        assert store.conversation("k").total_usage() == {"requests": 2, "input_tokens": 14}


def test_get_items_takes_one_statement_for_the_last_and_two_for_all(one_connection: sa.Engine, tmp_path: Path) -> None:
    assert count(one_connection, tmp_path, lambda session: session.get_items(3), *EXCHANGE) == Counts(1, 1)
    assert count(one_connection, tmp_path, lambda session: session.get_items(), *EXCHANGE) == Counts(2, 2)


async def test_adding_items_on_sqlite_is_one_transaction(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        session = LangoSession("k", store)
        await session.add_items([QUESTION])
        with watched(store.engine) as statements:
            await session.add_items([QUESTION])
        assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]
