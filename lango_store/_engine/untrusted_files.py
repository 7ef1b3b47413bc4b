"""Connections to SQLite files that another program may have prepared to do harm."""

import sqlite3
from pathlib import Path
from typing import Final

_FROM_SCHEMA: Final = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_READ)
_PER_CALL: Final = 10_000  # instructions of SQLite between two calls of the progress handler
_PER_BYTE: Final = 10  # an operation on a sound archive of short messages runs 0.4


class Guard:
    """Protects the statements of one connection against the schema and the pages of the file.

    - A view cannot be read, because it can be endless. A trigger can only insert values, as triggers of a full-text
      index do; a statement that fires another trigger fails.
    - The schema cannot call unsafe functions.
    - Statements are interrupted when they have run many more instructions than the size of the file explains. Few
      pages that refer many times to each other would otherwise be read as billions of rows.

    Args:
        connection: The connection.
        instructions: The number of instructions that are allowed for a file of any size.
    """

    def __init__(self, connection: sqlite3.Connection, *, instructions: int = 2_000_000) -> None:
        self._instructions = instructions
        self._remaining: int | None = None
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(self._is_exhausted, _PER_CALL)

    def allow(self, path: Path | None) -> None:
        """Start a new budget for reading a file, which grows with its size; None removes the limit."""
        if path is None:
            self._remaining = None
            return
        size = sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists())
        self._remaining = self._instructions + _PER_BYTE * size

    def _is_exhausted(self) -> bool:
        if self._remaining is None:
            return False
        self._remaining -= _PER_CALL
        return self._remaining < 0


def _authorize(action: int, _: str | None, __: str | None, ___: str | None, view_or_trigger: str | None) -> int:
    return sqlite3.SQLITE_OK if view_or_trigger is None or action in _FROM_SCHEMA else sqlite3.SQLITE_DENY


def guard_fault(error: BaseException) -> str | None:
    """Return what an error of a guarded statement says about the file, None for any other error."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_AUTH:
        return "has a view or a trigger in place of a table: use another copy"
    if code == sqlite3.SQLITE_INTERRUPT:
        return "takes much longer to read than its size explains: its pages are damaged, use another copy"
    return None
