"""`lango_store.testing`: fixtures (run by pytest in a separate process), the clock, messages and factories."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.processes import PYTEST, run_program

from lango_store import Message, Store
from lango_store.testing import Clock, make_message, make_messages
from lango_store.testing.factories import (
    AskingMessageFactory,
    MessageFactory,
    SessionFactory,
    ToolCallFactory,
    TurnFactory,
)

PROGRAM = """
import asyncio
from lango_store import AsyncStore, Message

pytest_plugins = ["lango_store.testing.fixtures"]

def test_store_is_empty_and_uses_the_clock(lango_store, lango_clock):
    assert lango_store.count() == 0
    lango_clock.move(days=1)
    assert lango_store.create("k", messages=[Message.user("hello")]).created_at == lango_clock.time

def test_stores_share_nothing(make_lango_store):
    make_lango_store().create("k")
    assert not make_lango_store().exists("k")

def test_engine_is_migrated_for_an_async_store(lango_store):
    async def work():
        async with AsyncStore(lango_store.engine) as store:
            return await store.count()
    assert asyncio.run(work()) == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "sqlite and postgresql"])
def test_fixtures_create_databases_and_remove_them(tmp_path: Path, make_postgres: MakeDatabase, server: bool) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    url = make_postgres(migrated=False)
    environment = {name: value for name, value in os.environ.items() if name != "LANGO_STORE_TEST_POSTGRES"}
    if server:
        environment["LANGO_STORE_TEST_POSTGRES"] = url
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    words = ("-q", "-p", "no:cacheprovider", "test_program.py")
    completed = run_program(PYTEST, *words, folder=tmp_path, environment=environment)
    assert f"{6 if server else 3} passed" in completed.stdout, completed.stdout
    engine = sa.create_engine(sa.make_url(url))
    with engine.connect() as connection:
        remaining = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lango%%'"
        ).scalar()
    engine.dispose()
    assert remaining == 0


def test_clock_moves_forward_and_backward() -> None:
    clock = Clock()
    before = clock()
    clock.move(hours=2)
    assert (clock() - before).total_seconds() == 7200
    clock.move(days=-1)
    assert clock() < before


def test_make_message_creates_a_message_with_any_field() -> None:
    assert make_message("hi", role="assistant", tokens=3) == Message(role="assistant", content="hi", tokens=3)
    assert [each.content for each in make_messages(2)] == ["message 0", "message 1"]


def test_factories_create_what_a_store_returns(store: Store, clock: Clock) -> None:
    sent = [MessageFactory(tokens=2), AskingMessageFactory(), MessageFactory(role="record", tokens=5)]
    store.create("k")
    saved = store.conversation("k").save_turn(sent)
    stored = store.get("k", records=True)
    turn = TurnFactory(turn_no=1, messages=sent, created_at=saved.created_at)
    session = SessionFactory(key="k", messages=sent, created_at=stored.created_at)
    assert [each.seq for each in session.messages] == [each.seq for each in stored.messages] == [1, 2, 3]
    assert turn.model_dump(exclude={"messages"}) == saved.model_dump(exclude={"messages"})
    counters = {"last_seq", "message_count", "record_count", "token_count", "created_at", "updated_at"}
    assert session.model_dump(include=counters) == stored.model_dump(include=counters)


def test_factories_create_distinct_values() -> None:
    asked = AskingMessageFactory.build_batch(3)
    assert len({call.id for each in asked for call in each.tool_calls}) == 3
    assert len({each.content for each in MessageFactory.build_batch(3)}) == 3
    assert len({each.key for each in SessionFactory.build_batch(3)}) == 3
    assert TurnFactory(first_seq=4, messages=MessageFactory.build_batch(2)).last_seq == 5
    assert ToolCallFactory().arguments is not ToolCallFactory().arguments
