"""Eight processes answer one suspension, or begin one tool call, at the same moment.

LANGO_STORE_TURN_ROUNDS sets the number of rounds.
"""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pytest
from support.processes import Program

from lango_store import Message, Store, ToolCall

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_TURN_ROUNDS", "5"))
WORKERS: Final = 8

WORKER: Final = """
import json, sys
from datetime import timedelta
from lango_store import AlreadyAnswered, CallInProgress, Store

def say(*said):
    print(json.dumps(said), flush=True)

def resume(store, token, answer):
    try:
        say("answered", store.suspensions.answer(token, answer).answer)
    except AlreadyAnswered as error:
        say("refused", error.answer)

def call(store, key, seq, wait, output):
    conversation = store.conversation(key)
    try:
        effect = conversation.calls.begin(seq, 0, wait=timedelta(seconds=wait))
    except CallInProgress as error:
        say("refused", error.seq)
        return
    if not effect.replayed:
        say("runs")
        sys.stdin.readline()
        conversation.calls.finish(effect, output)
    say("replayed" if effect.replayed else "ran", effect.result.content)

with Store(sys.argv[1]) as store:
    store.exists("k")
    say("ready")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        {"resume": resume, "call": call}[name](store, *arguments)
"""
"""Answers a suspension, or begins a call, for each line of JSON that it reads; prints the outcome.

A process that runs the call ends it when it can read another line.
"""


class Crew:
    """Eight processes that have opened the store."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs

    def tell(self, number: int, *said: Any) -> None:
        self.programs[number].stdin.write(json.dumps(said) + "\n")
        self.programs[number].stdin.flush()

    def reply(self, number: int) -> list[Any]:
        line = self.programs[number].stdout.readline()
        assert line, self.programs[number].stderr.read()
        return list(json.loads(line))

    def end_call(self, number: int) -> list[Any]:
        """Let a process end the call that it runs, and read the outcome."""
        self.tell(number)
        return self.reply(number)

    def outcome(self, number: int) -> list[Any]:
        """Read the outcome of a process; if it runs the call, let it end the call."""
        said = self.reply(number)
        return self.end_call(number) if said == ["runs"] else said


@contextmanager
def crew_on(url: str) -> Iterator[Crew]:
    programs = [Program(WORKER, url) for _ in range(WORKERS)]
    crew = Crew(programs)
    try:
        assert [crew.reply(number) for number in range(WORKERS)] == [["ready"]] * WORKERS
        yield crew
    except BaseException:
        for program in programs:
            if program.returncode is None:
                program.send_signal(signal.SIGKILL)
            program.close()
        raise
    assert [program.communicate() for program in programs] == [("", "")] * WORKERS


@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_one_of_eight_concurrent_answers_to_a_suspension_is_stored(url: str) -> None:
    with Store(url) as store, crew_on(url) as crew:
        for round in range(ROUNDS):
            conversation = store.open(f"k{round}")
            token = conversation.suspensions.create(reason="Pay?").token
            for number in range(WORKERS):
                crew.tell(number, "resume", token, {"by": number})
            outcomes = [crew.reply(number) for number in range(WORKERS)]
            (winner,) = [number for number, (outcome, _) in enumerate(outcomes) if outcome == "answered"]
            assert [answer for _, answer in outcomes] == [{"by": winner}] * WORKERS
            (suspension,) = conversation.suspensions.list()
            assert suspension.answer == {"by": winner}
            assert store.suspensions.list().items == []


def ask(store: Store, key: str) -> int:
    """Append a message that asks for a call, and return its seq."""
    asking = Message.assistant(tool_calls=[ToolCall(id="call_0", name="pay", arguments={})])
    return store.open(key).append_message(asking).seq


def assert_finished_once(store: Store, key: str, seq: int, output: str) -> None:
    conversation = store.conversation(key)
    (result,) = conversation.all_messages()[1:]
    (call,) = conversation.calls.list()
    assert (result.content, call.state, call.seq, call.result_seq) == (output, "finished", seq, result.seq)


@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_seven_of_eight_processes_that_begin_one_call_are_refused(url: str) -> None:
    with Store(url) as store, crew_on(url) as crew:
        for round in range(ROUNDS):
            seq = ask(store, f"k{round}")
            for number in range(WORKERS):
                crew.tell(number, "call", f"k{round}", seq, 0, f"output of {number}")
            outcomes = [crew.reply(number) for number in range(WORKERS)]
            assert sorted(outcomes) == [["refused", seq]] * (WORKERS - 1) + [["runs"]]
            winner = outcomes.index(["runs"])
            assert crew.end_call(winner) == ["ran", f"output of {winner}"]
            assert_finished_once(store, f"k{round}", seq, f"output of {winner}")


@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_one_of_eight_processes_runs_a_call_and_the_rest_wait_for_the_result(url: str) -> None:
    with Store(url) as store, crew_on(url) as crew, ThreadPoolExecutor(WORKERS) as pool:
        for round in range(ROUNDS):
            seq = ask(store, f"k{round}")
            for number in range(WORKERS):
                crew.tell(number, "call", f"k{round}", seq, 60, f"output of {number}")
            outcomes = list(pool.map(crew.outcome, range(WORKERS)))
            (winner,) = [number for number, (outcome, _) in enumerate(outcomes) if outcome == "ran"]
            output = f"output of {winner}"
            assert sorted(outcomes) == [["ran", output]] + [["replayed", output]] * (WORKERS - 1)
            assert_finished_once(store, f"k{round}", seq, output)
