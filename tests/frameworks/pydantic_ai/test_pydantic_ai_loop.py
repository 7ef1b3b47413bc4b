"""The framework's agent, killed after a tool's result and continued by another process."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks.pydantic_ai import stepwise_agent
from frameworks.pydantic_ai.stepwise_agent import talk, words
from pydantic_ai.usage import RunUsage

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

pytestmark = pytest.mark.one_database

QUESTION = [["system-prompt", "Be brief."], ["user-prompt", "Weather?"]]
ANSWERED = [*QUESTION, ["tool-call", {"city": "Oslo"}], ["tool-return", "-3 in Oslo"]]


def test_another_process_continues_a_run_killed_after_the_tool_result(store: Store, url: str) -> None:
    program = [sys.executable, str(Path(stepwise_agent.__file__)), url, "c"]
    with subprocess.Popen([*program, "Weather?"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "the tool has answered\n"
        running.send_signal(signal.SIGKILL)
        assert running.wait(60) == -signal.SIGKILL
    assert [message.role for message in store.conversation("c").messages()] == ["user", "assistant", "tool"]

    found = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert found == {"seen": [ANSWERED], "answers": 0}

    conversations = LangoConversationStore(store)
    loaded = asyncio.run(conversations.load("c"))
    asyncio.run(conversations.close())
    assert loaded is not None
    assert words(loaded.messages) == [*ANSWERED, ["text", "Cold."]]
    assert [message.content for message in store.conversation("c").messages()] == ["Weather?", None, None, "Cold."]
    assert loaded.usage == RunUsage(requests=2, input_tokens=20, output_tokens=4, tool_calls=1)
    assert store.conversation("c").total_usage()["requests"] == 2


def test_each_run_sees_earlier_messages_once(url: str) -> None:
    with Store(url):
        first = asyncio.run(talk(url, "c", "Weather?", waits=False))
        then = asyncio.run(talk(url, "c", "And now?", waits=False))
    assert first["seen"] == [QUESTION, ANSWERED]
    assert then["seen"][0] == [*ANSWERED, ["text", "Cold."], ["user-prompt", "And now?"]]
    assert len(then["seen"]) == 2
