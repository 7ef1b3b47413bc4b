"""A conversation that pydantic-ai wrote is a session like any other: shown, searched, exported, copied, purged."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from frameworks.pydantic_ai.talking import weather_agent
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from support.commands import run
from support.databases import MakeDatabase

from lango_store import Store
from lango_store.archive import Archive
from lango_store.integrations.pydantic_ai import LangoConversationStore


async def talked(store: Store) -> Conversation:
    """A conversation of two runs, the second on a branch."""
    async with LangoConversationStore(store) as conversations:
        talk = (await weather_agent().run("Oslo?", conversation=Conversation(conversation_id="c"))).conversation
        await conversations.save(talk, scope="ann")
        talk = await conversations.branch("c", at=1, expected_revision=talk.revision)
        result = await weather_agent().run("And now?", conversation=talk)
        await conversations.save(result, scope="ann")
        await conversations.fork("c", new_conversation_id="f")
        return result.conversation


async def loaded(store: Store, id: str = "c") -> Conversation:
    async with LangoConversationStore(store) as conversations:
        found = await conversations.load(id, scope="ann")
        record = await conversations.read_record(id)
        assert found is not None
        assert record is not None
        for branch in record.branches:
            assert len(await conversations.read_history(branch)) == 4
        return found


def test_the_command_line_shows_it(lango: Store, url: str) -> None:
    asyncio.run(talked(lango))
    lines = run("sessions", "show", "c", "--url", url).stdout.splitlines()
    for said in ("Oslo?", "And now?", "get_weather", "It is -3 degrees."):
        assert any(said in line for line in lines)
    listed = json.loads(run("sessions", "list", "--user", "ann", "--prefix", "c", "--url", url, "--json").stdout)
    assert (listed["key"], listed["user_id"], listed["message_count"]) == ("c", "ann", 5)
    assert listed["metadata"] == {}


def test_history_usage_and_log_are_what_was_said(lango: Store) -> None:
    talk = asyncio.run(talked(lango))
    conversation = lango.conversation("c")
    assert [message.content for message in conversation.messages()][:2] == ["Oslo?", "And now?"]
    assert len(conversation.history()) == 5
    dumped = ConversationTypeAdapter.dump_python(talk, mode="json")["usage"]
    assert conversation.total_usage() == dumped
    assert [message.role for message in lango.conversation("c").all_messages()][1:4] == ["record"] * 3


def test_an_export_comes_back_and_reads_the_same(
    lango: Store, url: str, make_database: MakeDatabase, tmp_path: Path
) -> None:
    talk = asyncio.run(talked(lango))
    other = make_database()
    file = str(tmp_path / "all.jsonl")
    assert run("export", "--all", "--to", file, "--url", url).returncode == 0
    assert run("import", file, "--url", other).returncode == 0
    with Store(other) as store:
        assert asyncio.run(loaded(store)) == asyncio.run(loaded(lango)) == talk
        assert asyncio.run(loaded(store, "f")) == asyncio.run(loaded(lango, "f"))


def test_a_copy_in_the_other_database_reads_the_same_and_goes_on(
    lango: Store, url: str, make_sqlite: MakeDatabase, make_postgres: MakeDatabase
) -> None:
    talk = asyncio.run(talked(lango))
    other = make_postgres() if url.startswith("sqlite") else make_sqlite()
    assert run("copy", "--from", url, "--to", other).returncode == 0
    with Store(other) as store:
        assert asyncio.run(loaded(store)) == talk

        async def go_on() -> None:
            async with LangoConversationStore(store) as conversations:
                again = await conversations.load("c")
                result = await weather_agent().run("And then?", conversation=again)
                assert len(await conversations.save(result)) == 4

        asyncio.run(go_on())


def test_an_archive_of_it_is_searched_and_brings_it_back(lango: Store, tmp_path: Path) -> None:
    talk = asyncio.run(talked(lango))
    path = tmp_path / "cold.db"
    lango.expire(created_before=datetime.now(UTC) + timedelta(days=1), archive=path)
    assert lango.count() == 0
    with Archive(path) as archive:
        assert {hit["key"] for hit in archive.search("And now")} == {"c", "f"}
    lango.restore(path, "c")
    assert asyncio.run(loaded(lango)) == talk


def test_a_person_is_forgotten_with_all_that_was_said(lango: Store) -> None:
    asyncio.run(talked(lango))
    lango.delete_where(user_id="ann")
    stats = lango.stats()
    assert (stats.sessions, stats.messages) == (0, 0)
