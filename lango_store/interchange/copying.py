"""Copy of all sessions from one store to another. Sessions that already exist in the target are compared."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Final

import sqlalchemy as sa
from pydantic import Field

from lango_store.errors import DamagedMessage, DatabaseBusy, DatabaseUnavailable, LangoStoreError
from lango_store.interchange.backup_reading import load
from lango_store.interchange.backup_writing import first_line, last_line, shared_lines
from lango_store.interchange.pieces import ROWS, Outcome, Pause, Writer, closing_lines, session_pieces
from lango_store.rows import Value, dialect_of, transfer
from lango_store.rows.storage import translated
from lango_store.store import Store

BATCH: Final = 500


class Failure(Value):
    """A session or shared value that was not copied.

    Attributes:
        key: The key of the session, or the scope of the shared value; "?" if it is unknown.
        reason: The cause: the data could not be read, or the target rejected it.
    """

    key: str
    reason: str


class CopyReport(Value):
    """The result of a copy. With `dry_run`, the result that a real copy would have.

    Attributes:
        copied: The number of copied sessions.
        already_there: The number of sessions that already exist in the target with equal content.
        messages: The number of messages in the copied sessions.
        values: The number of copied shared values, and of rows of budgets.
        differing: The keys of sessions that exist in the target with different content. They were not changed.
        differing_values: Scope and name of each shared value or budget that exists in the target with another value.
            These were not changed.
        failed: The sessions and shared values that could not be copied, each with the reason.
        missing: The data that a salvage could not read.
        seconds: The duration, in seconds.
        dry_run: True for a dry run, which writes nothing.
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
        """The number of sessions, copied or not, plus the number of shared values that could not be copied."""
        return self.copied + self.already_there + len(self.differing) + len(self.failed)

    @property
    def complete(self) -> bool:
        """True if no session or value differs, failed or is missing."""
        return not (self.differing or self.differing_values or self.failed or self.missing)


def copy(
    source: Store, target: Store, *, dry_run: bool = False, on_batch: Callable[[CopyReport], None] | None = None
) -> CopyReport:
    """Copy all sessions, live and expired, and then all shared values.

    Shared values are the JSON values that belong to a scope, such as a user or an application, and not to a session.

    Each session is copied completely or not at all. Only the lease of a turn in progress, and the removed and replaced
    messages that are kept for an undo, are left out. A copy that was killed can be started again: it continues where it
    stopped. A session or a shared value that already exists in the target is compared and never changed.

    Args:
        source: The store to copy from. It is only read.
        target: The store to copy to.
        dry_run: Write nothing; return the report that a real copy would return. False by default.
        on_batch: Called after each batch of sessions with the report so far.

    Returns:
        The report. `differing` and `differing_values` name what exists in the target with different content; `failed`
        names what could not be copied. If all of them are empty, `complete` is True.

    Raises:
        SchemaOutOfDate: One of the stores has no schema, or an outdated one.
        DatabaseBusy: A database is busy. Batches that were committed before are kept; run the copy again.
        DatabaseUnavailable: A database cannot be reached. Batches that were committed before are kept.
    """
    started = perf_counter()
    report = CopyReport(dry_run=dry_run)
    planned: set[str] | None = set() if dry_run else None
    pause = Pause(target._context)
    after = ""
    while True:
        with source._context.snapshot() as reading:
            if not (keys := _batch(reading, after)):
                break
            with target._context.snapshot() if dry_run else target._context.transaction() as writing:
                results = _copy_batch(reading, writing, keys, planned)
        for each in results:  # counted after the commit
            _count(report, each)
        report.seconds = perf_counter() - started
        if on_batch is not None:
            on_batch(report.model_copy(update={"differing": [*report.differing], "failed": [*report.failed]}))
        after = keys[-1]
        pause.after_batch()
    with (
        source._context.snapshot() as reading,
        target._context.snapshot() if dry_run else target._context.transaction() as writing,
    ):
        unread: list[DamagedMessage] = []
        lines = chain([first_line()], shared_lines(reading, unread), [last_line(0)])
        shared: list[Outcome | Failure] = list(load(writing, "the copy", lines, planned=planned))
    shared += [Failure(key=error.key, reason=error.fact) for error in unread]
    for each in shared:
        _count(report, each)
    report.seconds = perf_counter() - started
    return report


def _count(report: CopyReport, result: Outcome | Failure) -> None:
    if isinstance(result, Failure):
        report.failed.append(result)
    elif result.name is not None:
        report.values += result.state == "imported"
        if result.state == "collided":
            report.differing_values.append((result.key, result.name))
    elif result.state == "imported":
        report.copied += 1
        report.messages += result.messages
    elif result.state == "already there":
        report.already_there += 1
    else:
        report.differing.append(result.key)


def _batch(reading: sa.Connection, after: str) -> list[str]:
    """Return the keys of the next sessions: as many sessions as one transaction should write."""
    keys: list[str] = []
    total = 0
    for key, rows in transfer.heads(reading, after, BATCH):
        total += rows
        if keys and total > ROWS:
            break
        keys.append(key)
    return keys


def _copy_batch(
    reading: sa.Connection, writing: sa.Connection, keys: Sequence[str], planned: set[str] | None
) -> list[Outcome | Failure]:
    """Copy several sessions together. If one of them fails, copy each session separately."""
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
        return [each for key in keys for each in _copy_batch(reading, writing, [key], before)]


@contextmanager
def _isolated(connection: sa.Connection) -> Iterator[None]:
    """Roll back only this block on an error, and translate driver errors."""
    try:
        with connection.begin_nested():
            yield
    except (sa.exc.DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
        driver_error = getattr(error, "orig", None) or error
        if isinstance(driver_error, connection.dialect.loaded_dbapi.Error):
            raise translated(driver_error, dialect_of(connection)) from None
        raise
