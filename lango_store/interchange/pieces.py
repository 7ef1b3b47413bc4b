"""Validated rows of sessions that are written to a store, grouped in pieces.

A piece has the rows of many sessions, or a part of one large session. An import creates pieces from the lines of a
file, a copy from the rows of another store.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Final, Literal

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store.errors import DamagedMessage, InvalidValue
from lango_store.interchange.backup_writing import KINDS, SessionDigest, row_line
from lango_store.rows import (
    CHILDREN,
    MESSAGE,
    SESSION,
    TABLES,
    Row,
    RowEncoder,
    decode_row,
    dialect_of,
    transfer,
)

ROWS: Final = 4_000
BYTES: Final = 2 << 20
"""The numbers of rows and bytes after which a piece ends with the current session. At twice these numbers, a piece ends
inside a session."""

State = Literal["imported", "already there", "collided"]


@dataclass(frozen=True)
class Outcome:
    """The result for one session or, with a `name`, for one shared value: its scope, and its line in the file."""

    key: str
    state: State
    messages: int = 0
    name: str | None = None
    line: int = 0


@dataclass
class BackupPiece:
    """Rows by table name, the sessions that end in this piece, and rows of scopes with their line numbers."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    ended: list[tuple[str, int, bytes]] = field(default_factory=list)
    """The key of each session, its number of messages, and its closing line in a file."""
    shared: list[tuple[int, str, Row]] = field(default_factory=list)
    is_whole: bool = True
    """False if the last session continues in the next piece."""


class Pieces:
    """Collects rows into pieces of about `ROWS` rows or `BYTES` bytes.

    A piece of this size ends with the current session. A piece of twice this size ends at once, and the session
    continues in the next piece.
    """

    def __init__(self) -> None:
        self._piece = BackupPiece()
        self._rows = self._bytes = 0
        self._is_cut = False

    def add(self, table: sa.Table, row: Row, size: int) -> Iterator[BackupPiece]:
        """Add a row of a session. Yields the piece if it has reached twice the usual size."""
        self._piece.rows.setdefault(table.name, []).append(row)
        self._count(size)
        if self._rows >= 2 * ROWS or self._bytes >= 2 * BYTES:
            self._piece.is_whole, self._is_cut = False, True
            yield self.take()

    def end(self, key: str, messages: int, closing: bytes = b"") -> Iterator[BackupPiece]:
        """End a session. Yields the piece if it has reached the usual size, or if the session was divided."""
        self._piece.ended.append((key, messages, closing))
        if self._rows >= ROWS or self._bytes >= BYTES or self._is_cut:
            self._is_cut = False
            yield self.take()

    def add_shared(self, line: int, kind: str, row: Row, size: int) -> Iterator[BackupPiece]:
        """Add a row of a scope. Yields the piece if it has reached the usual size."""
        self._piece.shared.append((line, kind, row))
        self._count(size)
        if self._rows >= ROWS or self._bytes >= BYTES:
            yield self.take()

    def _count(self, size: int) -> None:
        self._rows += 1
        self._bytes += size

    def take(self) -> BackupPiece:
        """Return the collected piece, and start a new one."""
        piece, self._piece = self._piece, BackupPiece()
        self._rows = self._bytes = 0
        return piece


class Writer:
    """Writes pieces in one transaction. Existing sessions and shared values are compared and never changed.

    `planned` is for a dry run, in which nothing is written: the keys that earlier pieces would have created.
    """

    def __init__(self, connection: sa.Connection, planned: set[str] | None = None) -> None:
        self._connection = connection
        self._planned = planned
        self._new: set[str] = set()

    def write(
        self, piece: BackupPiece, closings: Callable[[Sequence[str]], dict[str, bytes]] | None = None
    ) -> Iterator[Outcome]:
        """Write a piece. Yields a result for each session that ends in the piece and for each shared value.

        An existing session is compared by its closing line. If the piece has no such lines, `closings` computes them.
        """
        self._new |= self._insert_sessions(piece.rows.get(SESSION.name, []))
        if self._planned is None:
            for each in CHILDREN:
                rows = piece.rows.get(each.table.name, ())
                transfer.insert(self._connection, each.table, [row for row in rows if row["session_key"] in self._new])
        existing = [key for key, _, _ in piece.ended if key not in self._new]
        stored = closing_lines(self._connection, existing)
        expected = {key: line for key, _, line in piece.ended} if closings is None else closings(existing)
        for key, messages, _ in piece.ended:
            state: State = "imported"
            if key not in self._new:
                state = "already there" if stored.get(key) == expected[key] else "collided"
            yield Outcome(key, state, messages)
        self._new -= {key for key, _, _ in piece.ended}
        for line, kind, row in piece.shared:
            yield Outcome(row["scope"], self._write_shared(KINDS[kind], row), name=row["name"], line=line)

    def _insert_sessions(self, rows: list[Row]) -> set[str]:
        if self._planned is None:
            return transfer.insert_sessions(self._connection, rows)
        keys = {row["key"] for row in rows}
        new = keys - self._planned - transfer.incarnations(self._connection, list(keys)).keys()
        self._planned |= new
        return new

    def _write_shared(self, table: sa.Table, row: Row) -> State:
        existing = transfer.shared_row(self._connection, table, row["scope"], row["name"])
        if existing is None:
            if self._planned is None:
                transfer.insert(self._connection, table, [row])
            return "imported"
        try:
            same = RowEncoder().encode(table, decode_row(table, existing)) == row
        except (DamagedMessage, InvalidValue):
            same = False
        return "already there" if same else "collided"


def closing_lines(connection: sa.Connection, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the closing lines that stored sessions would have in a file, except damaged and missing sessions."""
    if not keys:
        return {}
    digests: dict[str, SessionDigest] = {}
    try:
        for table, row in transfer.whole_sessions(connection, keys):
            kind, key = TABLES[table].stored.kind, row["key" if table is SESSION else "session_key"]
            digests.setdefault(key, SessionDigest()).add(kind, row_line(kind, decode_row(table, row)))
    except DamagedMessage:
        if len(keys) == 1:
            return {}
        return {name: line for key in keys for name, line in closing_lines(connection, [key]).items()}
    return {key: digest.closing() for key, digest in digests.items()}


def session_pieces(connection: sa.Connection, keys: Sequence[str]) -> Iterator[BackupPiece]:
    """Yield stored sessions, divided into pieces. The connection must have a snapshot.

    Raises `DamagedMessage` if an import would reject a session.
    """
    pieces, encoder = Pieces(), RowEncoder()
    current: str | None = None
    messages = 0
    for table, row in transfer.whole_sessions(connection, keys):
        if table is SESSION:
            if current is not None:
                encoder.check_stored()
                yield from pieces.end(current, messages)
            current, encoder, messages = row["key"], RowEncoder(), 0
        messages += table is MESSAGE
        size = sum([len(row[name] or "") for name in TABLES[table].large])
        yield from pieces.add(table, encoder.encode_stored(table, row)[0], size)
    if current is not None:
        encoder.check_stored()
        yield from pieces.end(current, messages)
    yield pieces.take()


class Pause:
    """Pauses between batches, so that waiting writers get access to the database."""

    _EVERY: Final = 0.5  # seconds; an append waits at most this long and for one batch

    def __init__(self, context: Context) -> None:
        self._context = context
        self._paused_at = monotonic()

    def after_batch(self) -> None:
        """Pause if the last pause is over half a second ago; never in a caller's transaction, which keeps its locks."""
        if monotonic() - self._paused_at > self._EVERY and not self._context.in_callers_transaction:
            sleep(dialect_of(self._context.engine).batch_rest)
            self._paused_at = monotonic()
