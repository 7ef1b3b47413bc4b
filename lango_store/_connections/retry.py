"""Decide which calls are repeated after a transient error, how often and for how long."""

import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

import sqlalchemy as sa

from lango_store._connections import cancellation
from lango_store._connections.group_commit import QueueBusy
from lango_store._connections.replicas import ReplicaLost
from lango_store._dialect import TransientReason, dialect_of
from lango_store.errors import (
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    LangoStoreError,
    MessageNotFound,
    SessionExists,
)

R = TypeVar("R")

logger = logging.getLogger("lango_store")

_LOCK_TIMEOUT: Final = 30.0  # as long as SQLite waits for its lock
_MIN_PAUSE: Final = 0.01
_MAX_PAUSE: Final = 1.0
_MAX_DOUBLINGS: Final = 7

_REPEAT_ERRORS: Final = (SessionExists, MessageNotFound, Conflict)
"""Errors that a retry may raise because an earlier try was committed."""


class Retry:
    """Repeats failed calls for up to `seconds`.

    Calls that the database rolled back, as after a deadlock, are repeated for up to 30 seconds even if
    `seconds` is less.
    """

    def __init__(self, engine: sa.Engine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds
        self.on_retry: Callable[[], None] | None = None

    @property
    def is_on(self) -> bool:
        """True if calls are also repeated after errors other than a rollback by the database."""
        return self._seconds > 0

    def retry_after(self, call: Callable[[], R], error: LangoStoreError, *, if_lost: bool, detects_repeats: bool) -> R:
        """Repeat a call that failed with this error until it succeeds or the time is up.

        An error that is not transient is raised at once. If the connection was lost, the try may have been committed,
        so the call is then repeated only with `if_lost`. If the repeated call raises one of `_REPEAT_ERRORS`, its own
        earlier commit may be the cause, so `DatabaseUnavailable` is raised instead. But with `detects_repeats`, the
        call recognizes its own earlier commit, and its error is raised unchanged.
        """
        first, start, tries, lost = error, monotonic(), 1, False
        while True:
            reason = self._reason(error)
            lost = lost or reason is TransientReason.LOST
            remaining = start + self._time_limit(reason) - monotonic()
            pause = random.uniform(0, min(_MAX_PAUSE, _MIN_PAUSE * 2 ** min(tries, _MAX_DOUBLINGS)))
            if remaining <= 0 or (lost and not if_lost) or not cancellation.pause(min(pause, remaining)):
                break
            tries += 1
            if self.on_retry is not None:
                self.on_retry()
            try:
                result = call()
            except (DatabaseBusy, DatabaseUnavailable) as failed:
                error = failed
            except _REPEAT_ERRORS as repeated:
                if not lost or detects_repeats:
                    raise
                raise DatabaseUnavailable(
                    f"the connection was lost, and the retry failed: {repeated.fact}. "
                    "An earlier try may have succeeded: check what is stored"
                ) from repeated
            except cancellation.Cancelled:
                break
            else:
                logger.warning("done after %d tries in %.1f s; the first failed: %s", tries, monotonic() - start, first)
                return result
        if tries > 1:
            logger.warning("given up after %d tries in %.1f s: %s", tries, monotonic() - start, error)
        raise error

    def _reason(self, error: LangoStoreError) -> TransientReason | None:
        if isinstance(error, ReplicaLost):
            return TransientReason.ROLLED_BACK
        if isinstance(error, QueueBusy):
            return TransientReason.REFUSED
        return None if error.driver_error is None else dialect_of(self._engine).transient_reason(error.driver_error)

    def _time_limit(self, reason: TransientReason | None) -> float:
        if reason is None:
            return 0
        return max(self._seconds, _LOCK_TIMEOUT) if reason is TransientReason.ROLLED_BACK else self._seconds
