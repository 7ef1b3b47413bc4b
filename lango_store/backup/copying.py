"""All sessions from one database into another, session by session, each compared on both sides when it is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Literal

import sqlalchemy as sa
from pydantic import Field

from lango_store._dialect import dialect_of
from lango_store._operations import transfer
from lango_store._operations.binds import MESSAGE, SHARED_VALUE
from lango_store._operations.transfer import Row
from lango_store._rows.encoding import encode_time_text
from lango_store._values.value import Value
from lango_store.errors import DamagedMessage, DatabaseBusy, DatabaseUnavailable, LangoStoreError
from lango_store.store import Store

BATCH: Final = 100


class Failure(Value):
    """A session, or a value of the shared scope `key`, that could not be read or that the target refused, and why."""

    key: str
    reason: str


class CopyReport(Value):
    """What a copy did, or with `dry_run` would do, in sessions; `messages` are those of the sessions copied.

    `differing` are the keys of sessions that the target has already, with other content: they were left alone. `values`
    are those of shared scopes that were copied, `differing_values` scope and name of those that were left alone.
    """

    copied: int = 0
    already_there: int = 0
    messages: int = 0
    values: int = 0
    differing: list[str] = Field(default_factory=list)
    differing_values: list[tuple[str, str]] = Field(default_factory=list)
    failed: list[Failure] = Field(default_factory=list)
    seconds: float = 0.0
    dry_run: bool = False

    @property
    def sessions(self) -> int:
        """How many sessions of the source were looked at."""
        return self.copied + self.already_there + len(self.differing) + len(self.failed)

    @property
    def complete(self) -> bool:
        """Whether the target has, or would have, every session and shared value of the source as it is there."""
        return not self.differing and not self.differing_values and not self.failed


def copy(
    source: Store,
    target: Store,
    *,
    dry_run: bool = False,
    on_batch: Callable[[CopyReport], None] | None = None,
) -> CopyReport:
    """Copy all sessions, live and expired, with all that belongs to them, then the values of shared scopes.

    A session that the target has already is compared and never changed. Each is copied whole or not at all and read
    back before it counts, so that a copy that was killed can be started again. `on_batch` gets the report so far.
    """
    started = perf_counter()
    report = CopyReport(dry_run=dry_run)
    after = ""
    while True:
        with source.context.snapshot() as reading:
            keys = transfer.keys(reading, after, BATCH)
            with target.context.snapshot() if dry_run else target.context.transaction() as writing:
                found = [_copied_or_failed(reading, writing, key, dry_run=dry_run) for key in keys]
        for each in found:  # now that they are on disk
            _count(report, each)
        report.seconds = perf_counter() - started
        if on_batch is not None:
            on_batch(report.model_copy(update={"differing": [*report.differing], "failed": [*report.failed]}))
        if len(keys) < BATCH:
            break
        after = keys[-1]
    _copy_shared(source, target, report)
    report.seconds = perf_counter() - started
    return report


def _copy_shared(source: Store, target: Store, report: CopyReport) -> None:
    with (
        source.context.snapshot() as reading,
        target.context.snapshot() if report.dry_run else target.context.transaction() as writing,
    ):
        for row in transfer.shared_values(reading):
            if isinstance(row, DamagedMessage):
                report.failed.append(Failure(key=row.key, reason=row.fact))
                continue
            existing = transfer.shared_value(writing, row["scope"], row["name"])
            if existing is None:
                report.values += 1
                if not report.dry_run:
                    transfer.insert(writing, SHARED_VALUE, [row])
            elif existing != row:
                report.differing_values.append((row["scope"], row["name"]))


@dataclass(frozen=True)
class _Copied:
    key: str
    messages: int
    state: Literal["copied", "already there", "differing"]


def _count(report: CopyReport, found: _Copied | Failure) -> None:
    if isinstance(found, Failure):
        report.failed.append(found)
    elif found.state == "copied":
        report.copied += 1
        report.messages += found.messages
    elif found.state == "already there":
        report.already_there += 1
    else:
        report.differing.append(found.key)


def _copied_or_failed(reading: sa.Connection, writing: sa.Connection, key: str, *, dry_run: bool) -> _Copied | Failure:
    try:
        with _isolated(reading), _isolated(writing):
            return _copied(reading, writing, key, dry_run=dry_run)
    except LangoStoreError as error:
        if isinstance(error, DatabaseBusy | DatabaseUnavailable):
            raise
        return Failure(key=key, reason=error.fact)


@contextmanager
def _isolated(connection: sa.Connection) -> Iterator[None]:
    """Keep what goes wrong with one session from the others in the same transaction; drivers' errors become ours."""
    try:
        with connection.begin_nested():
            yield
    except (sa.exc.DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
        drivers = getattr(error, "orig", None) or error
        if isinstance(drivers, connection.dialect.loaded_dbapi.Error):
            raise dialect_of(connection).translate_error(drivers) from error
        raise


def _copied(reading: sa.Connection, writing: sa.Connection, key: str, *, dry_run: bool) -> _Copied:
    if transfer.exists(writing, key):
        same = _digest(reading, key) == _digest(writing, key)
        return _Copied(key, 0, "already there" if same else "differing")
    digest, messages = hashlib.sha256(), 0
    for table, rows in transfer.whole_session(reading, key):
        _add(digest, rows)
        messages += len(rows) if table is MESSAGE else 0
        if not dry_run:
            transfer.insert(writing, table, rows)
    if not dry_run and _digest(writing, key) != digest.digest():
        raise LangoStoreError(
            "it was read back with other content than was written, and was removed: run `doctor` on both databases"
        )
    return _Copied(key, messages, "copied")


def _digest(connection: sa.Connection, key: str) -> bytes:
    digest = hashlib.sha256()
    for _, rows in transfer.whole_session(connection, key):
        _add(digest, rows)
    return digest.digest()


def _add(digest: Any, rows: list[Row]) -> None:
    for row in rows:
        digest.update(json.dumps(row, default=encode_time_text).encode())
