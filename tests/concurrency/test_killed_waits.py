"""Calls that wait for jobs, with killed workers whose clocks differ, and a job server that reports more than once.

LANGO_STORE_WORK_SECONDS sets how long processes are killed.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
from support.counting_tool import counting_tool
from support.jobs import Jobs
from support.polling import until
from support.processes import Program

from lango_store import Message, Store, SuspensionExpired

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("LANGO_STORE_WORK_SECONDS", "4"))
WORKERS: Final = 8
PAUSE: Final = 0.05
TIMED_OUT: Final = "TimeoutError: the call has waited too long for its result"
WORKER: Final = """
import logging, random, sys
from datetime import UTC, datetime, timedelta
from urllib.request import Request, urlopen
from lango_store import CallUnknown, Message, Store, ToolCall

url, tool, *holds = sys.argv[1:]

def start(key):
    with urlopen(Request(f"{tool}/job", b"", {"Idempotency-Key": key})) as response:
        response.read()

def handle(conversation, turn):
    log = conversation.all_messages()
    asking = next((each for each in log if each.tool_calls), None)
    if asking is None:
        asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="report", arguments={})] * 2))
    for position in range(2):
        try:
            with turn.call(asking.seq, position) as effect:
                if not effect.replayed:
                    start(effect.key)
                    effect.wait({"job": effect.key}, until=timedelta(seconds=random.choice([0.3, 1, 60])))
        except CallUnknown as error:
            conversation.calls.resolve(error.seq, error.position, failed="lost")
    if holds:
        print("held", flush=True)
        sys.stdin.read()
    if not any(each.state == "waiting" for each in conversation.calls.list()):
        turn.append(Message.assistant("answer"))

logging.disable()
skew = timedelta(seconds=random.uniform(-0.5, 0.5))
with Store(url, clock=lambda: datetime.now(UTC) + skew) as store:
    print("ready", flush=True)
    seconds = timedelta(seconds=1)
    store.work(handle, concurrency=1, lease=seconds, poll=seconds / 10, backoff=seconds / 10, attempts=1_000)
"""


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with the clock of the database, which the processes use too."""
    with Store(url) as store:
        yield store


def start_worker(url: str, tool: str) -> Program:
    worker = Program(WORKER, url, tool)
    assert worker.stdout.readline() == "ready\n", worker.stderr.read()
    return worker


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_jobs_are_started_once_and_each_call_gets_one_result(url: str, store: Store) -> None:
    choose, keys, kills = random.Random(0), list[str](), 0
    with counting_tool() as tool:
        jobs = Jobs(store, tool)
        workers = [start_worker(url, tool.url) for _ in range(WORKERS)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            keys.append(store.open(f"k{len(keys)}").key)
            store.conversation(keys[-1]).inbox.put(Message.user("report"))
            if choose.random() < 0.3:
                number, kills = choose.randrange(WORKERS), kills + 1
                workers[number].send_signal(signal.SIGKILL)
                workers[number].communicate()
                workers[number] = start_worker(url, tool.url)
            time.sleep(PAUSE)

        def is_idle() -> bool:
            for each in store.owed(limit=1_000).items:
                store.conversation(each.key).turns.retry()  # it may wait for its next attempt
            with store.snapshot() as view:  # a turn can end, and its calls can wait, between two reads
                return not (view.owed(future=True, limit=1).items or view.turns.list_in_progress(limit=1).items)

        until(is_idle, 120)
        jobs.end()
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            worker.communicate()
    results = Counter[str]()
    for key in keys:
        conversation = store.conversation(key)
        log, calls = conversation.all_messages(), conversation.calls.list()
        assert [each.role for each in log] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [each.state for each in calls] == ["finished", "finished"]
        assert sorted(each.result_seq or 0 for each in calls) == [3, 4]
        for call in calls:
            content = str(log[(call.result_seq or 0) - 1].content)
            is_stored = jobs.stored[call.effect_key] == 1
            assert content == f"done {call.effect_key}" if is_stored else content in (TIMED_OUT, "lost")
            results["done" if is_stored else content] += 1
    assert set(tool.runs.values()) == {1}
    assert max(jobs.stored.values()) == 1
    assert store.calls.waiting().items == []
    figures = f"{len(keys)} sessions, {kills} kills, {dict(results)}, {jobs.repeated.total()} repeated"
    print(f"{figures}, {jobs.late.total()} late")
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.timeout(120)
def test_process_that_is_killed_between_the_wait_and_the_end_of_its_turn_runs_nothing_twice(
    url: str, store: Store
) -> None:
    store.open("k").inbox.put(Message.user("report"))
    with counting_tool() as tool:
        first = Program(WORKER, url, tool.url, "holds")
        assert [first.stdout.readline() for _ in range(2)] == ["ready\n", "held\n"]
        first.send_signal(signal.SIGKILL)
        first.communicate()
        assert len(store.calls.waiting().items) == 2
        second = start_worker(url, tool.url)
        until(lambda: len(store.conversation("k").turns.list()) == 1, 60)
        for key in [*tool.runs]:
            try:
                store.calls.finish({"job": key}, "done")
            except SuspensionExpired:
                continue
        until(lambda: store.conversation("k").all_messages()[-1].content == "answer", 100)
        second.send_signal(signal.SIGTERM)
        second.communicate()
    assert sorted(tool.runs.values()) == [1, 1]
    assert sum(each.role == "tool" for each in store.conversation("k").all_messages()) == 2
