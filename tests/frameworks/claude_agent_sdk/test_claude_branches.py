"""Forks and branches: the SDK with its CLI, which continues an earlier point of a session."""

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    fork_session_via_store,
    get_session_messages_from_store,
    project_key_for_directory,
    query,
)
from frameworks.claude_agent_sdk.messages_api import MessagesApi
from frameworks.claude_agent_sdk.transcripts import KEY, written

from lango_store import Message, MessageRole, Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

NAME = f"{KEY['project_key']}:{KEY['session_id']}"

ask_cli = pytest.mark.skipif(
    "resume_session_at" not in ClaudeAgentOptions.__dataclass_fields__, reason="this version has no such option"
)

_numbers = itertools.count()


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as opened:
        yield opened


class Agent:
    """An agent whose sessions are only in the store: each query has a new folder of the CLI."""

    def __init__(self, store: Store, api: MessagesApi, folder: Path) -> None:
        self.store, self._api, self._folder = store, api, folder
        self.sessions = LangoSessionStore(store)
        self.work = folder / "work"
        self.work.mkdir()

    async def ask(self, prompt: str, **options: Any) -> str:
        """Ask the model; return the id of the session."""
        config = self._folder / f"config-{next(_numbers)}"
        config.mkdir()
        asked = ClaudeAgentOptions(
            session_store=self.sessions,
            cwd=self.work,
            model="claude-sonnet-4-5",
            tools=[],
            setting_sources=[],
            env={
                "ANTHROPIC_BASE_URL": self._api.url,
                "ANTHROPIC_API_KEY": "dummy",
                "CLAUDE_CONFIG_DIR": str(config),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "HOME": str(config),
            },
            **options,
        )
        results = [each async for each in query(prompt=prompt, options=asked) if isinstance(each, ResultMessage)]
        return results[-1].session_id

    def key(self, session: str) -> str:
        return f"{project_key_for_directory(self.work)}:{session}"

    def texts(self, session: str) -> list[Any]:
        return [message.content for message in self.store.conversation(self.key(session)).messages()]

    async def seen(self, session: str) -> list[Any]:
        """Return the texts that the SDK sees."""
        found = await get_session_messages_from_store(self.sessions, session, directory=str(self.work))
        contents: list[Any] = [message.message["content"] for message in found]
        return [each if isinstance(each, str) else each[0]["text"] for each in contents]


@ask_cli
async def test_messages_of_a_branch_that_the_sdk_has_left_are_records(
    store: Store, api: MessagesApi, tmp_path: Path
) -> None:
    agent = Agent(store, api, tmp_path)
    session = await agent.ask("One")
    await agent.ask("Two", resume=session)
    first = store.conversation(agent.key(session)).messages()[1]
    entries = await agent.sessions.load({"project_key": agent.key("").removesuffix(":"), "session_id": session})

    await agent.ask("Other", resume=session, resume_session_at=first.id)
    assert agent.texts(session) == ["One", "Answer 1.", "Other", "Answer 3."] == await agent.seen(session)
    loaded = await agent.sessions.load({"project_key": agent.key("").removesuffix(":"), "session_id": session})
    assert entries is not None
    assert loaded is not None
    assert loaded[: len(entries)] == entries

    await agent.ask("Three", resume=session)
    expected = ["One", "Answer 1.", "Other", "Answer 3.", "Three", "Answer 4."]
    assert agent.texts(session) == expected == await agent.seen(session)
    assert store.usage()[0].output_tokens == 5 * 4
    assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []


@ask_cli
async def test_sdk_forks_a_session_and_usage_counts_once(store: Store, api: MessagesApi, tmp_path: Path) -> None:
    agent = Agent(store, api, tmp_path)
    session = await agent.ask("One")
    fork = await agent.ask("Two", resume=session, fork_session=True)
    assert agent.texts(fork) == ["One", "Answer 1.", "Two", "Answer 2."]
    assert store.usage()[0].output_tokens == 5 * 2
    await agent.ask("Three", resume=fork)
    assert store.usage()[0].output_tokens == 5 * 3


def said(role: str, uuid: str, parent: str | None, content: Any = None, **fields: Any) -> Any:
    message = {"role": role, "content": content or uuid, **fields}
    return {"type": role, "uuid": uuid, "parentUuid": parent, "message": message}


def texts(messages: list[Message]) -> list[Any]:
    return [message.id for message in messages]


async def test_branch_in_small_and_large_transcripts_is_left(store: Store) -> None:
    sessions = LangoSessionStore(store)
    for number, length in enumerate((4, 200)):
        key: Any = {"project_key": "p", "session_id": str(number)}
        talk = [
            said("assistant" if place % 2 else "user", f"{place}", f"{place - 1}" if place else None)
            for place in range(length)
        ]
        await sessions.append(key, talk)
        await sessions.append(key, [said("user", "a", "1"), said("assistant", "b", "a")])
        await sessions.append(key, [said("user", "c", "b"), said("assistant", "d", "c")])
        assert texts(store.conversation(f"p:{number}").messages()) == ["0", "1", "a", "b", "c", "d"]
        left = store.conversation(f"p:{number}").all_messages()[2:-4]
        assert {message.role for message in left} == {MessageRole.RECORD}
        assert len(await sessions.load(key) or []) == length + 4
        await sessions.append(key, [said("user", "e", f"{length - 1}")])
        assert texts(store.conversation(f"p:{number}").messages()) == [*map(str, range(length)), "e"]


async def test_parallel_calls_and_their_results_are_kept(store: Store) -> None:
    def call(id: str) -> Any:
        return [{"type": "tool_use", "id": id, "name": "w", "input": {}}]

    def result(id: str) -> Any:
        return [{"type": "tool_result", "tool_use_id": id, "content": id}]

    sessions = LangoSessionStore(store)
    await sessions.append(KEY, [said("user", "q", None)])
    await sessions.append(
        KEY, [said("assistant", "c1", "q", call("1"), id="r"), said("assistant", "c2", "c1", call("2"), id="r")]
    )
    await sessions.append(KEY, [said("user", "r2", "c2", result("2")), said("user", "r1", "c1", result("1"))])
    await sessions.append(KEY, [said("assistant", "a", "r1"), said("user", "q2", "a"), said("assistant", "a2", "q2")])
    assert texts(store.conversation(NAME).messages()) == ["q", "c1", "c2", "r2", "r1", "a", "q2", "a2"]
    await sessions.append(KEY, [said("user", "q3", "q")])
    assert texts(store.conversation(NAME).messages()) == ["q", "q3"]
    await sessions.append(KEY, [said("user", "q4", "a2")])
    assert texts(store.conversation(NAME).messages()) == ["q", "c1", "c2", "r2", "r1", "a", "q2", "a2", "q4"]


async def test_messages_before_a_compaction_of_the_cli_and_of_other_programs_are_kept(store: Store) -> None:
    sessions = LangoSessionStore(store)
    await sessions.append(KEY, [said("user", "a", None), said("assistant", "b", "a")])
    boundary = {"type": "system", "uuid": "c", "parentUuid": None, "logicalParentUuid": "b"}
    await sessions.append(KEY, [boundary, said("user", "d", "c"), said("assistant", "e", "d")])  # type: ignore[list-item]
    store.append_message(NAME, Message.user("Hello", id=str(uuid.UUID(int=1))))
    entries: Any = await sessions.load(KEY)
    await sessions.append(KEY, [said("user", "f", entries[-1]["uuid"])])
    await sessions.append(KEY, [said("user", "g", "gone")])
    assert texts(store.conversation(NAME).messages()) == ["a", "b", "d", "e", entries[-1]["uuid"], "f", "g"]


async def test_fork_via_store_leaves_the_same_branches(store: Store, tmp_path: Path) -> None:
    sessions = LangoSessionStore(store)
    key: Any = {**KEY, "project_key": project_key_for_directory(tmp_path)}
    source = written()
    await sessions.append(key, source)
    asked: Any = {**source[1], "uuid": str(uuid.uuid4()), "parentUuid": source[1]["uuid"]}
    await sessions.append(key, [asked])
    assert len(store.conversation(f"{key['project_key']}:{KEY['session_id']}").messages()) == 2
    fork = await fork_session_via_store(sessions, KEY["session_id"], directory=str(tmp_path))
    assert len(store.conversation(f"{key['project_key']}:{fork.session_id}").messages()) == 2


async def test_two_queries_at_once_show_the_branch_that_the_sdk_continues(store: Store) -> None:
    one, two = LangoSessionStore(store), LangoSessionStore(store)
    await one.append(KEY, [said("user", "a", None), said("assistant", "b", "a")])
    batches = [[said("user", f"{each}", "b"), said("assistant", f"{each}!", f"{each}")] for each in ("c", "d")]
    await asyncio.gather(*(each.append(KEY, batch) for each, batch in zip((one, two), batches, strict=True)))
    ids = texts(store.conversation(NAME).messages())
    assert ids in (["a", "b", "c", "c!"], ["a", "b", "d", "d!"])
    (last,) = store.conversation(NAME).all_messages(last=1)
    assert ids[-1] == last.id
