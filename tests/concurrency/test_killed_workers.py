"""Workers that are killed, frozen and fail at random: each message is answered once and in order, or is given up.

LANGO_STORE_WORK_SECONDS sets how long processes are killed and frozen.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest
from support.counting_model import counting_model
from support.paths import TESTS
from support.polling import until
from support.processes import Program
from support.soak_worker import LEASE

from lango_store import AlreadyAnswered, Message, Store

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("LANGO_STORE_WORK_SECONDS", "4"))
WORKERS: Final = 8
SESSIONS: Final = 12
PAUSE: Final = 0.1
SOURCE: Final = (TESTS / "support" / "soak_worker.py").read_text()


class Soak:
    """Eight worker processes, the messages that were sent, and what was done to the processes."""

    def __init__(self, store: Store, url: str, model: str) -> None:
        self.store, self.url, self.model = store, url, model
        self.choose = random.Random(0)
        self.sent: dict[str, list[str]] = {store.open(f"k{number}").key: [] for number in range(SESSIONS)}
        self.kills = self.freezes = self.errors = 0
        self.frozen: dict[Program, threading.Timer] = {}
        self.workers = [self.start(number) for number in range(WORKERS)]

    def start(self, number: int) -> Program:
        worker = Program(SOURCE, self.url, self.model, ("sync", "async")[number % 2])
        assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        return worker

    def send(self) -> None:
        """Put a message into an inbox, and perhaps an earlier message again."""
        key = self.choose.choice([*self.sent])
        texts, inbox = self.sent[key], self.store.conversation(key).inbox
        texts.append(f"{key}-{len(texts)}")
        for text in [texts[-1], *self.choose.choices(texts[-3:], k=self.choose.randrange(2))]:
            inbox.put(Message.user(text, id=text))

    def approve(self) -> None:
        """Answer some of the suspensions that wait."""
        for each in self.store.suspensions.list().items[: self.choose.randrange(4)]:
            try:
                self.store.conversation(each.key).suspensions.answer_by_id(each.id, "yes")
            except AlreadyAnswered:
                raise AssertionError("the suspension was answered twice") from None

    def disturb(self) -> None:
        """Kill or freeze a process now and then."""
        number = self.choose.randrange(WORKERS)
        worker, what = self.workers[number], self.choose.random()
        if worker in self.frozen:
            return
        if what < 0.15:
            self.kills += 1
            worker.send_signal(signal.SIGKILL)
            self.errors += worker.communicate()[0].count("failed")
            self.workers[number] = self.start(number)
        elif what < 0.25 and len(self.frozen) < WORKERS // 2:
            self.freezes += 1
            worker.send_signal(signal.SIGSTOP)
            # In a thread: the frozen process may have locked the SQLite file, for which this thread then waits.
            continues = threading.Timer(LEASE.total_seconds() + self.choose.random(), self.thaw, [worker])
            self.frozen[worker] = continues
            continues.start()

    def thaw(self, worker: Program) -> None:
        worker.send_signal(signal.SIGCONT)
        del self.frozen[worker]

    def is_idle(self) -> bool:
        """Retry by hand what was given up, and return True if nothing is owed."""
        self.approve()
        owed = self.store.owed(limit=1_000).items
        for each in owed:
            assert each.given_up == (each.due_at is None)
            if each.given_up:
                self.store.conversation(each.key).turns.retry()
        return not (owed or self.store.turns.in_progress() or self.store.suspensions.list().items)

    def stop(self) -> None:
        """Stop the workers cleanly."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            out, error = worker.communicate()
            assert (worker.returncode, error) == (0, "")
            self.errors += out.count("failed")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with the clock of the database, which the processes use too."""
    with Store(url) as store:
        yield store


@pytest.mark.timeout(300 + 2 * SECONDS)
def test_messages_are_answered_once_and_in_order_by_killed_and_frozen_workers(url: str, store: Store) -> None:
    with counting_model() as model:
        soak = Soak(store, url, model.url)
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
