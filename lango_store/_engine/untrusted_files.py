"""Connections to SQLite files that another program may have prepared to do harm."""

import sqlite3
from pathlib import Path
from typing import Final

_PER_CALL: Final = 10_000  # instructions of SQLite between two calls of the progress handler
_PER_BYTE: Final = 10  # reading a sound file of short messages runs 0.4


def guard(connection: sqlite3.Connection, path: Path, *, instructions: int = 2_000_000) -> None:
    """Protect the statements of one connection against the schema and the pages of a file that is only read.

    - A view cannot be read, because it can be endless, and a statement that fires a trigger fails.
    - The schema cannot call unsafe functions.
    - Statements are interrupted when they have run many more instructions than the size of the file explains. Few
      pages that refer many times to each other would otherwise be read as billions of rows.

    Args:
        connection: The connection.
        path: The path of the file.
        instructions: The number of instructions that are allowed for a file of any size.
    """
    size = sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists())
    remaining = instructions + _PER_BYTE * size

    def is_exhausted() -> bool:
        nonlocal remaining
        remaining -= _PER_CALL
        return remaining < 0

    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_authorizer(_authorize)
    connection.set_progress_handler(is_exhausted, _PER_CALL)


def _authorize(action: int, _: str | None, __: str | None, ___: str | None, view_or_trigger: str | None) -> int:
    return sqlite3.SQLITE_OK if view_or_trigger is None or action == sqlite3.SQLITE_READ else sqlite3.SQLITE_DENY


def guard_fault(error: BaseException) -> str | None:
    """Return what an error of a guarded statement says about the file, None for any other error."""
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_AUTH:
        return "has a view or a trigger in place of a table: use another copy"
    if code == sqlite3.SQLITE_INTERRUPT:
        return "takes much longer to read than its size explains: its pages are damaged, use another copy"
    return None
