"""Processes that are killed while they run tool calls: no call runs twice unless it is resolved or idempotent.

LANGO_STORE_TURN_ROUNDS sets the number of rounds.
"""

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from support.counting_tool import CountingTool, counting_tool
from support.processes import Program, run_program
from support.turns import messages_of

from lango_store import BegunCall, CallInProgress, Conversation, Message, Store, ToolCall

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_TURN_ROUNDS", "3"))
CALLS: Final = 3
ASKING: Final = Message.assistant(tool_calls=[ToolCall(id="call_0", name="pay")])

BEFORE_INTENT: Final = "before the intent"
AFTER_INTENT: Final = "after the intent"
IN_TOOL: Final = "in the tool"
BEFORE_RECORD: Final = "before the record"
AFTER_RECORD: Final = "after the record"

CALLER: Final = """
import json, sys
from datetime import UTC, datetime, timedelta
from urllib.request import Request, urlopen
from lango_store import CallUnknown, Message, Store, ToolCall

url, key, tool, number, stop, hours, permission = sys.argv[1:]

def reach(point, position):
    print(f"{point} {position}", flush=True)
    if stop == f"{point} {position}":
        sys.stdin.readline()

def run(effect):
    request = Request(f"{tool}/{effect.call.arguments['n']}", b"", {"Idempotency-Key": effect.key})
    with urlopen(request) as response:
        return json.load(response)

def make_calls(turn):
    asked = [ToolCall(id="call_0", name="pay", arguments={"n": n}) for n in range(int(number))]
    asking = turn.append(Message.assistant(tool_calls=asked))
    for position in range(len(asked)):
        reach("before the intent", position)
        with turn.call(asking, position, idempotent=permission == "idempotent") as effect:
            reach("after the intent", position)
            if not effect.replayed:
                effect.output = run(effect)
                reach("before the record", position)
        reach("after the record", position)

with Store(url, clock=lambda: datetime.now(UTC) + timedelta(hours=int(hours))) as store:
    try:
        with store.conversation(key).turn("request") as turn:
            if not turn.replayed:
                make_calls(turn)
        print("replayed" if turn.replayed else "saved")
    except CallUnknown as error:
        print(f"unknown {error.position}")
"""
"""Makes calls with the same id in one turn; prints the points that it reaches, and waits at one of them."""


def hours_later(url: str, hours: int) -> Store:
    """Return a store whose clock is ahead, so that the leases and calls of earlier processes have ended."""
    return Store(url, clock=lambda: datetime.now(UTC) + timedelta(hours=hours))


def killed(url: str, key: str, tool: CountingTool, point: str, position: int) -> None:
    """Kill a process when one of its calls has reached a point."""
    stop = f"{AFTER_INTENT if point == IN_TOOL else point} {position}"
    with Program(CALLER, url, key, tool.url, CALLS, stop, 0, "none") as process:
        for line in process.stdout:
            if line == f"{stop}\n":
                break
        if point == IN_TOOL:
            with tool.without_answers() as received:
                process.stdin.write("\n")
                process.stdin.flush()
                assert received.acquire(timeout=60)
                process.send_signal(signal.SIGKILL)
                process.wait()
        else:
            process.send_signal(signal.SIGKILL)
        assert process.stderr.read() == ""


def run_again(url: str, key: str, tool: CountingTool, *, hours: int, permission: str = "none") -> str:
    """Run the same turn in another process; return the last line that it prints."""
    again = run_program(CALLER, url, key, tool.url, CALLS, "", hours, permission)
    assert (again.returncode, again.stderr) == (0, "")
    return again.stdout.splitlines()[-1]


def rounds() -> Iterator[tuple[int, str, int]]:
    """Yield the number of each round, the key of its session, and the position of the call that is killed.

    Every three rounds use each position once. Every nine use each position with each remainder of `number % 3`.
    """
    for round in range(ROUNDS):
        yield round, f"k{round}", (round + round // 3) % CALLS


def runs_of(tool: CountingTool, calls: list[BegunCall]) -> list[int]:
    return [tool.runs[call.effect_key] for call in calls]


def assert_left(url: str, key: str, tool: CountingTool, point: str, position: int) -> None:
    """Check that earlier calls are finished, and that the killed one is unknown if it has an intent and no record."""
    with Store(url) as store, hours_later(url, 1) as later:
        running, begun = store.conversation(key).calls.list(), later.conversation(key).calls.list()
        expected = ["finished"] * position
        if point != BEFORE_INTENT:
            expected.append("finished" if point == AFTER_RECORD else "unknown")
        assert [call.state for call in begun] == expected
        assert [call.state for call in running] == [state.replace("unknown", "running") for state in expected]
        assert store.calls.list_unknown().items == []
        assert later.calls.list_unknown().items == [call for call in begun if call.state == "unknown"]
        assert runs_of(tool, begun) == [1] * position + [int(point != AFTER_INTENT)] * (len(begun) - position)
        for call in later.calls.list_unknown().items:
            with pytest.raises(CallInProgress):
                store.conversation(key).calls.begin(call.seq, call.position)


def assert_saved_once(conversation: Conversation, results: list[str]) -> None:
    """The turn is saved with one message that asks for the calls, and one result of each."""
    (turn,) = conversation.turns.list()
    asking, *answers = messages_of(conversation, turn)
    assert conversation.all_messages() == [asking, *answers]
    assert [call.id for call in asking.tool_calls] == [answer.tool_call_id for answer in answers] == ["call_0"] * CALLS
    assert [answer.content for answer in answers] == results
    finished = [(call.state, call.seq, call.position, call.result_seq) for call in conversation.calls.list()]
    assert finished == [("finished", asking.seq, n, answer.seq) for n, answer in enumerate(answers)]


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("point", [BEFORE_INTENT, AFTER_RECORD])
def test_turn_whose_process_was_killed_between_calls_is_finished_by_another_process(url: str, point: str) -> None:
    with counting_tool() as tool, hours_later(url, 1) as later:
        for _, key, position in rounds():
            later.create(key)
            killed(url, key, tool, point, position)
            assert_left(url, key, tool, point, position)
            assert run_again(url, key, tool, hours=1) == "saved"
            conversation = later.conversation(key)
            assert_saved_once(conversation, [f"run 1 of /{n}" for n in range(CALLS)])
            assert runs_of(tool, conversation.calls.list()) == [1] * CALLS
        assert run_again(url, key, tool, hours=1) == "replayed"
        assert set(tool.requests.values()) == {1}
        assert [each for each in later.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("point", [AFTER_INTENT, IN_TOOL, BEFORE_RECORD])
def test_unknown_call_of_a_killed_process_runs_again_only_if_resolved_with_retry(url: str, point: str) -> None:
    """In turn, the call is resolved with an output, as failed, and to run again."""
    with counting_tool() as tool, hours_later(url, 1) as later:
        for round, key, position in rounds():
            conversation = later.open(key)
            killed(url, key, tool, point, position)
            assert_left(url, key, tool, point, position)
            requests = tool.requests.copy()
            (unknown,) = later.calls.list_unknown().items
            assert run_again(url, key, tool, hours=1) == f"unknown {position}"
            assert (tool.requests, later.calls.list_unknown().items) == (requests, [unknown])
            results = [f"run 1 of /{n}" for n in range(CALLS)]
            ran = [1] * CALLS
            ran[position] = int(point != AFTER_INTENT)
            match round % 3:
                case 0:
                    results[position] = "paid"
                    conversation.calls.resolve(unknown.seq, position, output="paid")
                case 1:
                    results[position] = "not paid"
                    conversation.calls.resolve(unknown.seq, position, failed="not paid")
                case 2:
                    ran[position] += 1
                    results[position] = f"run {ran[position]} of /{position}"
                    conversation.calls.resolve(unknown.seq, position, retry=True)
            assert later.calls.list_unknown().items == []
            assert run_again(url, key, tool, hours=2) == "saved"
            assert_saved_once(conversation, results)
            assert runs_of(tool, conversation.calls.list()) == ran
            assert conversation.calls.list()[position].effect_key == unknown.effect_key
        assert [each for each in later.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("point", [AFTER_INTENT, IN_TOOL, BEFORE_RECORD])
def test_idempotent_call_of_a_killed_process_runs_again_with_the_same_effect_key(url: str, point: str) -> None:
    with counting_tool(honors_key=True) as tool, hours_later(url, 1) as later:
        for _, key, position in rounds():
            conversation = later.open(key)
            killed(url, key, tool, point, position)
            (unknown,) = later.calls.list_unknown().items
            assert run_again(url, key, tool, hours=1, permission="idempotent") == "saved"
            assert_saved_once(conversation, [f"run 1 of /{n}" for n in range(CALLS)])
            calls = conversation.calls.list()
            assert calls[position].effect_key == unknown.effect_key
            assert tool.requests[unknown.effect_key] == (1 if point == AFTER_INTENT else 2)
            assert runs_of(tool, calls) == [1] * CALLS
        assert len(tool.runs) == ROUNDS * CALLS
        assert [each for each in later.maintenance.examine() if each.name != "settings"] == []


SEARCHER: Final = """
import json, sys
from urllib.request import Request, urlopen
from lango_store import LangoStoreError, Store

url, tool = sys.argv[1:]
with Store(url) as store:
    conversation = store.conversation("k")
    asking = [message for message in conversation.messages() if message.tool_calls][-1]
    try:
        effect = conversation.calls.begin(asking.seq, 0)
    except LangoStoreError as error:
        sys.exit(f"refused: {error}")
    if not effect.replayed:
        request = Request(f"{tool}/pay", b"", {"Idempotency-Key": effect.key})
        with urlopen(request) as response:
            stored = conversation.calls.finish(effect, {"answer": json.load(response)})
        print(stored.seq, flush=True)
        sys.stdin.readline()
"""
"""Runs the first call of the last message that has `tool_calls`; stores its result, which has `tool_calls` too."""


def test_killed_program_that_searches_the_last_message_with_tool_calls_does_not_run_its_tool_twice(url: str) -> None:
    with counting_tool() as tool, Store(url) as store:
        conversation = store.open("k", messages=[Message.user("Pay."), ASKING])
        with Program(SEARCHER, url, tool.url) as process:
            assert process.stdout.readline() == "3\n"
            process.send_signal(signal.SIGKILL)
        again = run_program(SEARCHER, url, tool.url)
        assert again.returncode == 1
        assert "message 3 of session 'k' has the role tool and asks for no call" in again.stderr
        assert [tool.runs[call.effect_key] for call in conversation.calls.list()] == [1]
        assert sum(tool.requests.values()) == 1
        assert [message.seq for message in conversation.messages()] == [1, 2, 3]
