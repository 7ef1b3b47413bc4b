"""The version of SQLite, and the versions that have the WAL-reset bug.

With this bug, a checkpoint and a simultaneous commit of another connection can lose commits or damage the file
(https://sqlite.org/wal.html#walresetbug).
"""

import logging
from functools import cache
from typing import Final

import sqlalchemy as sa

logger = logging.getLogger("lango_store")

_FIRST: Final = (3, 7, 0)
_FIXED: Final = (3, 51, 3)
_BACKPORTS: Final = {(3, 44): 6, (3, 50): 7}

REMEDY: Final = "use a Python with SQLite 3.51.3 or later, or `pip install 'lango-store[sqlite]'` and a URL sqlite+pysqlite3:///file"


def is_affected(version: tuple[int, ...]) -> bool:
    """Return True if a version of SQLite has the WAL-reset bug."""
    if not _FIRST <= version < _FIXED:
        return False
    backport = _BACKPORTS.get((version[0], version[1]))
    return backport is None or version[2] < backport


def library_version(connection: sa.Connection) -> tuple[int, ...]:
    """Return the version of SQLite that a connection uses."""
    return tuple(map(int, connection.dialect.server_version_info or ()))


@cache
def log_affected(version: str) -> None:
    """Log that this process uses a SQLite with the WAL-reset bug, once for each version."""
    logger.info(
        "SQLite %s has the WAL-reset bug, which our connections avoid, but not other connections to the same file: %s",
        version,
        REMEDY,
    )
