"""Retries after transient errors: which calls, how often and for how long."""

import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

import sqlalchemy as sa

from lango_store._connections import cancellation
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

_LOCK_TIMEOUT: Final = 30.0  # SQLite waits as long for its lock
_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 1.0
_DOUBLINGS: Final = 7

_REPEAT_ERRORS: Final = (SessionExists, MessageNotFound, Conflict)
"""Errors that a repeated call may raise because the first one was committed."""


class Retry:
    """Retries calls for a number of seconds, and always those that other transactions aborted."""

    def __init__(self, engine: sa.Engine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds

    @property
    def is_on(self) -> bool:
        """True if more is retried than calls that other transactions aborted."""
        return self._seconds > 0

    def retry_after(self, call: Callable[[], R], error: LangoStoreError, *, if_lost: bool, detects_repeats: bool) -> R:
        """Retry a call that failed with this error until it succeeds or the time is up.

        A call whose connection was lost may have been committed: it is retried only `if_lost`. Unless a second call is
        `detects_repeats` from the first, the retry raises `DatabaseUnavailable` if it finds the result of the first.
        """
        first, since, calls, lost = error, monotonic(), 1, False
        while True:
            reason = self._reason(error)
            lost = lost or reason is TransientReason.LOST
            left = since + self._wait_for(reason) - monotonic()
            pause = random.uniform(0, min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2 ** min(calls, _DOUBLINGS)))
            if left <= 0 or (lost and not if_lost) or not cancellation.pause(min(pause, left)):
                break
            calls += 1
            try:
                done = call()
            except (DatabaseBusy, DatabaseUnavailable) as failed:
                error = failed
            except _REPEAT_ERRORS as refusal:
                if not lost or detects_repeats:
                    raise
                raise DatabaseUnavailable(
                    f"the connection was lost, and a second try found: {refusal.fact}; it may have been this call that "
                    "did it: look what is stored"
                ) from refusal
            except cancellation.Cancelled:
                break
            else:
                logger.warning("done after %d tries in %.1f s; the first failed: %s", calls, monotonic() - since, first)
                return done
        if calls > 1:
            logger.warning("given up after %d tries in %.1f s: %s", calls, monotonic() - since, error)
        raise error

    def _reason(self, error: LangoStoreError) -> TransientReason | None:
        if isinstance(error, ReplicaLost):
            return TransientReason.ROLLED_BACK
        return None if error.driver_error is None else dialect_of(self._engine).transient_reason(error.driver_error)

    def _wait_for(self, reason: TransientReason | None) -> float:
        if reason is None:
            return 0
        return max(self._seconds, _LOCK_TIMEOUT) if reason is TransientReason.ROLLED_BACK else self._seconds
