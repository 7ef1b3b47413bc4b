"""Worker processes that are killed and frozen while they answer messages."""

import os
import random
import signal
import threading
from datetime import timedelta
from typing import Final

from support.processes import Program

from lango_store import AlreadyAnswered, Message, Store

WORKERS: Final = 8
SESSIONS: Final = 12
SEED: Final = os.environ.get("LANGO_STORE_WORK_SEED", "0")


class Soak:
    """Eight worker processes, the messages that were sent, and what was done to the processes.

    The program of a worker gets `words` and its kind, `sync` or `async`. It prints `ready`, and `failed` for each error
    that it raises.
    """

    def __init__(self, store: Store, source: str, lease: timedelta, *words: str) -> None:
        self.store, self.source, self.lease, self.words = store, source, lease, words
        self.choose = random.Random(SEED)
        self.sent: dict[str, list[str]] = {store.open(f"k{number}").key: [] for number in range(SESSIONS)}
        self.kills = self.freezes = self.errors = 0
        self.frozen: dict[Program, threading.Timer] = {}
        self.workers = [self.start(number) for number in range(WORKERS)]

    def start(self, number: int) -> Program:
        worker = Program(self.source, *self.words, ("sync", "async")[number % 2])
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
                self.store.conversation(each.key).suspensions.answer(each.id, "yes")
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
            continues = threading.Timer(self.lease.total_seconds() + self.choose.random(), self.thaw, [worker])
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
        with self.store.snapshot() as view:  # a turn can end between two reads
            return not (
                view.owed(limit=1).items or view.turns.list_in_progress().items or view.suspensions.list().items
            )

    def stop(self) -> None:
        """Stop the workers cleanly."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            out, error = worker.communicate()
            assert (worker.returncode, error) == (0, "")
            self.errors += out.count("failed")
