"""Behavior that all adapters share: closing, expiry, cancellation, damage, and use by other programs."""

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from frameworks.adapters import FRAMEWORKS, Framework
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run
from support.databases import MakeDatabase

from lango_store import AsyncStore, DamagedMessage, LangoStoreError, Store
from lango_store.tables import MessageRow, TurnRow
from lango_store.testing import Clock

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: type(framework).__name__),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"),
]


async def fill(framework: Framework, url: str) -> Any:
    """Write a session, and return what the framework reads."""
    async with framework.make(url) as adapter:
        await framework.fill(adapter)
        return await framework.load(adapter)


async def load(framework: Framework, url: str) -> Any:
    async with framework.make(url) as adapter:
        return await framework.load(adapter)


def lango_store(*words: str) -> str:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_adapter_closes_only_what_it_opened(framework: Framework, url: str) -> None:
    with Store(url) as store:
        async with framework.make(store) as adapter:
            await framework.say(adapter, "a")
        assert store.exists(framework.key)
    async with AsyncStore(url) as awaited:
        async with framework.make(awaited) as adapter:
            await framework.say(adapter, "b")
        assert await awaited.exists(framework.key)
    for theirs in (url, url.replace("sqlite:", "sqlite+aiosqlite:").replace("+psycopg:", "+asyncpg:")):
        async with framework.make(theirs) as adapter:
            assert await framework.texts(adapter) == ["a", "b"]
        with pytest.raises(LangoStoreError, match="closed"):
            await framework.texts(adapter)


def test_adapter_serves_several_event_loops(framework: Framework, store: Store) -> None:
    adapter = framework.make(store)
    for text in "ab":
        asyncio.run(framework.say(adapter, text))
    assert asyncio.run(framework.texts(adapter)) == ["a", "b"]


async def test_expired_session_is_absent_and_next_message_starts_a_new_session(
    framework: Framework, url: str, clock: Clock
) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        adapter = framework.make(store)
        await framework.say(adapter, "old")
        clock.move(hours=2)
        assert await framework.load(adapter) is None
        assert store.conversation(framework.key).info(expired=True).message_count == 1
        await framework.say(adapter, "new")
        assert await framework.texts(adapter) == ["new"]
        assert store.conversation(framework.key).info().expires_at == clock() + timedelta(hours=1)


async def test_cancelled_write_is_complete_or_absent(framework: Framework, store: Store) -> None:
    adapter = framework.make(store)
    await framework.say(adapter, "first")
    for number in range(20):
        task = asyncio.ensure_future(framework.say(adapter, str(number)))
        for _ in range(number % 5):
            await asyncio.sleep(0.0005 * (number // 5))
        task.cancel()
        await asyncio.wait([task])
        before = await framework.texts(adapter)
        assert await framework.texts(adapter) == before
        assert len(before) == len(set(before))
        assert task.cancelled() or before[-1] == str(number)


async def test_damaged_message_is_reported(framework: Framework, store: Store, url: str) -> None:
    await fill(framework, url)
    table, log = MessageRow.__table__, store.conversation(framework.key).all_messages()
    (name,) = next(message.extra for message in log if message.seq == framework.seq)
    for damage in framework.damage:
        with store.engine.begin() as connection:
            connection.execute(sa.update(table).where(table.c.seq == framework.seq).values(extra={name: damage}))
        with pytest.raises(DamagedMessage) as raised:
            await load(framework, url)
        assert (raised.value.key, raised.value.seq) == (framework.key, framework.seq)
        assert raised.value.field.startswith("extra")


async def test_stored_session_is_at_most_15_percent_larger_than_its_json(
    framework: Framework, store: Store, url: str
) -> None:
    written = framework.json(await fill(framework, url))
    others = {"session_key", "seq", "turn_no"} | (set() if framework.writes_times else {"created_at"})
    columns = [sa.cast(column, sa.Text) for column in MessageRow.__table__.c if column.name not in others]
    with store.engine.connect() as connection:
        rows = [*connection.execute(sa.select(*columns))]
        if framework.writes_times:
            rows += connection.execute(sa.select(sa.cast(TurnRow.__table__.c.usage, sa.Text)))
    stored = sum(len(value.encode()) for row in rows for value in row if value is not None)
    assert 0 < stored <= 1.15 * len(written.encode())


async def test_history_has_each_call_with_its_result(framework: Framework, store: Store, url: str) -> None:
    await fill(framework, url)
    history = store.conversation(framework.key).history()
    calls = [call for entry in history for call in entry.get("tool_calls", [])]
    answers = [entry["tool_call_id"] for entry in history if entry["role"] == "tool"]
    assert answers == [call["id"] for call in calls]
    assert calls[0]["function"]["name"] == "get_weather"
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Oslo"}
    assert (history[0]["role"], history[-1]["role"]) == ("user", "assistant")


async def test_commands_list_show_and_delete_the_session(framework: Framework, url: str) -> None:
    await fill(framework, url)
    listed = lango_store("sessions", "list", "--user", "ann", "--json", "--url", url)
    assert json.loads(listed)["key"] == framework.key
    shown = lango_store("sessions", "show", "--url", url, "--", framework.key)
    assert all(word in shown for word in framework.shown)
    lango_store("sessions", "delete", "--user", "ann", "--yes", "--url", url)
    assert await load(framework, url) is None


async def test_backup_restores_an_equal_session(
    framework: Framework, url: str, make_database: MakeDatabase, tmp_path: Path
) -> None:
    written, other = await fill(framework, url), make_database()
    lango_store("export", "--all", "--to", str(tmp_path / "backup"), "--format", "backup", "--url", url)
    lango_store("import", str(tmp_path / "backup"), "--url", other)
    assert await load(framework, other) == written


async def test_copy_in_another_database_is_equal_and_can_be_continued(
    framework: Framework, url: str, make_sqlite: MakeDatabase, make_postgres: MakeDatabase
) -> None:
    written = await fill(framework, url)
    other = (make_postgres if url.startswith("sqlite") else make_sqlite)()
    lango_store("copy", "--from", url, "--to", other)
    assert await load(framework, other) == written
    with Store(other) as store:
        before = store.conversation(framework.key).info().message_count
        await framework.say(framework.make(store), "And then?")
        assert store.conversation(framework.key).info().message_count == before + 1


async def test_archived_session_is_found_and_restored(
    framework: Framework, store: Store, url: str, tmp_path: Path
) -> None:
    written = await fill(framework, url)
    store.expire(older_than=timedelta(0), archive=tmp_path / "cold.db")
    assert await load(framework, url) is None
    with Store(f"sqlite:///{tmp_path}/cold.db") as archive:
        assert archive.exists(framework.key)
    store.restore(framework.key, tmp_path / "cold.db")
    assert await load(framework, url) == written


TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip)  # a prompt leaves out blank messages


@given(said=st.lists(TEXTS, min_size=2, max_size=4))
def test_each_history_starts_with_the_previous_history(framework: Framework, url: str, said: list[str]) -> None:
    async def prompts() -> list[tuple[list[Any], list[Any]]]:
        pairs: list[tuple[list[Any], list[Any]]] = []
        for text in said:
            async with framework.make(url) as adapter:  # a new one each time, as after a restart
                await framework.say(adapter, text)
                history = adapter.store.conversation(framework.key).history()
                pairs.append((history, await framework.texts(adapter)))
        return pairs

    with Store(url) as store:
        store.delete(framework.key)
    for before, after in pairwise(asyncio.run(prompts())):
        for previous, latest in zip(before, after, strict=True):
            assert json.dumps(latest).startswith(json.dumps(previous)[:-1])
            assert len(latest) > len(previous)
