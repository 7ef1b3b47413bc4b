"""Queries in turns: the SDK with its CLI, on a store whose writes need the lease of a turn."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeAgentOptions, project_key_for_directory, query
from frameworks.claude_agent_sdk.messages_api import MessagesApi, blocks, texts

from lango_store import AsyncStore, Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.one_database,
]

LONG = timedelta(seconds=200)


class Project:
    """A working folder with the options of its queries, and the key of its session."""

    def __init__(self, folder: Path, api: MessagesApi) -> None:
        self._folder, self._api = folder, api
        self._session = str(uuid.uuid4())
        self._work = folder / "work"
        self._work.mkdir()
        self.key = f"{project_key_for_directory(self._work)}:{self._session}"

    async def ask(self, sessions: LangoSessionStore, prompt: str, *, resume: bool) -> list[Any]:
        """Ask the model in the session, with a new folder of the CLI; return the messages of the SDK."""
        config = self._folder / f"config-{uuid.uuid4()}"
        config.mkdir()
        options = ClaudeAgentOptions(
            session_store=sessions,
            cwd=self._work,
            model="claude-sonnet-4-5",
            tools=[],
            setting_sources=[],
            resume=self._session if resume else None,
            session_id=None if resume else self._session,
            env={
                "ANTHROPIC_BASE_URL": self._api.url,
                "ANTHROPIC_API_KEY": "dummy",
                "CLAUDE_CONFIG_DIR": str(config),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "HOME": str(config),
            },
        )
        return [message async for message in query(prompt=prompt, options=options)]


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path, api: MessagesApi) -> Project:
    return Project(tmp_path, api)


async def run(store: AsyncStore, id: str, project: Project, prompt: str) -> None:
    """Ask in a turn, unless the turn is stored already."""
    conversation = await store.open(project.key)
    async with conversation.turn(id, wait=LONG) as turn:
        if not turn.replayed:
            resume = bool(await conversation.messages(last=1))
            await project.ask(LangoSessionStore(store).in_turn(turn), prompt, resume=resume)


def questions(api: MessagesApi) -> list[list[str]]:
    """Return the texts of each request to the model."""
    return [[text for message in asked for text in texts(blocks(message))] for asked in api.asked]


async def test_concurrent_requests_of_one_session_run_one_after_another_and_duplicates_once(
    store: Store, api: MessagesApi, project: Project
) -> None:
    async with AsyncStore(store) as awaited:
        await asyncio.gather(*(run(awaited, f"request {number % 2}", project, "Hello") for number in range(4)))
    assert questions(api) == [["Hello"], ["Hello", "Answer 1.", "Hello"]]
    assert [message.content for message in store.conversation(project.key).messages()] == [
        "Hello",
        "Answer 1.",
        "Hello",
        "Answer 2.",
    ]


async def test_query_whose_lease_was_taken_over_stores_nothing_more(
    store: Store, api: MessagesApi, project: Project
) -> None:
    async with AsyncStore(store) as awaited:
        turn = (await awaited.open(project.key)).turn("slow")
        await turn.__aenter__()
        store.conversation(project.key).turns.release()
        with store.conversation(project.key).turn("other"):
            seen = await project.ask(LangoSessionStore(awaited).in_turn(turn), "Hello", resume=False)
    errors = [message.error for message in seen if type(message).__name__ == "MirrorErrorMessage"]
    assert errors
    assert all("no longer has the lease" in error for error in errors)
    assert len(api.asked) == 1
    assert store.conversation(project.key).info().last_seq == 0
