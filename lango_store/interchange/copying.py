"""All sessions from one database into another, session by session, each compared on both sides when it is there."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Final

import sqlalchemy as sa
from pydantic import Field

from lango_store._dialect import dialect_of
from lango_store._dialect.driver_errors import translated
from lango_store._operations import transfer
from lango_store._values.value import Value
from lango_store.errors import DamagedMessage, DatabaseBusy, DatabaseUnavailable, LangoStoreError
from lango_store.interchange.backup_reading import load
from lango_store.interchange.backup_writing import first_line, last_line, shared_lines
from lango_store.interchange.pieces import ROWS, Outcome, Pause, SharedValue, Writer, closing_lines, session_pieces
from lango_store.store import Store

BATCH: Final = 500


class Failure(Value):
    """A session, or a value of the shared scope `key`, that could not be read or that the target refused, and why."""

    key: str
    reason: str


class CopyReport(Value):
    """The result of a copy, or with `dry_run` the result it would have; `messages` are those of the copied sessions.

    `differing` are the keys of sessions that the target has already, with other content: they were left alone. `values`
    are those of shared scopes that were copied, `differing_values` scope and name of those that were left alone.
    `missing` says what a salvage could not read, by session, or by "?" where that is unknown.
    """

    copied: int = 0
    already_there: int = 0
    messages: int = 0
    values: int = 0
    differing: list[str] = Field(default_factory=list)
    differing_values: list[tuple[str, str]] = Field(default_factory=list)
    failed: list[Failure] = Field(default_factory=list)
    missing: list[Failure] = Field(default_factory=list)
    seconds: float = 0.0
    dry_run: bool = False

    @property
    def sessions(self) -> int:
        """The number of sessions read from the source."""
        return self.copied + self.already_there + len(self.differing) + len(self.failed)

    @property
    def complete(self) -> bool:
        """True if the target has, or would have, every session and shared value of the source unchanged."""
        return not (self.differing or self.differing_values or self.failed or self.missing)


def copy(
    source: Store,
    target: Store,
    *,
    dry_run: bool = False,
    on_batch: Callable[[CopyReport], None] | None = None,
) -> CopyReport:
    """Copy all sessions, live and expired, with all that belongs to them, then the shared values.

    A session that exists in the target is compared and never changed. Each is copied whole or not at all, so a copy
    that was killed can be started again. `on_batch` is called with the report so far.
    """
    started = perf_counter()
    report = CopyReport(dry_run=dry_run)
    planned: set[str] | None = set() if dry_run else None
    pause = Pause(target.context)
    after = ""
    while True:
        with source.context.snapshot() as reading:
            if not (keys := _batch(reading, after)):
                break
            with target.context.snapshot() if dry_run else target.context.transaction() as writing:
                found = _copied(reading, writing, keys, planned)
        for each in found:  # now that they are committed
            _count(report, each)
        report.seconds = perf_counter() - started
        if on_batch is not None:
            on_batch(report.model_copy(update={"differing": [*report.differing], "failed": [*report.failed]}))
        after = keys[-1]
        pause.after_batch()
    with (
        source.context.snapshot() as reading,
        target.context.snapshot() if dry_run else target.context.transaction() as writing,
    ):
        unread: list[DamagedMessage] = []
        lines = chain([first_line()], shared_lines(reading, unread), [last_line(0)])
        shared = list(load(writing, "the copy", lines, planned=planned))
    for value in [*shared, *(Failure(key=error.key, reason=error.fact) for error in unread)]:
        _count(report, value)
    report.seconds = perf_counter() - started
    return report


def _count(report: CopyReport, found: Outcome | SharedValue | Failure) -> None:
    if isinstance(found, Failure):
        report.failed.append(found)
    elif isinstance(found, SharedValue):
        report.values += found.state == "imported"
        if found.state == "collided":
            report.differing_values.append((found.scope, found.name))
    elif found.state == "imported":
        report.copied += 1
        report.messages += found.messages
    elif found.state == "already there":
        report.already_there += 1
    else:
        report.differing.append(found.key)


def _batch(reading: sa.Connection, after: str) -> list[str]:
    """Return the keys of the next sessions, as many as a transaction should write."""
    keys: list[str] = []
    total = 0
    for key, rows in transfer.heads(reading, after, BATCH):
        total += rows
        if keys and total > ROWS:
            break
        keys.append(key)
    return keys


def _copied(
    reading: sa.Connection, writing: sa.Connection, keys: Sequence[str], planned: set[str] | None
) -> list[Outcome | SharedValue | Failure]:
    """Copy sessions together, or one by one if there is a fault in any of them."""
    before = None if planned is None else {*planned}
    try:
        with _isolated(reading), _isolated(writing):
            writer, closings = Writer(writing, planned), partial(closing_lines, reading)
            return [each for piece in session_pieces(reading, keys) for each in writer.write(piece, closings)]
    except (DatabaseBusy, DatabaseUnavailable):
        raise
    except LangoStoreError as error:
        if len(keys) == 1:
            return [Failure(key=keys[0], reason=error.fact)]
        return [each for key in keys for each in _copied(reading, writing, [key], before)]


@contextmanager
def _isolated(connection: sa.Connection) -> Iterator[None]:
    """Keep what goes wrong with one session from the others in the same transaction; drivers' errors become ours."""
    try:
        with connection.begin_nested():
            yield
    except (sa.exc.DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
        drivers = getattr(error, "orig", None) or error
        if isinstance(drivers, connection.dialect.loaded_dbapi.Error):
            raise translated(drivers, dialect_of(connection)) from None
        raise
