"""Workers that are killed, frozen and fail at random: each message is answered once and in order, or is given up.

LANGO_STORE_WORK_SECONDS sets how long processes are killed and frozen, and how long questions kill their processes.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest
from support.counting_model import counting_model
from support.paths import TESTS
from support.polling import until
from support.processes import Program
from support.soak import SESSIONS, Soak
from support.soak_worker import LEASE

from lango_store import Message, Store

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("LANGO_STORE_WORK_SECONDS", "4"))
PAUSE: Final = 0.1
SOURCE: Final = (TESTS / "support" / "soak_worker.py").read_text()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with the clock of the database, which the processes use too."""
    with Store(url) as store:
        yield store


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_messages_are_answered_once_and_in_order_by_killed_and_frozen_workers(url: str, store: Store) -> None:
    with counting_model() as model:
        soak = Soak(store, SOURCE, LEASE, url, model.url)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            soak.send()
            soak.approve()
            soak.disturb()
            time.sleep(PAUSE)
        for timer in [*soak.frozen.values()]:
            timer.join()
        until(soak.is_idle, 120)
        soak.stop()
    turns = 0
    for key, texts in soak.sent.items():
        conversation = store.conversation(key)
        log = conversation.all_messages()
        assert [each.content for each in log if each.role == "user"] == texts
        answers = [str(each.content).removeprefix("answer to ") for each in log if each.role == "assistant"]
        assert ", ".join(answers) == ", ".join(texts)
        assert all(each.turn_no is not None for each in log)
        assert conversation.drafts.list() == []
        turns += len(conversation.turns.list())
    calls = model.calls.total()
    figures = f"{sum(map(len, soak.sent.values()))} messages, {turns} turns, {calls} model calls, {soak.kills} kills, "
    print(f"{figures}{soak.freezes} freezes, {soak.errors} errors")
    assert calls <= turns + soak.kills + soak.freezes + soak.errors
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


ATTEMPTS: Final = 3
DEADLY: Final = f"""
import os, signal, sys
from datetime import timedelta
from lango_store import Message, Store

def handle(conversation, turn):
    answered = max((each.seq for each in turn.messages if each.role == "assistant"), default=0)
    questions = [each.content for each in turn.messages if each.seq > answered]
    if "deadly" in questions:
        os.kill(os.getpid(), signal.SIGKILL)
    if questions:
        turn.append(Message.assistant("answer to " + ", ".join(questions)))

options = {{"concurrency": 4, "attempts": {ATTEMPTS}, "lease": timedelta(seconds=2), "poll": timedelta(seconds=0.1)}}
with Store(sys.argv[1]) as store:
    store.work(handle, **options)
"""


class Attended:
    """Three workers, which are started again when they die."""

    def __init__(self, url: str) -> None:
        self.url, self.deaths = url, 0
        self.workers = [Program(DEADLY, url) for _ in range(3)]

    def restart(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.returncode is not None:
                out, error = worker.communicate()
                assert (worker.returncode, out, error) == (-signal.SIGKILL, "", "")
                self.deaths += 1
                self.workers[number] = Program(DEADLY, self.url)

    def stop(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.communicate()


@pytest.mark.timeout(300 + 4 * SECONDS)
def test_question_that_kills_its_process_is_given_up_and_all_others_are_answered(url: str, store: Store) -> None:
    choose = random.Random(1)
    sent: dict[str, list[str]] = {store.open(f"k{number}").key: [] for number in range(SESSIONS)}
    deadly: list[str] = []

    def send_deadly() -> None:
        deadly.append(store.open(f"deadly-{len(deadly)}").key)
        store.conversation(deadly[-1]).inbox.put(Message.user("deadly"))

    send_deadly()
    workers = Attended(url)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        key = choose.choice([*sent])
        sent[key].append(f"{key}-{len(sent[key])}")
        store.conversation(key).inbox.put(Message.user(sent[key][-1]))
        if choose.random() < 0.02:
            send_deadly()
        workers.restart()
        time.sleep(PAUSE / 2)

    def is_idle() -> bool:
        workers.restart()
        owed = store.owed(limit=1_000).items
        return {each.key for each in owed if each.given_up} == set(deadly) == {each.key for each in owed}

    until(is_idle, 120 + 2 * SECONDS)
    workers.stop()
    for key, texts in sent.items():
        log = store.conversation(key).all_messages()
        assert [each.content for each in log if each.role == "user"] == texts
        answers = [str(each.content).removeprefix("answer to ") for each in log if each.role == "assistant"]
        assert ", ".join(answers) == ", ".join(texts)
    print(f"{sum(map(len, sent.values()))} questions, {len(deadly)} deadly, {workers.deaths} deaths")
    assert workers.deaths <= len(deadly) * (ATTEMPTS + 1)
    assert {each.attempts for each in store.owed(limit=1_000).items} == {ATTEMPTS}
