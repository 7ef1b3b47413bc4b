"""Writing of backups.

The first line is `{"lango_store":1,"schema":"0119"}`, the last line `{"sessions":N}`. A session has one line for its
row, one line for each turn, message, payload, change, value, draft, inbox message, call and suspension, and a closing
line with counts and a digest. A backup of the whole store continues with the shared values and budgets, which have a
closing line too.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

import sqlalchemy as sa

from lango_store.errors import DamagedMessage, LangoStoreError, SessionNotFound
from lango_store.rows import CHILDREN, SHARED, TABLES, Fields, RowEncoder, encode_time_text, transfer
from lango_store.tables import SCHEMA_REVISION

VERSION: Final = 1
"""The version of the format, as in the first line of every file."""

KINDS: Final = {described.stored.kind: table for table, described in TABLES.items()}
"""The tables by the name of their rows in a backup."""

SHARED_KINDS: Final = {TABLES[table].stored.kind: table for table in SHARED}
"""The tables with rows of scopes."""


class SessionDigest:
    """Counts and SHA-256 digest of the lines of a session, or of the rows of scopes."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self._sha256 = hashlib.sha256()

    def add(self, kind: str, line: bytes) -> None:
        """Count the line of a row, passed without its newline, and add it to the digest."""
        self.counts[kind] += 1
        self._sha256.update(line)
        self._sha256.update(b"\n")

    def closing(self) -> bytes:
        """Return the line that closes the session."""
        counts = {each.stored.kind: self.counts[each.stored.kind] for each in CHILDREN}
        end = {f"{kind}s": n for kind, n in counts.items() if n or kind in ("turn", "message")}
        return json_line({"end": end | {"sha256": self._sha256.hexdigest()}})

    def closing_shared(self) -> bytes:
        """Return the line that closes the rows of scopes."""
        counts = {f"{kind.removeprefix('shared_')}s": self.counts[kind] for kind in SHARED_KINDS}
        counts = {name: n for name, n in counts.items() if n or name == "values"}
        return json_line({"shared": counts | {"sha256": self._sha256.hexdigest()}})


def row_line(kind: str, fields: Fields) -> bytes:
    """Return a row as one line, without its session key and the newline."""
    return json_line({kind: {name: value for name, value in fields.items() if name != "session_key"}})


def json_line(value: Any) -> bytes:
    """Return a value as one line of JSON, without the newline."""
    try:
        return _dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        return _dumps(value, ensure_ascii=True).encode()


def _dumps(value: Any, *, ensure_ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"), default=encode_time_text)


_IN_MEMORY: Final = 1 << 20


def write_sessions(
    connection: sa.Connection, keys: Sequence[str], file: IO[bytes], *, shared: bool = False
) -> tuple[dict[str, LangoStoreError], list[DamagedMessage]]:
    """Write sessions to a file, and with `shared` all shared values.

    Returns the errors of missing and damaged sessions by key, and the errors of damaged shared values.
    """
    faults: dict[str, LangoStoreError] = {}
    unread: list[DamagedMessage] = []
    _write(file, first_line())
    for key in keys:
        with SpooledTemporaryFile(_IN_MEMORY) as lines:  # a session is written whole or not at all
            try:
                for line in session_lines(connection, key):
                    _write(lines, line)
            except (SessionNotFound, DamagedMessage) as error:
                faults[key] = error
                continue
            lines.seek(0)
            shutil.copyfileobj(lines, file)
    for line in shared_lines(connection, unread) if shared else ():
        _write(file, line)
    _write(file, last_line(len(keys) - len(faults)))
    return faults, unread


def _write(file: IO[bytes], line: bytes) -> None:
    file.write(line)
    file.write(b"\n")


def first_line() -> bytes:
    """Return the first line of every backup."""
    return json_line({"lango_store": VERSION, "schema": SCHEMA_REVISION})


def session_lines(connection: sa.Connection, key: str) -> Iterator[bytes]:
    """Yield the lines of a session. The connection must have a snapshot.

    Raises:
        SessionNotFound: There is no such session.
        DamagedMessage: A row cannot be read, or the rows contradict the session's counters.
    """
    digest, encoder = SessionDigest(), RowEncoder()
    for table, rows in transfer.whole_session(connection, key):
        for row in rows:
            kind = TABLES[table].stored.kind
            line = row_line(kind, encoder.encode_stored(table, row)[1])
            digest.add(kind, line)
            yield line
    if not digest.counts["session"]:
        raise SessionNotFound(key)
    encoder.check_stored()
    yield digest.closing()


def shared_lines(connection: sa.Connection, unread: list[DamagedMessage]) -> Iterator[bytes]:
    """Yield the lines of the shared values and budgets, if any. Errors of damaged rows are appended to `unread`."""
    digest, encoder = SessionDigest(), RowEncoder()
    for kind, table in SHARED_KINDS.items():
        for row in transfer.shared_rows(connection, table):
            try:
                if isinstance(row, DamagedMessage):
                    raise row
                line = row_line(kind, encoder.encode_stored(table, row)[1])
            except DamagedMessage as error:
                unread.append(error)
            else:
                digest.add(kind, line)
                yield line
    if any(digest.counts.values()):
        yield digest.closing_shared()


def last_line(sessions: int) -> bytes:
    """Return the last line of a backup with this number of sessions."""
    return json_line({"sessions": sessions})
