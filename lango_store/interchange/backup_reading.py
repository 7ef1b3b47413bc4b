"""Reading of backups: the lines of a file are validated and become pieces with rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, ParamSpec, TypeVar

import sqlalchemy as sa

from lango_store.errors import InvalidFile, InvalidValue, quoted
from lango_store.interchange.backup_writing import KINDS, SHARED_KINDS, VERSION, SessionDigest
from lango_store.interchange.fidelity import STRICT
from lango_store.interchange.pieces import BackupPiece, Outcome, Pieces, Writer
from lango_store.rows import CHILDREN, SESSION, TABLES, Fields, Row, RowEncoder
from lango_store.tables import BASELINE, SCHEMA_REVISION

P = ParamSpec("P")
R = TypeVar("R")

_PARTS: Final = {each.stored.kind: each for each in CHILDREN}
_read: Final = json.JSONDecoder(**STRICT).decode


def load(
    connection: sa.Connection, path: object, lines: Iterable[bytes], *, planned: set[str] | None = None
) -> Iterator[Outcome]:
    """Write the sessions and shared values of a backup in the caller's transaction, and yield a result for each.

    `InvalidFile` may be raised after some sessions are written, so the caller must roll back. `planned` is for
    a dry run, in which nothing is written: the keys that earlier files would have created.
    """
    writer = Writer(connection, planned)
    for piece in read(path, lines):
        yield from writer.write(piece)


def read(path: object, lines: Iterable[bytes]) -> Iterator[BackupPiece]:
    """Read and validate the lines of a file. Raises `InvalidFile` if the file is damaged or incomplete."""
    file, pieces = _File(path, lines), Pieces()
    file.read_header()
    keys: set[str] = set()
    for kind, value in file:
        if kind == "session":
            yield from _read_session(value, file, pieces, keys)
        elif kind in SHARED_KINDS:
            yield from _read_shared(kind, value, file, pieces)
        elif kind == "sessions" and value == len(keys):
            file.check_end()
            yield pieces.take()
            return
        else:
            raise file.fault(f"unexpected {kind} {quoted(value)} after {len(keys)} sessions")
    raise file.fault("the file is cut off")


def _read_session(fields: Fields, file: _File, pieces: Pieces, keys: set[str]) -> Iterator[BackupPiece]:
    encoder, digest = RowEncoder(marks_copies=file.marks_copies), SessionDigest()
    row = file.checked(encoder.encode, SESSION, fields)
    key = row["key"]
    if key in keys:
        raise file.fault(f"session {quoted(key)} occurs twice")
    keys.add(key)
    digest.add("session", file.line)
    yield from pieces.add(SESSION, row, len(file.line))
    seen: set[object] = set()
    last: dict[str, int] = {}
    for kind, value in file:
        if kind == "end":
            if file.line != digest.closing():
                raise file.fault(f"session {quoted(key)} is damaged: its rows do not match its counts or its digest")
            file.checked(encoder.check)
            yield from pieces.end(key, digest.counts["message"], file.line)
            return
        if kind not in _PARTS:
            break
        row = file.checked(encoder.encode, KINDS[kind], value | {"session_key": key})
        file.check_unique(kind, row, seen)
        for name in row.keys() & {"seq", "n"}:
            file.check_order(kind, name, row[name], last)
        digest.add(kind, file.line)
        yield from pieces.add(KINDS[kind], row, len(file.line))
    raise file.fault(f"session {quoted(key)} is cut off")


def _read_shared(kind: str, value: Fields, file: _File, pieces: Pieces) -> Iterator[BackupPiece]:
    digest, encoder = SessionDigest(), RowEncoder()
    seen: set[object] = set()
    while (table := SHARED_KINDS.get(kind)) is not None:
        row = file.checked(encoder.encode, table, value)
        file.check_unique(kind, row, seen)
        digest.add(kind, file.line)
        yield from pieces.add_shared(file.number, kind, row, len(file.line))
        kind, value = next(file, ("", {}))
    if file.line != digest.closing_shared():
        raise file.fault("the shared values are damaged or cut off: they do not match their digest")


class _File:
    """Iterator over the lines of a file, each as its kind and value. Errors name the current line."""

    def __init__(self, path: object, lines: Iterable[bytes]) -> None:
        self._path = path
        self._lines = iter(lines)
        self.number = 0
        self.line = b""
        self.marks_copies = True

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self

    def __next__(self) -> tuple[str, Any]:
        self.number += 1
        try:
            self.line = next(self._lines).rstrip(b"\r\n")
            ((kind, value),) = _read(self.line.decode()).items()
            if kind in KINDS and not isinstance(value, dict):
                raise ValueError(f"{kind} is not an object")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.fault(str(error)) from None
        return kind, value

    def read_header(self) -> None:
        """Read the first line. Raises `InvalidFile` for a file that is not a backup of a readable version."""
        self.number = 1
        try:
            header = json.loads(next(self._lines, b"").decode())
            version, schema = header["lango_store"], str(header["schema"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self.fault('this is not a backup of lango_store, which starts with {"lango_store":1,…}') from None
        if version != VERSION or not BASELINE <= schema <= SCHEMA_REVISION:
            raise self.fault(
                f"the file has format {version} and schema {schema}, this release reads format {VERSION} and schemas "
                f"{BASELINE} to {SCHEMA_REVISION}: use the release that wrote the file, or upgrade the package"
            )
        self.marks_copies = schema >= "0107"

    def checked(self, check: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
        """Call a function of a `RowEncoder` for the current line. Raises `InvalidFile` in place of `InvalidValue`."""
        try:
            return check(*arguments, **options)
        except InvalidValue as error:
            raise self.fault(str(error)) from None

    def check_unique(self, kind: str, row: Row, seen: set[object]) -> None:
        """Raise `InvalidFile` if an earlier row has the same position or id, which the database would refuse."""
        for names in TABLES[KINDS[kind]].unique:
            unique = (kind, *(row[name] for name in names))
            if unique in seen:
                raise self.fault(f"{names[-1]}: {quoted(unique[-1])} occurs twice")
            if unique[-1] is not None:
                seen.add(unique)

    def check_order(self, kind: str, name: str, number: int, before: dict[str, int]) -> None:
        """Raise `InvalidFile` if a number is not higher than the previous one, so that no number occurs twice."""
        if number <= before.get(kind, 0):
            raise self.fault(f"{name}: {number} follows {before[kind]}")
        before[kind] = number

    def check_end(self) -> None:
        """Raise `InvalidFile` if other lines follow the line `{"sessions":N}`."""
        if any(line.strip() for line in self._lines):
            raise self.fault("the file continues after its last line")

    def fault(self, reason: str) -> InvalidFile:
        """Return the error to raise for the current line."""
        return InvalidFile(self._path, f"line {self.number}: {reason}; nothing of this file was imported")
