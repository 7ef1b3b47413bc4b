"""Turns that are stopped while workers claim, stream, save and are killed: no stop is lost, and nothing is doubled.

LANGO_STORE_WORK_SECONDS sets how long this lasts.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest
from support.paths import TESTS
from support.polling import until
from support.processes import Program

from lango_store import Message, Store, Turn

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("LANGO_STORE_WORK_SECONDS", "4"))
KEYS: Final = [f"k{number}" for number in range(4)]
WORKERS: Final = 3
SOURCE: Final = (TESTS / "support" / "streaming_worker.py").read_text()

SILENT: Final = """
import asyncio, sys
from datetime import timedelta
from lango_store import AsyncStore, Store

def handle(conversation, turn):
    turn.write("Once")
    turn.flush()
    print("began", flush=True)
    assert turn.stopped.wait(60)  # a model that writes nothing
    print("stopped", flush=True)

async def handle_async(conversation, turn):
    await turn.write("Once")
    await turn.flush()
    print("began", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        assert turn.stopped.is_set()
        print("stopped", flush=True)

lease = timedelta(seconds=float(sys.argv[3]))

async def work():
    async with AsyncStore(sys.argv[1]) as store:
        await store.work(handle_async, lease=lease, once=True)

if sys.argv[2] == "async":
    asyncio.run(work())
else:
    with Store(sys.argv[1]) as store:
        store.work(handle, lease=lease, once=True)
"""


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with the clock of the database, which the processes use too."""
    with Store(url) as store:
        yield store


def worker(url: str, number: int) -> Program:
    program = Program(SOURCE, url, ("sync", "async")[number % 2])
    assert program.stdout.readline() == "ready\n", program.stderr.read()
    return program


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_no_stop_is_lost_while_workers_claim_stream_save_and_are_killed(url: str, store: Store) -> None:
    choose = random.Random(0)
    sent: dict[str, list[str]] = {store.open(key).key: [] for key in KEYS}
    stopped: dict[str, dict[str, Turn]] = {key: {} for key in KEYS}
    kills = 0
    workers = [worker(url, number) for number in range(WORKERS)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        key = choose.choice(KEYS)
        conversation = store.conversation(key)
        text = f"{key}-{len(sent[key])}"
        sent[key].append(text)
        conversation.inbox.put(Message.user(text, id=text))
        time.sleep(choose.choice([0, 0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2]))
        turn = conversation.turns.stop(by=text, owed=True)
        if turn is None:
            message = conversation.find_message(text)  # it was answered before the stop
            assert message is not None
            assert message.turn_no is not None
        else:
            assert turn.id is not None
            stopped[key][turn.id] = turn
        if choose.random() < 0.05:
            kills += 1
            number = choose.randrange(WORKERS)
            workers[number].send_signal(signal.SIGKILL)
            workers[number].communicate()
            workers[number] = worker(url, number)

    def is_idle() -> bool:
        with store.snapshot() as view:  # a turn can end between two reads
            return not (view.owed().items or view.turns.list_in_progress().items)

    until(is_idle, 120)
    for program in workers:
        program.send_signal(signal.SIGTERM)
        assert program.communicate()[1] == ""
        assert program.returncode in (0, -signal.SIGTERM)  # it may just have been started
    for key, texts in sent.items():
        conversation = store.conversation(key)
        log, turns = conversation.all_messages(), conversation.turns.list()
        assert [each.content for each in log if each.role == "user"] == texts
        assert all(each.turn_no is not None for each in log)
        assert conversation.drafts.list() == []
        assert {each.id for each in turns if "stopped" in each.metadata} == stopped[key].keys()
        for each in turns:
            members = [message for message in log if message.turn_no == each.turn_no]
            if each.id in stopped[key]:
                assert members == stopped[key][each.id].messages
                # An attempt that was killed may have answered too.
                answers = [message for message in members if message.role == "assistant"]
                assert len({str(message.content) for message in answers}) == len(answers)
                assert len([message for message in answers if "interrupted" in message.extra]) <= 1
            else:
                # An attempt that was killed may have answered the first of the questions.
                asked = ", ".join(str(message.content) for message in members if message.role == "user")
                assert members[-1].content == f"answer to {asked}"
    print(f"{sum(map(len, sent.values()))} questions, {sum(map(len, stopped.values()))} stopped, {kills} kills")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_silent_handler_in_another_process_learns_of_a_stop_within_a_third_of_its_lease(
    url: str, store: Store, kind: str
) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("question"))
    with Program(SILENT, url, kind, 3) as program:
        assert program.stdout.readline() == "began\n", program.stderr.read()
        assert conversation.turns.stop() is not None
        begun = time.monotonic()
        assert program.stdout.readline() == "stopped\n", program.stderr.read()
        assert time.monotonic() - begun < 20  # a second; many more on a busy machine
        assert program.communicate() == ("", "")
    assert [each.content for each in conversation.messages()] == ["question", "Once"]
    assert store.owed().items == []
