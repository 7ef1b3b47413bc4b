"""Sessions as JSON lines, every column of every row: the format of backups.

A file is `{"lango_store":1,"schema":"0005"}`, then for each session a line for its row, one for each turn, one for each
message and one that closes it with counts and a digest, and at last `{"sessions":N}`. A row's line is its columns by
their names, NULL left out. A JSON column stands there as the very text that the database keeps; where that text cannot
stand inside a line, it stands there as a string, and `"quoted"` behind the row names the column. Nothing is decoded, so
that nothing is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store.columns import JsonColumn, checked_key, refuse_constant
from lango_store.dialect import dialect_of
from lango_store.errors import (
    DamagedMessage,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidFile,
    InvalidKey,
    InvalidMessage,
    SessionNotFound,
)
from lango_store.operations import transfer
from lango_store.operations.binds import MESSAGE, SESSION, TURN
from lango_store.operations.incoming import FIRST, Incoming, columns
from lango_store.operations.transfer import Row
from lango_store.tables import SCHEMA_REVISION

VERSION: Final = 1
BATCH: Final = 200

_TABLES: Final = {"session": SESSION, "turn": TURN, "message": MESSAGE}
_KINDS: Final = {table.name: kind for kind, table in _TABLES.items()}


@dataclass(frozen=True)
class Outcome:
    """What became of one session of a file."""

    key: str
    state: Literal["imported", "already there", "collided"]
    messages: int


# Out


def first_line() -> str:
    """Write the line that a file begins with."""
    return _json_line({"lango_store": VERSION, "schema": SCHEMA_REVISION})


def session_lines(connection: sa.Connection, key: str) -> Iterator[str]:
    """Write the lines of a session; the connection should see one moment. `SessionNotFound` if there is none."""
    counted, incoming = Counted(), Incoming()
    for table, rows in pages(connection, key):
        for row in rows:
            with _told(row):  # what an import would refuse, is told of now
                incoming.admit(table, row)
            line = row_line(table, row)
            counted.add(table, line)
            yield line
    if not counted.sessions:
        raise SessionNotFound(key)
    with _told({"key": key}):
        incoming.check_counters()
    yield counted.closing()


@contextmanager
def _told(row: Row) -> Iterator[None]:
    try:
        yield
    except InvalidMessage as error:
        reason = str(error).removeprefix(f"{error.field}: ")
        raise DamagedMessage(*transfer.identity(row), error.field, f"{reason}: see what `doctor` says") from None


def last_line(sessions: int) -> str:
    """Write the line that a file of so many sessions ends with."""
    return _json_line({"sessions": sessions})


def pages(connection: sa.Connection, key: str) -> Iterator[tuple[sa.Table, list[Row]]]:
    """Read the rows of a session, its own first, page by page however many it has."""
    if (row := transfer.session(connection, key)) is not None:
        yield SESSION, [row]
        for rows in transfer.turns(connection, [key]):
            yield TURN, rows
        for rows in transfer.messages(connection, [key]):
            yield MESSAGE, rows


def digest(connection: sa.Connection, key: str, schema: str = SCHEMA_REVISION) -> str:
    """Sum up a session: two are equal in every column that a schema of this revision has if their digests are."""
    counted = Counted()
    for table, rows in pages(connection, key):
        for row in rows:
            counted.add(table, row_line(table, row, schema))
    return counted.digest


class Counted:
    """Counts and digests the lines of a session."""

    def __init__(self) -> None:
        self._lines = dict.fromkeys(_TABLES, 0)
        self._sha256 = hashlib.sha256()

    def add(self, table: sa.Table, line: str) -> None:
        """Take a row's line into account."""
        self._lines[_KINDS[table.name]] += 1
        self._sha256.update(line.encode() + b"\n")

    @property
    def sessions(self) -> int:
        """How many rows of sessions there were: one, or none."""
        return self._lines["session"]

    @property
    def messages(self) -> int:
        """How many messages there were."""
        return self._lines["message"]

    @property
    def digest(self) -> str:
        """The digest of the lines so far."""
        return self._sha256.hexdigest()

    def closing(self) -> str:
        """Write the line that closes the session."""
        end = {"turns": self._lines["turn"], "messages": self.messages, "sha256": self.digest}
        return _json_line({"end": end})


def _json_line(value: Any) -> str:
    """Write a value as one line, without its end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def row_line(table: sa.Table, row: Row, schema: str = SCHEMA_REVISION) -> str:
    """Write a row as one line, without its end, as a schema of this revision has it."""
    members: list[str] = []
    quoted: list[str] = []
    for column in columns(table, schema):
        name, value = column.name, row[column.name]
        if value is None or name == "session_key":
            continue
        try:
            text = _json_line(value)
        except TypeError as error:
            raise DamagedMessage(*transfer.identity(row), name, str(error)) from None
        if isinstance(column.type, JsonColumn):
            if _stands_in_a_line(value):
                text = value
            else:
                quoted.append(name)
        members.append(f'"{name}":{text}')
    behind = f',"quoted":{_json_line(quoted)}' if quoted else ""
    return f'{{"{_KINDS[table.name]}":{{{",".join(members)}}}{behind}}}'


_scan: Final = json.JSONDecoder(parse_constant=refuse_constant).raw_decode


def _stands_in_a_line(text: str) -> bool:
    """Tell whether a reader that scans the line finds this text again: JSON on one line, nothing around it."""
    try:
        return "\n" not in text and "\r" not in text and _scan(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


# In


def load(
    connection: sa.Connection, path: object, lines: Iterable[str], *, planned: set[str] | None = None
) -> Iterator[Outcome]:
    """Write the sessions of a file's lines into a store; a key that is there already stays as it is.

    Raises `InvalidFile`, perhaps after some sessions, for a file that is damaged or cut off: let it end the
    transaction. With `planned`, the keys that earlier files would have made, nothing is written.
    """
    file = _File(path, lines)
    file.header()
    for number, (kind, value) in enumerate(file):
        if kind == "session":
            yield _load_session(connection, value, file, planned)
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
    counted = Counted()
    counted.add(SESSION, file.line)
    batch: list[Row] = []
    table = TURN
    for kind, value in file:
        if batch and (kind != _KINDS[table.name] or len(batch) == BATCH):
            _write(connection, table, batch, file)
            batch = []
        if kind == "end":
            if _json_line({"end": value}) != counted.closing():
                raise file.fault(f"session {key!r} is damaged: its counts or its digest are others")
            lacking = file.checked(incoming)
            if writing:
                transfer.amend(connection, key, lacking)
            return Outcome(key, _state(connection, key, free, counted, file.schema), counted.messages)
        if kind not in ("turn", "message"):
            break
        table = _TABLES[kind]
        counted.add(table, file.line)
        row = file.admitted(incoming, table, value | {"session_key": key})
        if writing:
            batch.append(row)
    raise file.fault(f"session {key!r} is cut off")


def _write(connection: sa.Connection, table: sa.Table, batch: list[Row], file: _File) -> bool:
    """Write rows; False if the session is there already. Rows that the database refuses are the file's fault."""
    try:
        if table is SESSION:
            return transfer.claim(connection, batch[0])
        transfer.write(connection, table, batch)
        return True
    except (connection.dialect.loaded_dbapi.Error, ValueError) as error:  # ValueError: a time that is none
        ours = dialect_of(connection).translate_error(error)
        if isinstance(ours, (DatabaseBusy, DatabaseUnavailable)):
            raise ours from error
        raise file.fault(f"the database refuses rows that end here: {ours}") from error


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
    connection: sa.Connection, key: str, free: bool, counted: Counted, schema: str
) -> Literal["imported", "already there", "collided"]:
    if free:
        return "imported"
    return "already there" if digest(connection, key, schema) == counted.digest else "collided"


class _File:
    """The lines of a file, each as its kind and its value, and where we are for the errors."""

    def __init__(self, path: object, lines: Iterable[str]) -> None:
        self._path = path
        self._lines = iter(lines)
        self._number = 0
        self.line = ""
        self.schema = SCHEMA_REVISION

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self

    def __next__(self) -> tuple[str, Any]:
        self._number += 1
        try:
            self.line = next(self._lines).rstrip("\r\n")
            kind = self.line.partition(":")[0][2:-1]
            if kind in _TABLES:
                return kind, read_row(_TABLES[kind], self.line, self.schema)
            ((kind, value),) = json.loads(self.line).items()
            return kind, value
        except (ValueError, AttributeError, RecursionError) as error:
            raise self.fault(str(error)) from None

    def header(self) -> None:
        """Read the first line; `InvalidFile` if it is not ours or newer than we are."""
        self._number = 1
        try:
            header = json.loads(next(self._lines, ""))
            version, schema = header["lango_store"], str(header["schema"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self.fault('this is no export of lango_store: its first line is not {"lango_store":1,…}') from None
        if version != VERSION or schema > SCHEMA_REVISION:
            raise self.fault(
                f"the file is of format {version} and schema {schema}, this release reads {VERSION} and up to "
                f"{SCHEMA_REVISION}: upgrade the package"
            )

        if schema < FIRST:
            raise self.fault(f"{schema!r} is no revision of a schema")
        self.schema = schema

    def admitted(self, incoming: Incoming, table: sa.Table, row: Row) -> Row:
        """Give a row of the line we are at, up to date; `InvalidFile` if no verb could read it."""
        try:
            return incoming.admit(table, row)
        except InvalidMessage as error:
            raise self.fault(str(error)) from None

    def checked(self, incoming: Incoming) -> dict[str, Any]:
        """Give what a session of an earlier schema lacks; `InvalidFile` if its counters contradict its rows."""
        try:
            return incoming.check_counters()
        except InvalidMessage as error:
            raise self.fault(str(error)) from None

    def finished(self) -> None:
        """Refuse lines after the last one."""
        try:
            goes_on = any(line.strip() for line in self._lines)
        except UnicodeDecodeError:
            goes_on = True
        if goes_on:
            raise self.fault("the file goes on after its last line")

    def fault(self, reason: str) -> InvalidFile:
        """Make the error for the line we are at."""
        return InvalidFile(self._path, f"line {self._number}: {reason}; nothing of this file was imported")


def read_row(table: sa.Table, line: str, schema: str = SCHEMA_REVISION) -> Row:
    """Read what `row_line` wrote, of a schema of this revision; ValueError if the line is damaged."""
    members, end = _members(line, line.index(":") + 1)
    quoted = json.loads("{" + line[end:].lstrip(","))  # `}`, or `,"quoted":[…]}`
    there = {column.name for column in columns(table, schema)}
    row: Row = dict.fromkeys(column.name for column in transfer.COLUMNS[table.name])
    for name, (value, text) in members.items():
        if name not in there:
            raise ValueError(f"{name!r} is no column that a {_KINDS[table.name]} of schema {schema} has")
        plain = not isinstance(table.c[name].type, JsonColumn) or name in quoted.get("quoted", ())
        row[name] = value if plain else text
    missing = [c.name for c in columns(table, schema) if not c.nullable and row[c.name] is None]
    if set(missing) - {"session_key"}:
        raise ValueError(f"{missing[-1]!r} is missing")
    return row


def _members(line: str, at: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """Scan an object: its members' values with their very texts, and where it ends."""
    members: dict[str, tuple[Any, str]] = {}
    mark = "{"
    while line.startswith(mark, at):
        name, at = _scan(line, at + 1)
        value, end = _scan(line, at + 1)
        members[name] = value, line[at + 1 : end]
        if line.startswith("}", end):
            return members, end + 1
        at, mark = end, ","
    raise ValueError(f"{line[at : at + 20]!r} stands where a row should go on")
