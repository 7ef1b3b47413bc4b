"""The framework's agent, killed after a tool's result and continued by another process."""

import asyncio
import json
import signal

import pytest
from frameworks.pydantic_ai.stepwise_agent import talk, words
from pydantic_ai.usage import RunUsage
from support.processes import Program, run_program

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

pytestmark = pytest.mark.one_database

AGENT = "from frameworks.pydantic_ai.stepwise_agent import main; main()"

QUESTION = [["system-prompt", "Be brief."], ["user-prompt", "Weather?"]]
ANSWERED = [*QUESTION, ["tool-call", {"city": "Oslo"}], ["tool-return", "-3 in Oslo"]]


def test_another_process_continues_a_run_killed_after_the_tool_result(store: Store, url: str) -> None:
    with Program(AGENT, url, "c", "Weather?") as running:
        assert running.stdout.readline() == "the tool has answered\n"
        running.send_signal(signal.SIGKILL)
        assert running.wait(60) == -signal.SIGKILL
    assert [message.role for message in store.conversation("c").messages()] == ["user", "assistant", "tool"]

    done = run_program(AGENT, url, "c")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"seen": [ANSWERED], "answers": 0}

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
