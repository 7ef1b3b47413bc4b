"""Backups, out: a file is `{"lango_store":1,"schema":"0100"}`, then sessions, and at last `{"sessions":N}`.

A session is a line for its row, one for each turn, each message and each of its values, and one that closes it with
counts and a digest. Behind the sessions of a whole store stand the values of its shared scopes, closed likewise.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Final

import sqlalchemy as sa

from lango_store._operations import transfer
from lango_store._operations.binds import SHARED_VALUE
from lango_store._operations.row_validation import Incoming
from lango_store._operations.transfer import Row
from lango_store.backup.lines import VERSION, SessionDigest, json_line, pages, row_line
from lango_store.errors import DamagedMessage, InvalidValue, LangoStoreError, SessionNotFound
from lango_store.tables import SCHEMA_REVISION

_IN_MEMORY: Final = 1 << 20


def write_sessions(
    connection: sa.Connection, keys: Sequence[str], file: IO[bytes], *, shared: bool = False
) -> tuple[dict[str, LangoStoreError], list[DamagedMessage]]:
    """Write sessions to a file, with the values of shared scopes if asked to.

    Returns what keeps those out of it that are not there or cannot be read: sessions by their keys, and shared values.
    """
    faults: dict[str, LangoStoreError] = {}
    unread: list[DamagedMessage] = []
    _write(file, first_line())
    for key in keys:
        with SpooledTemporaryFile(_IN_MEMORY) as lines:  # whole or not at all, also where nothing can be taken back
            try:
                for line in session_lines(connection, key):
                    _write(lines, line)
            except (SessionNotFound, DamagedMessage) as error:
                faults[key] = error
                continue
            lines.seek(0)
            shutil.copyfileobj(lines, file)
    for line in _shared_lines(connection, unread) if shared else ():
        _write(file, line)
    _write(file, last_line(len(keys) - len(faults)))
    return faults, unread


def _write(file: IO[bytes], line: str) -> None:
    file.write(line.encode())
    file.write(b"\n")


def first_line() -> str:
    """Return the line that a file begins with."""
    return json_line({"lango_store": VERSION, "schema": SCHEMA_REVISION})


def session_lines(connection: sa.Connection, key: str) -> Iterator[str]:
    """Yield the lines of a session; the connection should see one moment. `SessionNotFound` if there is none."""
    counted, incoming = SessionDigest(), Incoming()
    for table, rows in pages(connection, key):
        for row in rows:
            with _named(row):  # what an import would refuse is refused now
                incoming.admit(table, row)
            line = row_line(table, row)
            counted.add(table, line.encode())
            yield line
    if not counted.sessions:
        raise SessionNotFound(key)
    with _named({"key": key}):
        incoming.check_counters()
    yield counted.closing()


def _shared_lines(connection: sa.Connection, unread: list[DamagedMessage]) -> Iterator[str]:
    """Yield the lines of the values of shared scopes, none if there are none; collect what cannot be read."""
    counted, incoming = SessionDigest(), Incoming()
    for rows in transfer.shared_values(connection):
        for row in rows:
            try:
                line = _shared_line(incoming, row)
            except DamagedMessage as error:
                unread.append(error)
                continue
            counted.add(SHARED_VALUE, line.encode())
            yield line
    if counted.shared_values:
        yield counted.closing_shared()


def _shared_line(incoming: Incoming, row: Row | DamagedMessage) -> str:
    if isinstance(row, DamagedMessage):
        raise row
    with _named(row):
        incoming.admit(SHARED_VALUE, row)
    return row_line(SHARED_VALUE, row)


@contextmanager
def _named(row: Row) -> Iterator[None]:
    try:
        yield
    except InvalidValue as error:
        reason = str(error).removeprefix(f"{error.field}: ")
        raise transfer.damaged(row, error.field, f"{reason}: see what `doctor` says") from None


def last_line(sessions: int) -> str:
    """Return the line that a file of so many sessions ends with."""
    return json_line({"sessions": sessions})
