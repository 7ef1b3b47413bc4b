"""The SDK's runner with its CLI, a tool and a model stub, killed in the middle of a turn."""

import asyncio
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from frameworks.claude_agent_sdk.messages_api import TOOL, MessagesApi, blocks, texts
from support.processes import run_program
from support.strict_rules import Request, strict_faults

from lango_store import Message, MessageRole, Store, ToolCall
from lango_store.integrations.claude_agent_sdk import LangoSessionStore

pytestmark = pytest.mark.anyio

CALL = {"id": "toolu_1", "type": "function", "function": {"name": TOOL, "arguments": '{"city": "Oslo"}'}}

AGENT = "import anyio, os, sys; from frameworks.claude_agent_sdk.agent import main; "
AGENT += "anyio.run(main, *sys.argv[1:], backend=os.environ['EVENT_LOOP'])"

OF_THE_CLI = ("Continue from where you left off.", "No response requested.")
"""Texts that the CLI adds after an interrupted turn."""


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as opened:
        yield opened


def agent(
    url: str, api: MessagesApi, folder: Path, *words: str, loop: str = "asyncio"
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"EVENT_LOOP": loop}
    done = run_program(AGENT, url, api.url, folder, *words, environment=environment, timeout=100)
    assert "flush failed" not in done.stderr  # the SDK logs this error and continues
    return done


def asked(question: list[dict[str, Any]]) -> list[Any]:
    """Return the messages of a model request, without the texts that the CLI adds."""
    found: list[Any] = []
    for message in question:
        said = blocks(message)
        found += texts(said)
        found += [(block["type"], block["id"]) for block in said if block["type"] == "tool_use"]
        found += [(block["type"], block["tool_use_id"]) for block in said if block["type"] == "tool_result"]
    return found


def test_killed_agent_continues_and_model_sees_each_message_once(url: str, api: MessagesApi, tmp_path: Path) -> None:
    loop = "trio" if url.startswith("postgresql") else "asyncio"
    api.mute = True
    killed = agent(url, api, tmp_path, "Weather in Oslo?", "--die", loop=loop)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    api.mute = False
    project = project_key_for_directory(tmp_path / "work")
    with Store(url) as store:
        (session,) = [info.key.removeprefix(f"{project}:") for info in store.iter_sessions()]
        before = asyncio.run(LangoSessionStore(store).load({"project_key": project, "session_id": session}))

    done = agent(url, api, tmp_path, "Go on.", session, loop=loop)
    assert done.returncode == 0, done.stderr
    call = ["Weather in Oslo?", "I will look.", ("tool_use", "toolu_1"), ("tool_result", "toolu_1")]
    assert [each for each in asked(api.asked[-1]) if each not in OF_THE_CLI] == [*call, "Go on."]
    assert done.stdout.split()[0] == session

    with Store(url) as store:
        key = f"{project}:{session}"
        said = [(message.role.value, message.content) for message in store.conversation(key).messages()]
        assert [each for each in said if each[1] not in OF_THE_CLI] == [
            ("user", "Weather in Oslo?"),
            ("assistant", "I will look."),
            ("assistant", None),
            ("tool", "-3 °C in Oslo"),
            ("user", "Go on."),
            ("assistant", f"Answer {len(api.asked)}."),
        ]
        after = asyncio.run(LangoSessionStore(store).load({"project_key": project, "session_id": session}))
        assert before is not None
        assert after is not None
        assert after[: len(before)] == before
        ids = [entry["uuid"] for entry in after if "uuid" in entry]
        assert len(ids) == len(set(ids))
        assert store.conversation(key).total_usage()["output_tokens"] == 10


def test_model_gets_a_result_of_each_call_after_a_crash_at_each_entry(
    url: str, api: MessagesApi, tmp_path: Path
) -> None:
    done = agent(url, api, tmp_path, "Weather in Oslo and Rome?")
    assert done.returncode == 0, done.stderr
    session, project = done.stdout.split()[0], project_key_for_directory(tmp_path / "work")

    async def continued(store: Store, entries: list[Any]) -> None:
        """Resume a session that ends with these entries, and check what the model gets."""
        key: Any = {"project_key": project, "session_id": str(uuid.uuid4())}
        sessions = LangoSessionStore(store)
        before = json.loads(json.dumps(entries).replace(session, key["session_id"]))
        await sessions.append(key, before)
        done = agent(url, api, tmp_path, "And now?", key["session_id"])
        assert done.returncode == 0, done.stderr
        assert strict_faults(Request("anthropic", "anthropic", "claude-opus-5-5", api.asked[-1])) == []
        assert texts(blocks(api.asked[-1][-1])) == ["And now?"]
        after = await sessions.load(key)
        assert after is not None
        assert after[: len(before)] == before

    with Store(url) as store:
        entries = asyncio.run(LangoSessionStore(store).load({"project_key": project, "session_id": session}))
        assert entries is not None
        said: Any = [(end, entry) for end, entry in enumerate(entries, 1) if "message" in entry]
        contents = [block["type"] for _, entry in said for block in blocks(entry["message"])]
        assert sorted(contents) == ["text"] * 3 + ["tool_result"] * 2 + ["tool_use"] * 2
        for end, _ in said[:-1]:
            asyncio.run(continued(store, entries[:end]))


@pytest.mark.parametrize("stored", range(1, 5))
def test_model_gets_a_result_of_each_call_after_a_crash_of_another_program(
    url: str, api: MessagesApi, tmp_path: Path, stored: int
) -> None:
    project, session = project_key_for_directory(tmp_path / "work"), str(uuid.uuid4())
    calls = [ToolCall(id=f"call_{city}", name=TOOL, arguments={"city": city}) for city in ("Oslo", "Rome")]
    results = [Message.tool("-3 °C", tool_call_id=call.id) for call in calls]
    log = [Message.user("How cold is it?"), Message.assistant("I will look.", tool_calls=calls), *results]
    with Store(url) as store:
        store.create(f"{project}:{session}", messages=log[:stored])
        before = store.conversation(f"{project}:{session}").messages()
        done = agent(url, api, tmp_path, "And now?", session)
        assert done.returncode == 0, done.stderr
        assert strict_faults(Request("anthropic", "anthropic", "claude-opus-5-5", api.asked[-1])) == []
        assert store.conversation(f"{project}:{session}").messages()[:stored] == before


def test_sdk_continues_sessions_of_other_programs_and_redacted_sessions(
    url: str, api: MessagesApi, tmp_path: Path
) -> None:
    project, session = project_key_for_directory(tmp_path / "work"), str(uuid.uuid4())
    call = ToolCall(id="call_1", name=TOOL, arguments='{"city": "Oslo"}')
    with Store(url) as store:
        store.create(
            f"{project}:{session}",
            messages=[
                Message.system("Be kind."),
                Message.user("My name is Ann.", id="1"),
                Message.assistant("Hello Ann."),
                Message(role=MessageRole.RECORD, content={"usd": 0.1}),
                Message.user("Weather in Oslo?"),
                Message.assistant("I will look.", tool_calls=[call]),
                Message.tool("-3 °C", tool_call_id="call_1"),
                Message.assistant([{"type": "text", "text": "Cold."}]),
            ],
        )
        done = agent(url, api, tmp_path, "Thanks.", session)
        assert done.returncode == 0, done.stderr
        rest = [
            "Weather in Oslo?",
            "I will look.",
            ("tool_use", "call_1"),
            ("tool_result", "call_1"),
            "Cold.",
        ]
        assert asked(api.asked[-1]) == ["My name is Ann.", "Hello Ann.", *rest, "Thanks."]

        (secret,) = [
            message for message in store.conversation(f"{project}:{session}").messages() if message.content == "Thanks."
        ]
        store.conversation(f"{project}:{session}").edits.redact(secret.seq)
        done = agent(url, api, tmp_path, "Bye.", session)
        assert done.returncode == 0, done.stderr
        said = ["My name is Ann.", "Hello Ann.", *rest, "(redacted)", "Answer 1.", "Bye."]
        assert asked(api.asked[-1]) == said


async def test_sdk_lists_and_reads_sessions_of_agent(url: str, api: MessagesApi, tmp_path: Path) -> None:
    done = agent(url, api, tmp_path, "Weather in Oslo?")
    assert done.returncode == 0, done.stderr
    work, session = str(tmp_path / "work"), done.stdout.split()[0]
    async with LangoSessionStore(url) as sessions:
        conversation = sessions.store.conversation(f"{project_key_for_directory(work)}:{session}")
        assert conversation.history() == [
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": "I will look."},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "-3 °C in Oslo", "tool_call_id": "toolu_1"},
            {"role": "assistant", "content": "Answer 2."},
        ]
        usage = conversation.total_usage()
        assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)
        (row,) = sessions.store.usage(["model"])
        assert row.model == "claude-sonnet-4-5"
        spent = json.loads(done.stdout.splitlines()[-1])  # as the SDK reports it
        assert (row.input_tokens, row.output_tokens) == (spent["input_tokens"], spent["output_tokens"])
        assert row.cached_tokens == spent["cache_read_input_tokens"] == 6
        assert len(await get_session_messages_from_store(sessions, session, directory=work)) == 5
        assert [each.summary for each in await list_sessions_from_store(sessions, directory=work)] == [
            "Weather in Oslo?"
        ]
