"""`lango_store.testing`: fixtures (run by pytest in a separate process), the clock and messages."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.processes import PYTEST, run_program

from lango_store import Message
from lango_store.testing import Clock, make_message, make_messages

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
