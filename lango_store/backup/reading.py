"""Backups, in: the lines of a file as sessions of a store, each checked before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._operations import transfer
from lango_store._operations.binds import SESSION, SHARED_VALUE, TURN
from lango_store._operations.row_validation import Incoming
from lango_store._operations.transfer import Row
from lango_store._rows.encoding import checked_key
from lango_store.backup.lines import KINDS, TABLES, VERSION, SessionDigest, digest, json_line, read_row, row_line
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidFile, InvalidKey, InvalidValue
from lango_store.tables import BASELINE, SCHEMA_REVISION

BATCH: Final = 200
_BATCH_SIZE: Final = 1 << 20
_SHARED: Final = KINDS[SHARED_VALUE.name]
_PARTS: Final = TABLES.keys() - {KINDS[SESSION.name], _SHARED}
_KIND: Final = 16
"""The characters within which a line says of which kind it is."""


@dataclass(frozen=True)
class Outcome:
    """What became of one session of a file."""

    key: str
    state: Literal["imported", "already there", "collided"]
    messages: int


@dataclass(frozen=True)
class SharedValue:
    """What became of one value of a shared scope, and in which line it stands."""

    line: int
    scope: str
    name: str
    state: Literal["imported", "already there", "collided"]


def load(
    connection: sa.Connection, path: object, lines: Iterable[bytes], *, planned: set[str] | None = None
) -> Iterator[Outcome | SharedValue]:
    """Write what a file's lines hold into a store, and yield what became of each session and each shared value.

    A key that is taken stays as it is, and so does the name of a value.

    Raises `InvalidFile`, perhaps after some sessions, for a file that is damaged or cut off: let it end the
    transaction. With `planned`, the keys that earlier files would have made, nothing is written.
    """
    file = _File(path, lines)
    file.header()
    number = 0
    for kind, value in file:
        if kind == "session":
            yield _load_session(connection, value, file, planned)
            number += 1
        elif kind == _SHARED:
            yield from _load_shared(connection, value, file, is_planned=planned is not None)
        elif kind == "sessions" and value == number:
            file.finished()
            return
        else:
            raise file.fault(f"{kind} {value!r} after {number} whole sessions")
    raise file.fault("the file is cut off")


def _load_session(connection: sa.Connection, session: Row, file: _File, planned: set[str] | None) -> Outcome:
    key = _key(session, file)
    incoming = Incoming()
    row = file.admitted(incoming, SESSION, session)
    free = _write(connection, SESSION, [row], file) if planned is None else _would_be(connection, key, planned)
    writing = free and planned is None
    counted = SessionDigest()
    counted.add(SESSION, file.line)
    batch: list[Row] = []
    size = 0
    table = TURN
    for kind, value in file:
        if batch and (kind != KINDS[table.name] or len(batch) == BATCH):
            _write(connection, table, batch, file)
            batch, size = [], 0
        if kind == "end":
            if json_line({"end": value}) != counted.closing():
                raise file.fault(f"session {key!r} is damaged: its rows do not match its counts or its digest")
            file.check_counters(incoming)
            return Outcome(key, _state(connection, key, free, counted), counted.messages)
        if kind not in _PARTS:
            break
        table = TABLES[kind]
        counted.add(table, file.line)
        size += len(file.line)
        file.line = b""  # a line may be large, and so is what the database will be given
        row = file.admitted(incoming, table, value | {"session_key": key})
        if writing:
            batch.append(row)
        del value, row  # the next line is read before they are replaced
        if batch and size >= _BATCH_SIZE:
            _write(connection, table, batch, file)
            batch, size = [], 0
    raise file.fault(f"session {key!r} is cut off")


def _write(connection: sa.Connection, table: sa.Table, batch: list[Row], file: _File) -> bool:
    """Write rows; False if the session exists already. Rows that the database refuses are the file's fault."""
    try:
        if table is SESSION:
            return transfer.claim(connection, batch[0])
        transfer.write(connection, table, batch)
        return True
    except (connection.dialect.loaded_dbapi.Error, ValueError) as error:  # ValueError: what is not a time
        ours = dialect_of(connection).translate_error(error)
        if isinstance(ours, (DatabaseBusy, DatabaseUnavailable)):
            raise ours from error
        raise file.fault(f"the database refuses rows that end here: {ours}") from error


def _load_shared(connection: sa.Connection, first: Row, file: _File, *, is_planned: bool) -> Iterator[SharedValue]:
    counted, incoming = SessionDigest(), Incoming()
    kind: str = _SHARED
    value: Any = first
    while kind == _SHARED:
        counted.add(SHARED_VALUE, file.line)
        row = file.admitted(incoming, SHARED_VALUE, value)
        scope, name = row["scope"], row["name"]
        there = transfer.shared_value(connection, scope, name)
        state: Literal["imported", "already there", "collided"] = "imported"
        if there is not None:
            state = "already there" if row_line(SHARED_VALUE, there) == row_line(SHARED_VALUE, row) else "collided"
        elif not is_planned:
            _write(connection, SHARED_VALUE, [row], file)
        yield SharedValue(file.number, scope, name, state)
        kind, value = next(file, ("", None))
    if kind != "shared" or json_line({kind: value}) != counted.closing_shared():
        raise file.fault("the values of shared scopes are damaged or cut off: they do not match their digest")


def _would_be(connection: sa.Connection, key: str, planned: set[str]) -> bool:
    if key in planned or transfer.session(connection, key):
        return False
    planned.add(key)
    return True


def _key(session: Row, file: _File) -> str:
    try:
        return checked_key(session["key"])
    except InvalidKey as error:
        raise file.fault(str(error)) from None


def _state(
    connection: sa.Connection, key: str, free: bool, counted: SessionDigest
) -> Literal["imported", "already there", "collided"]:
    if free:
        return "imported"
    return "already there" if digest(connection, key) == counted.digest else "collided"


class _File:
    """The lines of a file, each as its kind and its value, and where we are for the errors."""

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
            text = self.line.decode()
            kind = text[:_KIND].partition(":")[0][2:-1]
            if kind in TABLES:
                return kind, read_row(TABLES[kind], text)
            ((kind, value),) = json.loads(text).items()
            return kind, value
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.fault(str(error)) from None

    def header(self) -> None:
        """Read the first line; `InvalidFile` if it is not ours or newer than we are."""
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

    def admitted(self, incoming: Incoming, table: sa.Table, row: Row) -> Row:
        """Return a row of the line we are at, up to date; `InvalidFile` if no verb could read it."""
        try:
            return incoming.admit(table, row)
        except InvalidValue as error:
            raise self.fault(str(error)) from None

    def check_counters(self, incoming: Incoming) -> None:
        """Raise `InvalidFile` if the counters of a session contradict its rows."""
        try:
            incoming.check_counters()
        except InvalidValue as error:
            raise self.fault(str(error)) from None

    def finished(self) -> None:
        """Refuse lines after the last one."""
        if any(line.strip() for line in self._lines):
            raise self.fault("the file goes on after its last line")

    def fault(self, reason: str) -> InvalidFile:
        """Return the error for the line we are at."""
        return InvalidFile(self._path, f"line {self.number}: {reason}; nothing of this file was imported")
