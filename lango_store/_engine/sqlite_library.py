"""The SQLite library of our engines and archives, and whether it has the WAL-reset bug.

With the bug, a checkpoint and a commit of two connections that meet can lose commits or damage the file
(https://sqlite.org/wal.html#walresetbug).
"""

import logging
import sqlite3
from functools import cache
from importlib import import_module
from typing import Any, Final

import sqlalchemy as sa

logger = logging.getLogger("lango_store")

_FIRST: Final = (3, 7, 0)
_FIXED: Final = (3, 51, 3)
_BACKPORTS: Final = {(3, 44): 6, (3, 50): 7}

REMEDY: Final = "use a Python with SQLite 3.51.3 or later, or `pip install 'lango-store[sqlite]'`"


def is_affected(version: tuple[int, ...]) -> bool:
    """Return whether a version of SQLite has the WAL-reset bug."""
    if not _FIRST <= version < _FIXED:
        return False
    backport = _BACKPORTS.get((version[0], version[1]))
    return backport is None or version[2] < backport


def library_version(connection: sa.Connection) -> tuple[int, ...]:
    """Return the version of the SQLite that a connection uses."""
    return tuple(map(int, connection.dialect.server_version_info or ()))


@cache
def log_affected(version: str) -> None:
    """Log once that this process uses a version with the WAL-reset bug."""
    logger.info(
        "SQLite %s has the WAL-reset bug, which our connections avoid, but not other connections to the same file: %s",
        version,
        REMEDY,
    )


@cache
def sqlite_module() -> Any:
    """Return the driver's module: pysqlite3 if it is installed and has no bug that Python's has, or else sqlite3."""
    # Not wherever it is installed: two libraries in one process must never have the same file open.
    if is_affected(sqlite3.sqlite_version_info):
        try:
            module = import_module("pysqlite3.dbapi2")
        except ImportError:
            return sqlite3
        if not is_affected(module.sqlite_version_info):
            return module
    return sqlite3
