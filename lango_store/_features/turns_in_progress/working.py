"""Workers: claim owed turns, renew their leases while a handler runs them, and save them or note why they failed.

`Worker` has the steps, which use the database. `work` runs handlers in threads, `work_async` in an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, cast

from lango_store._connections.context import Context
from lango_store._connections.threads import Threads
from lango_store._features.turns_in_progress import claims, running
from lango_store._features.turns_in_progress.claims import Chosen, WorkFilters
from lango_store._features.turns_in_progress.running_turn import RunningTurn
from lango_store._operations.log import leases
from lango_store._operations.log.leases import Retry
from lango_store._operations.session.sessions import check_duration
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidState, LangoStoreError, LeaseLost, quoted

logger = logging.getLogger("lango_store")

_SHORTEST_LEASE: Final = timedelta(milliseconds=100)
_SHORTEST_PAUSE: Final = 0.02
_GROWTH: Final = 4
"""The factor by which the pause before an attempt grows with each attempt."""


class Claim:
    """A turn that a worker runs, and the number of its attempt."""

    def __init__(self, turn: RunningTurn, attempt: int) -> None:
        self.turn, self.attempt = turn, attempt
        self.cancel: Callable[[], object] = lambda: None

    def begin(self) -> bool:
        """Begin the turn, and take the messages of the inbox; return False if the turn is already stored."""
        if self.turn.begin().replayed:
            return False
        self.turn.take_inbox()
        return True


class Worker:
    """The turns that one call of `work` runs, by the key of the session."""

    def __init__(
        self,
        context: Context,
        open_turn: Callable[[str, str, timedelta], RunningTurn],
        *,
        concurrency: int,
        lease: timedelta,
        poll: timedelta,
        attempts: int,
        backoff: timedelta,
        once: bool,
        which: WorkFilters,
    ) -> None:
        for name, number in (("concurrency", concurrency), ("attempts", attempts)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{name}={quoted(number)} is not a number of 1 or more")
        if context.in_callers_transaction:
            raise InvalidState("a worker needs its own transactions: call work() on the store itself")
        check_duration("poll", poll)
        self._context, self._chosen = context, Chosen(which)
        self._open_turn = open_turn
        self._concurrency, self._attempts, self._once = concurrency, attempts, once
        self._lease = check_duration("lease", lease, _SHORTEST_LEASE)
        self._poll, self._backoff = poll.total_seconds(), check_duration("backoff", backoff)
        self._renew_at = self._asked_at = self._ask_at = 0.0
        self._is_stopping = False
        self.running: dict[str, Claim] = {}
        self.saved: list[str] = []
        self.wake: Callable[[], object] = lambda: None

    # The loop

    def step(self) -> list[Claim]:
        """Renew the leases that are due, and claim turns for the handlers that are free."""
        if self.running and monotonic() >= self._renew_at:
            self._renew_at = monotonic() + self._lease.total_seconds() / 3
            for claim in [*self.running.values()]:
                self._renew(claim)
        free = self._concurrency - len(self.running)
        if self._is_stopping or free < 1 or monotonic() < self._ask_at:
            return []
        self._asked_at = monotonic()
        self._ask_at = self._asked_at + self._poll * random.uniform(1, 1.25)  # workers that start together spread out
        try:
            return self._claim(free)
        except (DatabaseBusy, DatabaseUnavailable) as error:
            if self._once:
                raise
            logger.warning("owed turns could not be read, the next poll tries again: %s", error)
            return []

    def _claim(self, free: int) -> list[Claim]:
        if not self._context.on_primary().read(claims.is_any_due, self._chosen):
            self._is_stopping = self._once and not self.running
            return []
        if not self.running:
            self._renew_at = monotonic() + self._lease.total_seconds() / 3
        claimed = [
            Claim(turn, attempt)
            for turn, attempt in self._context.transact(claims.claim, self._chosen, free, self._attempts, self._open)
        ]
        self.running |= {claim.turn.key: claim for claim in claimed}
        if self._once:
            self._ask_at = self._asked_at + _SHORTEST_PAUSE
        return claimed

    def _open(self, key: str, turn_id: str | None) -> RunningTurn:
        return self._open_turn(key, turn_id or self._context.new_id(), self._lease)

    def _renew(self, claim: Claim) -> None:
        try:
            self._context.write(leases.extend, claim.turn.key, claim.turn.lease)
        except (DatabaseBusy, DatabaseUnavailable) as error:
            logger.warning("the lease of turn %s was not renewed: %s", quoted(claim.turn.id), error)
        except LangoStoreError:  # another process has the turn, or the session was deleted
            claim.cancel()

    def pause(self) -> float | None:
        """Return the seconds until the next step; None if the work is done."""
        if self._is_stopping and not self.running:
            return None
        times = [self._renew_at] * bool(self.running)
        if len(self.running) < self._concurrency and not self._is_stopping:
            times.append(self._ask_at)
        return max(min(times) - monotonic(), 0)

    def ask_soon(self) -> None:
        """Ask for owed turns soon, because this process has written something that may be one."""
        self._ask_at = min(self._ask_at, self._asked_at + _SHORTEST_PAUSE)
        self.wake()

    def stop(self) -> None:
        """Claim no more turns; the running ones end as usual."""
        self._is_stopping = True
        self.wake()

    # A turn

    def end(self, claim: Claim, error: BaseException | None, *, is_cancelled: bool = False) -> None:
        """Save a turn whose handler has ended or, after an error, note when to try again.

        A handler that the worker has cancelled does not count as an attempt.
        """
        turn = claim.turn
        try:
            if error is None and turn.stored is None:
                turn.save()
            if error is None and not turn.replayed:
                self.saved.append(turn.id)
            if turn.replayed:  # it was stored while its lease was open
                self._context.transact(running.abandon, turn.key, turn.id, turn.lease.token, "", False)
        except Exception as failure:
            error = failure
        if error is not None:
            turn.abandon(Retry(claim.attempt - 1) if is_cancelled else self._retry(claim, error))
        self.running.pop(turn.key, None)
        self._ask_at = 0.0
        self.wake()

    def _retry(self, claim: Claim, error: BaseException) -> Retry:
        name = quoted(claim.turn.id), claim.attempt, quoted(claim.turn.key)
        if isinstance(error, LeaseLost):
            logger.warning("turn %s, attempt %d in session %s, has lost its lease", *name)
        else:
            logger.warning("turn %s, attempt %d in session %s, has failed", *name, exc_info=error)
        is_last = claim.attempt >= self._attempts
        pause = None if is_last else min(self._backoff * _GROWTH ** (claim.attempt - 1), timedelta(days=1))
        return Retry(claim.attempt, pause, type(error).__name__)

    def give_back(self) -> None:
        """Release the leases of the turns that are running, so that another process can continue them at once."""
        for claim in [*self.running.values()]:
            with suppress(LangoStoreError):  # then the lease ends on its own
                turn, retry = claim.turn, Retry(claim.attempt - 1)
                self._context.transact(leases.postpone, turn.key, turn.lease.token, retry)

    @contextmanager
    def listening(self, wake: Callable[[], object]) -> Iterator[None]:
        """Ask soon after `Context.wake_workers`, stop at SIGTERM, and give back what still runs at the end."""
        self.wake = wake
        self._context.workers.add(self.ask_soon)
        try:
            with _on_sigterm(self.stop):
                yield
        finally:
            self._context.workers.discard(self.ask_soon)
            self.give_back()


@contextmanager
def _on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function at SIGTERM, then the application's own handler; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        stop()
        if callable(previous):
            previous(number, frame)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, previous)


def work(worker: Worker, concurrency: int, handle: Callable[[RunningTurn], object]) -> int:
    """Run owed turns in threads, until SIGTERM or, with `once`, until none is due; return how many were saved."""

    def run(claim: Claim) -> None:
        error = None
        try:
            if claim.begin():
                handle(claim.turn)
        except BaseException as raised:
            error = raised
        worker.end(claim, error)

    woken = threading.Event()
    with ThreadPoolExecutor(concurrency, "lango_store_work") as threads, worker.listening(woken.set):
        while True:
            for claim in worker.step():
                threads.submit(run, claim)
            if (pause := worker.pause()) is None:
                return len(worker.saved)
            woken.wait(pause)
            woken.clear()


async def work_async(threads: Threads, worker: Worker, handle: Callable[[RunningTurn], Awaitable[object]]) -> int:
    """Run owed turns in tasks, as `work` does in threads; after a cancellation, cancel the tasks too."""

    async def run(claim: Claim) -> None:
        error: BaseException | None = None
        try:
            if await threads.run_to_end(claim.begin):
                await handle(claim.turn)
        except BaseException as raised:
            error = raised
        is_cancelled = cast(Any, asyncio.current_task()).cancelling() > 0  # by this function, not by the handler
        await threads.run_to_end(partial(worker.end, claim, error, is_cancelled=is_cancelled))

    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()
    with worker.listening(lambda: loop.call_soon_threadsafe(woken.set)):
        try:
            while True:
                for claim in await threads.run_to_end(worker.step):
                    task = asyncio.create_task(run(claim))
                    claim.cancel = partial(loop.call_soon_threadsafe, task.cancel)
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                if (pause := worker.pause()) is None:
                    return len(worker.saved)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await woken.wait()
                woken.clear()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
