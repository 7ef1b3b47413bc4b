"""ADK's runner with an agent that is killed between a tool's result and the next model call."""

import json
import signal
from typing import Any

import pytest
from support.processes import Program, run_program

from lango_store import Store

pytestmark = pytest.mark.one_database

AGENT = "import asyncio, sys; from frameworks.google_adk.adk_agent import main; asyncio.run(main(*sys.argv[1:]))"


def parts(seen: list[dict[str, Any]]) -> list[str]:
    """Return the parts of a model's input as words."""
    return [_name(part) for each in seen for part in each["parts"]]


def _name(part: dict[str, Any]) -> str:
    return str(part["text"]) if "text" in part else "call" if "function_call" in part else "answer"


@pytest.mark.timeout(400)  # ADK takes seconds to load
def test_new_process_continues_a_killed_run_and_model_sees_each_message_once(url: str) -> None:
    with Program(AGENT, url, "stop") as killed:
        first = json.loads(killed.stdout.readline())
        assert killed.stdout.readline() == "stopped\n"
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(60) == -signal.SIGKILL
    assert parts(first) == ["How warm is it?"]

    other = run_program(AGENT, url, "go on", timeout=100)
    assert other.returncode == 0, other.stderr
    resumed, question, answer = map(json.loads, other.stdout.splitlines())
    told = "It has -3 degrees."
    assert parts(resumed) == ["How warm is it?", "call", "answer"]
    assert parts(question) == ["How warm is it?", "call", "answer", told, "And now?"]
    assert parts(answer) == ["How warm is it?", "call", "answer", told, "And now?", "call", "answer"]

    with Store(url) as store:
        trip = store.conversation("weather:ann:trip")
        said = [(m.role.value, m.author, m.content, [c.output for c in m.tool_calls]) for m in trip.messages()]
        call, output_of_tool = ("model", "agent", None, [None]), ("tool", "agent", None, [{"celsius": -3}])
        assert said == [
            ("user", "user", "How warm is it?", []),
            call,
            output_of_tool,
            ("model", "agent", told, []),
            ("user", "user", "And now?", []),
            call,
            output_of_tool,
            ("model", "agent", told, []),
        ]
        assert trip.total_usage() == {"prompt_token_count": 40, "candidates_token_count": 16, "total_token_count": 56}
        assert [(row.model, row.input_tokens) for row in store.usage(["model"])] == [("script-1", 40)]
        assert trip.values.get() == {"asked": 2}
        assert store.shared_values("google_adk/weather:ann").get() == {"city": "Oslo"}
        assert [entry["role"] for entry in trip.history()] == ["user", "assistant", "tool", "assistant"] * 2
