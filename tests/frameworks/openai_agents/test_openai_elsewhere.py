"""A session that the framework wrote is one as any other: shown, prompted, searched, saved, moved, purged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from agents import Runner
from support.commands import run
from support.databases import MakeDatabase

from lango_store import Store
from lango_store.archive import Archive
from lango_store.integrations.openai_agents import LangoSession
from lango_store.testing import Clock

from .responses import EXCHANGE, OTHERS, Item
from .scripted import agent, asks, says, total


def write(url: str, **options: Any) -> list[Item]:
    """Let an agent talk, add what else there is, and return what the framework reads."""

    async def main() -> list[Item]:
        with Store(url, **options) as store:
            store.create("user-123", user_id="ann", title="Weather", ttl=timedelta(hours=1))
            session = LangoSession("user-123", store)
            await Runner.run(agent(asks("Oslo", "Rome"), says("Cold in Oslo.")), "Weather?", session=session)
            await session.add_items([*EXCHANGE, *OTHERS])
            return await session.get_items()

    return asyncio.run(main())


def read(url: str, **options: Any) -> list[Item]:
    async def main() -> list[Item]:
        async with LangoSession("user-123", Store(url, **options)) as session:
            found = await session.get_items()
            session.store.close()
            return found

    return asyncio.run(main())


def test_show_and_list_print_what_was_said_called_and_answered(url: str) -> None:
    write(url)
    shown = run("sessions", "show", "user-123", "--all", "--url", url)
    assert shown.returncode == 0, shown.stderr
    for text in ("Weather?", "get_weather", "Oslo", "-3 in Rome", "Cold in Oslo.", "reasoning"):
        assert text in shown.stdout
    listed = run("sessions", "list", "--user", "ann", "--url", url)
    assert listed.stdout.split("\t")[:2] == ["user-123", "Weather"]


def test_its_history_is_a_prompt_of_the_chat_api(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            session = LangoSession("k", store)
            await Runner.run(agent(asks("Oslo", "Rome"), says("Cold in Oslo.")), "Weather?", session=session)

            def call(city: str) -> dict[str, Any]:
                function = {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'}
                return {"id": f"call_{city}", "type": "function", "function": function}

            def answer(city: str) -> dict[str, Any]:
                return {
                    "role": "tool",
                    "content": f"-3 in {city}",
                    "tool_call_id": f"call_{city}",
                    "name": "get_weather",
                }

            conversation = store.conversation("k")
            assert conversation.history() == [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [call("Oslo"), call("Rome")]},
                answer("Oslo"),
                answer("Rome"),
                {"role": "assistant", "content": "Cold in Oslo."},
            ]
            assert conversation.history(last=3) == [{"role": "assistant", "content": "Cold in Oslo."}]
            assert conversation.total_usage() == total(10, 20)

    asyncio.run(main())


def test_a_backup_brings_it_back_as_it_was(make_database: MakeDatabase, tmp_path: Path) -> None:
    source, target = make_database(), make_database()
    items = write(source)
    for words in (
        ["export", "user-123", "--to", str(tmp_path / "backup"), "--format", "jsonl", "--url", source],
        ["import", str(tmp_path / "backup"), "--url", target],
    ):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    assert read(target) == items
    with Store(target) as store:
        assert store.conversation("user-123").total_usage() == total(10, 20)


def test_a_copy_in_the_other_database_reads_the_same(make_sqlite: MakeDatabase, make_postgres: MakeDatabase) -> None:
    here, there, back = make_sqlite(), make_postgres(), make_sqlite()
    items = write(here)
    for source, target in ((here, there), (there, back)):
        done = run("copy", "--from", source, "--to", target)
        assert done.returncode == 0, done.stderr
        assert read(target) == items


def test_what_is_purged_is_found_in_the_archive_and_restored_as_it_was(url: str, clock: Clock, tmp_path: Path) -> None:
    items = write(url, clock=clock)
    clock.move(hours=2)
    assert read(url, clock=clock) == []
    with Store(url, clock=clock) as store:
        assert store.expire(archive=tmp_path / "cold.db").sessions == 1
        with Archive(tmp_path / "cold.db") as archive:
            assert {found["key"] for found in archive.search("cold in oslo")} == {"user-123"}
            assert archive.search("get_weather")
        store.restore(tmp_path / "cold.db", "user-123")
    assert read(url, clock=clock) == items


def test_a_person_who_goes_takes_the_sessions_along(url: str) -> None:
    write(url)
    done = run("sessions", "delete", "--user", "ann", "--yes", "--url", url)
    assert done.returncode == 0, done.stderr
    assert read(url) == []


def test_a_fork_reads_as_its_beginning(url: str) -> None:
    items = write(url)

    async def main() -> None:
        with Store(url) as store:
            store.conversation("user-123").fork("branch", upto=4)
            branch = LangoSession("branch", store)
            assert await branch.get_items() == items[:5]
            await branch.add_items(EXCHANGE)
            assert await LangoSession("user-123", store).get_items() == items

    asyncio.run(main())


def test_what_is_redacted_keeps_its_place_and_the_run_goes_on(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            session = LangoSession("k", store)
            await session.add_items(EXCHANGE)
            for message in store.conversation("k").all_messages():
                store.conversation("k").redact_message(message.seq, reason="a password" if message.seq % 2 else None)
            assert await session.get_items() == [
                {"role": "user", "content": ""},
                {"role": "assistant", "content": ""},
                {"role": "assistant", "content": ""},
                {"type": "function_call_output", "call_id": "call_1", "output": ""},
                {"type": "function_call_output", "call_id": "call_2", "output": ""},
                {"role": "assistant", "content": ""},
            ]
            result = await Runner.run(agent(says("Cold.")), "And now?", session=session)
            assert result.final_output == "Cold."
            for _ in range(8):
                assert await session.pop_item() is not None
            assert await session.get_items() == []

    asyncio.run(main())
