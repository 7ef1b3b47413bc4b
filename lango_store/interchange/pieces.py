"""Validated rows of whole sessions on their way into a store, many sessions in a piece.

An import makes pieces from the lines of a file, a copy from the rows of another store.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Final, Literal

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._operations import transfer
from lango_store._operations.binds import CHANGE, MESSAGE, SESSION, SHARED_VALUE, TURN, VALUE
from lango_store._operations.portable_rows import RowEncoder, decode_row
from lango_store._operations.transfer import Row
from lango_store._rows.columns import JsonColumn
from lango_store.errors import DamagedMessage, InvalidValue
from lango_store.interchange.backup_writing import KINDS, SessionDigest, row_line

_LARGE: Final = {
    table: [each.name for each in columns if isinstance(each.type, JsonColumn) or each.name == "text"]
    for table, columns in transfer.COLUMNS.items()
}
ROWS: Final = 4_000
BYTES: Final = 2 << 20

State = Literal["imported", "already there", "collided"]


@dataclass(frozen=True)
class Outcome:
    """The result for one session."""

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


@dataclass
class Piece:
    """Rows by their table, the sessions that end in this piece, and shared values with the numbers of their lines."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    ended: list[tuple[str, int, bytes]] = field(default_factory=list)
    """The key of each session, the number of its messages, and the line that closes it in a file."""
    shared: list[tuple[int, Row]] = field(default_factory=list)
    is_whole: bool = True
    """False if the last session continues in the next piece."""


class Pieces:
    """Collects rows until they fill a piece. Only a session that is larger than a piece is cut."""

    def __init__(self) -> None:
        self._piece = Piece()
        self._rows = self._bytes = 0
        self._is_cut = False

    def add(self, table: sa.Table, row: Row, size: int) -> Iterator[Piece]:
        """Add a row of a session; yield a piece that is full."""
        self._piece.rows.setdefault(table.name, []).append(row)
        self._count(size)
        if self._rows >= 2 * ROWS or self._bytes >= 2 * BYTES:
            self._piece.is_whole, self._is_cut = False, True
            yield self.take()

    def end(self, key: str, messages: int, closing: bytes = b"") -> Iterator[Piece]:
        """End a session; yield a piece that is full."""
        self._piece.ended.append((key, messages, closing))
        if self._rows >= ROWS or self._bytes >= BYTES or self._is_cut:
            self._is_cut = False
            yield self.take()

    def add_shared(self, line: int, row: Row, size: int) -> Iterator[Piece]:
        """Add a shared value; yield a piece that is full."""
        self._piece.shared.append((line, row))
        self._count(size)
        if self._rows >= ROWS or self._bytes >= BYTES:
            yield self.take()

    def _count(self, size: int) -> None:
        self._rows += 1
        self._bytes += size

    def take(self) -> Piece:
        """Return what is collected."""
        piece, self._piece = self._piece, Piece()
        self._rows = self._bytes = 0
        return piece


class Writer:
    """Writes pieces in one transaction; a session or shared value that exists is compared and never changed.

    With `planned`, the keys that earlier pieces would have created, nothing is written.
    """

    def __init__(self, connection: sa.Connection, planned: set[str] | None = None) -> None:
        self._connection = connection
        self._planned = planned
        self._new: set[str] = set()

    def write(
        self, piece: Piece, closings: Callable[[Sequence[str]], dict[str, bytes]] | None = None
    ) -> Iterator[Outcome | SharedValue]:
        """Write a piece, and yield the result for each session that ends in it and each shared value.

        Sessions that exist are compared by the lines that close them, which `closings` returns if the piece has none.
        """
        self._new |= self._insert_sessions(piece.rows.get(SESSION.name, []))
        if self._planned is None:
            for table in (TURN, MESSAGE, CHANGE, VALUE):
                rows = piece.rows.get(table.name, ())
                transfer.insert(self._connection, table, [row for row in rows if row["session_key"] in self._new])
        existing = [key for key, _, _ in piece.ended if key not in self._new]
        stored = closing_lines(self._connection, existing)
        expected = {key: line for key, _, line in piece.ended} if closings is None else closings(existing)
        for key, messages, _ in piece.ended:
            state: State = "imported"
            if key not in self._new:
                state = "already there" if stored.get(key) == expected[key] else "collided"
            yield Outcome(key, state, messages)
        self._new -= {key for key, _, _ in piece.ended}
        for line, row in piece.shared:
            yield SharedValue(line, row["scope"], row["name"], self._write_shared(row))

    def _insert_sessions(self, rows: list[Row]) -> set[str]:
        if self._planned is None:
            return transfer.insert_sessions(self._connection, rows)
        keys = {row["key"] for row in rows}
        new = keys - self._planned - transfer.incarnations(self._connection, list(keys)).keys()
        self._planned |= new
        return new

    def _write_shared(self, row: Row) -> State:
        existing = transfer.shared_value(self._connection, row["scope"], row["name"])
        if existing is None:
            if self._planned is None:
                transfer.insert(self._connection, SHARED_VALUE, [row])
            return "imported"
        try:
            same = RowEncoder().encode(SHARED_VALUE, decode_row(SHARED_VALUE, existing)) == row
        except (DamagedMessage, InvalidValue):
            same = False
        return "already there" if same else "collided"


def closing_lines(connection: sa.Connection, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the lines that would close stored sessions in a file, without sessions that are damaged or missing."""
    if not keys:
        return {}
    digests: dict[str, SessionDigest] = {}
    try:
        for table, row in transfer.whole_sessions(connection, keys):
            kind, key = KINDS[table.name], row["key" if table is SESSION else "session_key"]
            digests.setdefault(key, SessionDigest()).add(kind, row_line(kind, decode_row(table, row)))
    except DamagedMessage:
        if len(keys) == 1:
            return {}
        return {name: line for key in keys for name, line in closing_lines(connection, [key]).items()}
    return {key: digest.closing() for key, digest in digests.items()}


def session_pieces(connection: sa.Connection, keys: Sequence[str]) -> Iterator[Piece]:
    """Yield pieces with stored sessions, from a connection with a snapshot.

    Raises `DamagedMessage` if a session could not be imported.
    """
    pieces, encoder = Pieces(), RowEncoder()
    current: str | None = None
    messages = 0
    for table, row in transfer.whole_sessions(connection, keys):
        if table is SESSION:
            if current is not None:
                encoder.check_stored_counters()
                yield from pieces.end(current, messages)
            current, encoder, messages = row["key"], RowEncoder(), 0
        messages += table is MESSAGE
        size = sum([len(row[name] or "") for name in _LARGE[table.name]])
        yield from pieces.add(table, encoder.encode_stored(table, row)[0], size)
    if current is not None:
        encoder.check_stored_counters()
        yield from pieces.end(current, messages)
    yield pieces.take()


class Pause:
    """Lets writers that wait for the database have a turn between two batches."""

    _EVERY: Final = 0.5  # seconds: an append waits no longer than that and a batch

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rested = monotonic()

    def after_batch(self) -> None:
        """Rest if the last rest was some time ago; never inside the caller's transaction, which keeps its locks."""
        if monotonic() - self._rested > self._EVERY and not self._context.in_callers_transaction:
            sleep(dialect_of(self._context.engine).batch_rest)
            self._rested = monotonic()
