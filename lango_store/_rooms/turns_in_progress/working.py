"""Workers: claim owed turns, renew their leases while a handler runs them, and save them or note why they failed.

`Worker` has the steps, which use the database. `work` runs handlers in threads, `work_async` in an event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
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
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import check_duration
from lango_store._rooms.turns_in_progress import claims, leases
from lango_store._rooms.turns_in_progress.errors import BudgetExhausted
from lango_store._rooms.turns_in_progress.leases import Retry
from lango_store._rooms.turns_in_progress.running import TurnLimit, has_discarded
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidState, LangoStoreError, NotPermitted, quoted

logger = logging.getLogger("lango_store")

_SHORTEST_LEASE: Final = timedelta(milliseconds=100)
_SHORTEST_PAUSE: Final = 0.02
_GROWTH: Final = 4
"""The factor by which the pause before the next attempt grows."""
_LONGEST_PAUSE: Final = timedelta(days=1)
_MOST_GROWTHS: Final = 14  # a longer pause than one day, even from 1 ms, and still a timedelta from one day
_REFUSED_PAUSE: Final = 60.0
"""The seconds until a session whose claim has failed is tried again."""


class Worker:
    """One call of `work`, and the turns that it runs."""

    def __init__(
        self,
        context: Context,
        open_turn: Callable[[str, str | None], RunningTurn],
        chosen: Filter,
        *,
        concurrency: int,
        lease: timedelta,
        poll: timedelta,
        attempts: int,
        backoff: timedelta,
        once: bool,
    ) -> None:
        for name, number in (("concurrency", concurrency), ("attempts", attempts)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{name}={quoted(number)} is not a number of 1 or more")
        if context.in_callers_transaction:
            raise InvalidState("a worker needs its own transactions: call work() on the store itself")
        self._context, self._open_turn, self._chosen = context, open_turn, chosen
        self.concurrency, self._attempts, self._once = concurrency, attempts, once
        self._renewal = check_duration("lease", lease, _SHORTEST_LEASE).total_seconds() / 3
        self._poll = check_duration("poll", poll).total_seconds()
        self._backoff = check_duration("backoff", backoff)
        self._renew_at = self._asked_at = self._ask_at = 0.0
        self._is_stopping = self._was_alone = False
        self._alone: RunningTurn | None = None  # it has to run alone, because its last process died
        self._claiming: str | None = None
        self._refused: dict[str, float] = {}  # the time of the next try
        self.running: set[RunningTurn] = set()  # two for a session if the older one has lost its lease
        self.saved: list[str] = []
        self.wake: Callable[[], object] = lambda: None

    def step(self) -> list[RunningTurn]:
        """Renew the leases that are due, and claim turns for the handlers that are free."""
        now = monotonic()
        if self.running and now >= self._renew_at:
            self._renew_at = now + self._renewal
            for turn in [*self.running]:
                self._renew(turn)
        free = self._free()
        if not free or now < self._ask_at:
            return []
        turns = [*self.running]  # before the read: a turn that fails during the read is owed again
        self._refused = {key: again for key, again in self._refused.items() if self._once or now < again}
        running = claims.Running(turns, self._was_alone, self._refused.keys())
        self._asked_at, self._ask_at = now, now + self._poll * random.uniform(1, 1.25)  # workers spread out
        self._claiming = None
        try:
            if not self._context.on_primary().read(claims.is_any_due, self._chosen, running):
                if self._once and not turns:  # otherwise keep the flag, which SIGTERM may just have set
                    self._is_stopping = True
                return []
            claim = (self._chosen, free, self._attempts, self._open_claimed, running)
            claimed, is_alone = self._context.transact(claims.claim, *claim)
        except Exception as error:
            self._claim_failed(error, now)
            return []
        if not claimed:  # another worker was first, or all of them were given up
            self._ask_at = now + _SHORTEST_PAUSE
        if not turns:
            self._renew_at = now + self._renewal
        self._alone, self._was_alone = claimed[0] if is_alone else None, False
        self.running |= {*claimed}
        return claimed

    def _free(self) -> int:
        """Return how many turns may be claimed."""
        return 0 if self._is_stopping or self._alone in self.running else self.concurrency - len(self.running)

    def _open_claimed(self, key: str, turn_id: str | None) -> RunningTurn:
        self._claiming = key
        return self._open_turn(key, turn_id)

    def _claim_failed(self, error: Exception, now: float) -> None:
        """Leave out the session whose claim has failed, for example because of a trigger, so that others are claimed.

        Raises:
            Exception: The error does not depend on a session.
        """
        is_of_database = isinstance(error, DatabaseBusy | DatabaseUnavailable)
        if self._claiming is not None and (not is_of_database or isinstance(error, NotPermitted)):
            logger.warning("the turn of session %s could not be claimed: %s", quoted(self._claiming), error)
            self._refused[self._claiming] = now + _REFUSED_PAUSE
            self._ask_at = now
        elif self._once or not is_of_database:
            raise error
        else:
            logger.warning("owed turns could not be claimed, the next poll tries again: %s", error)

    def _renew(self, turn: RunningTurn) -> None:
        try:
            self._context.write(turn.lease.renew, turn.key)
        except (DatabaseBusy, DatabaseUnavailable) as error:
            logger.warning("the lease of turn %s was not renewed: %s", quoted(turn.id), error)
        except LangoStoreError:  # another process has the turn, or the session was deleted
            turn.lease.lost.note()

    def pause(self) -> float | None:
        """Return the seconds until the next step; None if the work is done."""
        if self._is_stopping and not self.running:
            return None
        times = [self._renew_at] * bool(self.running)
        if self._free():
            times.append(self._ask_at)
        return max(min(times, default=0) - monotonic(), 0)  # the last turn may just have ended

    def begin(self, turn: RunningTurn) -> bool:
        """Begin a claimed turn, and take the messages of the inbox; return False if the turn is already stored."""
        if turn.begin().replayed:
            self._context.transact(leases.settle, turn.key, turn.lease.token)
            return False
        turn.take_inbox()
        if _has_nothing(turn):
            if turn._was_claimed or not self._context.on_primary().read(has_discarded, turn.key):
                self._context.transact(leases.settle, turn.key, turn.lease.token)
                return False
            turn._needs_messages = False  # a summary may have replaced them
        return True

    def end(self, turn: RunningTurn, error: BaseException | None, *, is_cancelled: bool = False) -> None:
        """Save a turn whose handler has ended or, after an error, note when to try again."""
        try:
            self._end(turn, error, is_cancelled=is_cancelled)
        except Exception:  # it would be lost, and the worker must not renew the lease for ever
            logger.exception("turn %s is tried again when its lease has ended", quoted(turn.id))
        finally:
            self.forget(turn)

    def forget(self, turn: RunningTurn) -> None:
        """Stop renewing the lease of a turn, and claim others."""
        self.running.discard(turn)
        if turn is self._alone:
            self._alone, self._was_alone = None, True
        self._ask_at = 0.0
        self.wake()

    def _end(self, turn: RunningTurn, error: BaseException | None, *, is_cancelled: bool) -> None:
        if error is None and turn.stored is None and not _has_nothing(turn):
            try:
                turn.save()
            except Exception as failure:
                error = failure
        if error is not None:
            has_lease = turn._abandon(Retry(turn.attempt - 1) if is_cancelled else self._next_attempt(turn, error))
            attempt = quoted(turn.id), turn.attempt, quoted(turn.key)
            if not has_lease:
                logger.info("turn %s, attempt %d, of session %s was stopped, or another process has it", *attempt)
            elif isinstance(error, BudgetExhausted):
                logger.info("turn %s, attempt %d, of session %s waits: %s", *attempt, error)
                if error._pause is not None and turn._limit is not None:
                    self._retry_after_reset(turn, turn._limit)
            elif not is_cancelled:
                logger.warning("turn %s, attempt %d, of session %s has failed", *attempt, exc_info=error)
        elif turn.stored is not None and not turn.replayed:
            self.saved.append(turn.id)

    def _retry_after_reset(self, turn: RunningTurn, limit: TurnLimit) -> None:
        """Make a refused turn due if its budget was reset before the turn was seen to wait for it."""
        if self._context.transact(limit._has_room, turn.key):
            self._context.transact(claims.retry, turn.key)

    def _next_attempt(self, turn: RunningTurn, error: BaseException) -> Retry:
        if isinstance(error, BudgetExhausted):  # not an attempt
            pause = self._backoff if error._pause is None else min(error._pause, _LONGEST_PAUSE)
            is_refused = turn._was_claimed and not turn._has_begun
            return Retry(turn.attempt - 1, pause, waits_for(error.scope), unclaims=is_refused)
        pause = min(self._backoff * _GROWTH ** min(turn.attempt - 1, _MOST_GROWTHS), _LONGEST_PAUSE)
        return Retry(turn.attempt, None if turn.attempt >= self._attempts else pause, type(error).__name__)

    def _ask_soon(self) -> None:
        self._ask_at = min(self._ask_at, self._asked_at + _SHORTEST_PAUSE)
        self.wake()

    def _stop(self) -> None:
        self._is_stopping = True
        self.wake()

    @contextmanager
    def woken_by(self, wake: Callable[[], object]) -> Iterator[None]:
        """Wake after writes of this store and at SIGTERM, which ends the work; at the end, give back what still runs.

        A turn that is given back can be continued by another process at once.
        """
        self.wake = wake
        self._context.after_transact.add(self._ask_soon)
        try:
            with _on_sigterm(self._stop):
                yield
        finally:
            self._context.after_transact.discard(self._ask_soon)
            for turn in [*self.running]:
                with suppress(LangoStoreError):  # then the lease ends on its own
                    self._context.transact(leases.postpone, turn.key, turn.lease.token, Retry(turn.attempt - 1))


def waits_for(scope: str) -> str:
    """Return the `last_error` of a turn that waits for a budget."""
    return f"{BudgetExhausted.__name__}: {scope}"


def _has_nothing(turn: RunningTurn) -> bool:
    """Return True if the session waited for messages that no longer exist, or that the turn has and are removed."""
    return turn._needs_messages and not turn.messages


@contextmanager
def _on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function at SIGTERM, then the application's own handler; only the main thread can."""
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        stop()
        if callable(previous):
            previous(number, frame)

    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, previous)


def work(worker: Worker, handle: Callable[[Any], object], limit_of: Callable[[Any], Any] | None = None) -> int:
    """Run owed turns in threads, until SIGTERM or, with `once`, until none is due; return how many were saved."""

    def run(turn: RunningTurn) -> None:
        error = None
        try:
            if limit_of is not None:
                turn._limit = limit_of(turn)
            if worker.begin(turn):
                handle(turn)
        except BaseException as raised:
            error = raised
        worker.end(turn, error)

    woken = threading.Event()
    with ThreadPoolExecutor(worker.concurrency, "lango_store_work") as threads, worker.woken_by(woken.set):
        while True:
            for turn in worker.step():
                threads.submit(contextvars.copy_context().run, run, turn)
            if (pause := worker.pause()) is None:
                return len(worker.saved)
            woken.wait(pause)
            woken.clear()


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call a function in an event loop, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


async def work_async(
    threads: Threads,
    worker: Worker,
    handle: Callable[[Any], Awaitable[object]],
    limit_of: Callable[[Any], Any] | None = None,
) -> int:
    """Run owed turns in tasks, as `work` does in threads; after a cancellation, cancel the tasks too."""
    loop, woken, working = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
    tasks: dict[RunningTurn, asyncio.Task[None]] = {}
    is_ending = False

    async def run(turn: RunningTurn) -> None:
        error: BaseException | None = None
        task = cast(asyncio.Task[Any], asyncio.current_task())

        def cancel(by_write: bool) -> None:
            if not by_write:  # otherwise the exception ends the handler
                call_soon(loop, task.cancel)

        turn.lease.lost.calls.append(cancel)
        try:
            if limit_of is not None:
                limit = limit_of(turn)
                turn._limit = await limit if inspect.isawaitable(limit) else limit
            if await threads.run_to_end(partial(worker.begin, turn)):
                await handle(turn)
        except BaseException as raised:
            error = raised
        # Otherwise a cancelled handler has failed: its application, or a library, has cancelled it.
        is_cancelled = is_ending or cast(Any, working).cancelling() > 0
        await threads.run_to_end(partial(worker.end, turn, error, is_cancelled=is_cancelled))

    def forget(turn: RunningTurn) -> None:
        del tasks[turn]
        if turn in worker.running:  # cancelled before its first step: the lease ends on its own
            worker.forget(turn)

    with worker.woken_by(lambda: loop.call_soon_threadsafe(woken.set)):
        try:
            while True:
                for turn in await threads.run_to_end(worker.step):
                    tasks[turn] = task = asyncio.create_task(run(turn))
                    task.add_done_callback(lambda _, turn=turn: forget(turn))  # type: ignore[misc]
                if (pause := worker.pause()) is None:
                    return len(worker.saved)
                timer = loop.call_later(pause, woken.set)  # asyncio.timeout would cancel this task
                await woken.wait()
                timer.cancel()
                woken.clear()
        finally:
            is_ending = True
            for task in [*tasks.values()]:
                task.cancel()
            if tasks:
                await asyncio.wait([*tasks.values()])
