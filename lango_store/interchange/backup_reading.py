"""Reading of backups: the lines of a file become sessions of a store, each validated before it is written."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.driver_errors import translated
from lango_store._operations import transfer
from lango_store._operations.binds import SESSION, SHARED_VALUE
from lango_store._operations.portable_rows import Fields, RowEncoder, decode_row
from lango_store._operations.transfer import Row
from lango_store.errors import (
    DamagedMessage,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidFile,
    InvalidValue,
    SessionNotFound,
    quoted,
)
from lango_store.interchange.backup_writing import KINDS, TABLES, VERSION, SessionDigest, row_line, session_lines
from lango_store.interchange.fidelity import STRICT
from lango_store.tables import BASELINE, SCHEMA_REVISION

BATCH: Final = 200
_BATCH_BYTES: Final = 1 << 20
_PARTS: Final = ("turn", "message", "change", "value")
_read: Final = json.JSONDecoder(**STRICT).decode

State = Literal["imported", "already there", "collided"]


@dataclass(frozen=True)
class Outcome:
    """The result for one session of a file."""

    key: str
    state: State
    messages: int


@dataclass(frozen=True)
class SharedValue:
    """The result for one shared value, and the number of its line."""

    line: int
    scope: str
    name: str
    state: State


def load(
    connection: sa.Connection, path: object, lines: Iterable[bytes], *, planned: set[str] | None = None
) -> Iterator[Outcome | SharedValue]:
    """Write the sessions and shared values of a file's lines into a store, and yield the result for each.

    A session or shared value that exists is not changed.

    Raises `InvalidFile`, perhaps after some sessions, for a file that is damaged or cut off: let it end the
    transaction. With `planned`, the keys that earlier files would have created, nothing is written.
    """
    file = _File(path, lines)
    file.read_header()
    number = 0
    for kind, value in file:
        if kind == "session":
            yield _load_session(connection, value, file, planned)
            number += 1
        elif kind == "shared_value":
            yield from _load_shared(connection, value, file, is_planned=planned is not None)
        elif kind == "sessions" and value == number:
            file.check_end()
            return
        else:
            raise file.fault(f"{kind} {quoted(value)} after {number} whole sessions")
    raise file.fault("the file is cut off")


def _load_session(connection: sa.Connection, fields: Fields, file: _File, planned: set[str] | None) -> Outcome:
    encoder, digest = RowEncoder(), SessionDigest()
    row = file.encoded(encoder, SESSION, fields)
    digest.add("session", file.line)
    key = row["key"]
    is_new = _write(connection, SESSION, [row], file) if planned is None else _is_free(connection, key, planned)
    batch: list[Row] = []
    size, batched = 0, SESSION
    for kind, value in file:
        if batch and (kind != KINDS[batched.name] or len(batch) == BATCH or size >= _BATCH_BYTES):
            _write(connection, batched, batch, file)
            batch, size = [], 0
        if kind == "end":
            if file.line != digest.closing():
                raise file.fault(f"session {quoted(key)} is damaged: its rows do not match its counts or its digest")
            file.check_counters(encoder)
            state: State = "imported" if is_new else _compared(connection, key, file.line)
            return Outcome(key, state, digest.counts["message"])
        if kind not in _PARTS:
            break
        batched = TABLES[kind]
        row = file.encoded(encoder, batched, value | {"session_key": key})
        digest.add(kind, file.line)
        if is_new and planned is None:
            batch.append(row)
            size += len(file.line)
    raise file.fault(f"session {quoted(key)} is cut off")


def _write(connection: sa.Connection, table: sa.Table, batch: list[Row], file: _File) -> bool:
    """Write rows; False if the session exists already. Rows that the database refuses are the file's fault."""
    try:
        if table is SESSION:
            return transfer.insert_session(connection, batch[0])
        transfer.insert(connection, table, batch)
        return True
    except connection.dialect.loaded_dbapi.Error as error:
        ours = translated(error, dialect_of(connection))
        if isinstance(ours, (DatabaseBusy, DatabaseUnavailable)):
            raise ours from None
        raise file.fault(f"the database refuses rows that end here: {ours}") from None


def _load_shared(connection: sa.Connection, first: Fields, file: _File, *, is_planned: bool) -> Iterator[SharedValue]:
    digest, encoder = SessionDigest(), RowEncoder()
    kind, value = "shared_value", first
    while kind == "shared_value":
        row = file.encoded(encoder, SHARED_VALUE, value)
        digest.add(kind, file.line)
        state: State = "imported"
        if (existing := transfer.shared_value(connection, row["scope"], row["name"])) is not None:
            same = row_line(kind, decode_row(SHARED_VALUE, existing)) == file.line
            state = "already there" if same else "collided"
        elif not is_planned:
            _write(connection, SHARED_VALUE, [row], file)
        yield SharedValue(file.number, row["scope"], row["name"], state)
        kind, value = next(file, ("", {}))
    if file.line != digest.closing_shared():
        raise file.fault("the shared values are damaged or cut off: they do not match their digest")


def _is_free(connection: sa.Connection, key: str, planned: set[str]) -> bool:
    if key in planned or transfer.exists(connection, key):
        return False
    planned.add(key)
    return True


def _compared(connection: sa.Connection, key: str, closing: bytes) -> State:
    try:
        (last,) = deque(session_lines(connection, key), maxlen=1)
    except (SessionNotFound, DamagedMessage):
        return "collided"
    return "already there" if last == closing else "collided"


class _File:
    """The lines of a file, each as its kind and its value, and the current position for errors."""

    def __init__(self, path: object, lines: Iterable[bytes]) -> None:
        self._path = path
        self._lines = iter(lines)
        self.number = 0
        self.line = b""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self

    def __next__(self) -> tuple[str, Any]:
        self.number += 1
        try:
            self.line = next(self._lines).rstrip(b"\r\n")
            ((kind, value),) = _read(self.line.decode()).items()
            if kind in TABLES and not isinstance(value, dict):
                raise ValueError(f"{kind} is not an object")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.fault(str(error)) from None
        return kind, value

    def read_header(self) -> None:
        """Read the first line; `InvalidFile` if the file is not a backup or is newer than this release."""
        self.number = 1
        try:
            header = json.loads(next(self._lines, b"").decode())
            version, schema = header["lango_store"], str(header["schema"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self.fault('this is not an export of lango_store, which begins with {"lango_store":1,…}') from None
        if version != VERSION or not BASELINE <= schema <= SCHEMA_REVISION:
            raise self.fault(
                f"the file is of format {version} and schema {schema}, this release reads {VERSION} and "
                f"{BASELINE} to {SCHEMA_REVISION}: read it with the release that wrote it, or upgrade the package"
            )

    def encoded(self, encoder: RowEncoder, table: sa.Table, fields: Fields) -> Row:
        """Return the row of the current line; `InvalidFile` if no verb could read it."""
        try:
            return encoder.encode(table, fields)
        except InvalidValue as error:
            raise self.fault(str(error)) from None

    def check_counters(self, encoder: RowEncoder) -> None:
        """Raise `InvalidFile` if the counters of a session contradict its rows."""
        try:
            encoder.check_counters()
        except InvalidValue as error:
            raise self.fault(str(error)) from None

    def check_end(self) -> None:
        """Refuse lines after the last one."""
        if any(line.strip() for line in self._lines):
            raise self.fault("the file continues after its last line")

    def fault(self, reason: str) -> InvalidFile:
        """Return the error for the current line."""
        return InvalidFile(self._path, f"line {self.number}: {reason}; nothing of this file was imported")
