"""Remove deleted rows from the files of a database, or describe where they remain."""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import Moment, dialect_of
from lango_store._engine.engine import database_file
from lango_store._operations import derived_data
from lango_store.tables import Base

_WAIT: Final = 5_000  # milliseconds for readers that still use the log
_READERS: Final = range(123, 128)  # the bytes of -shm that readers of the log lock: https://sqlite.org/walformat.html

# ANALYZE keeps the statistics of a table that has become empty.
_VACUUM: Final = (
    "dead rows stay in the files of the tables, and frequent values in the statistics, until a superuser has run, with "
    "an exclusive lock on each table: DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE "
    "relname ~ 'lango'); VACUUM (FULL, ANALYZE) {}; VACUUM FULL pg_statistic"
)
_LOG: Final = (
    "segments of the write-ahead log, their archives and replicas that are behind contain the rows until they are "
    "recycled or deleted"
)
BACKUPS: Final = "backups and exports contain the rows until they are deleted; repeat the erasure on a restored backup"


def remove(context: Context, database: str) -> list[str]:
    """Remove deleted rows from the search index and from SQLite's files; return what remains in a database."""
    derived_data.clean(context)
    if dialect_of(context.engine).leaves_dead_rows:
        tables = context.on_primary().read_together(_tables)
        return [f"{database}: {each}" for each in (_VACUUM.format(", ".join(tables)), _LOG)]
    remains: list[str] = []
    file = database_file(context.engine.url)
    with closing(context.engine.raw_connection()) as pooled:
        driver: Any = pooled.driver_connection
        if driver.execute("PRAGMA secure_delete").fetchone()[0] != 1:
            remains.append(
                "the connections of your engine do not overwrite deleted rows: run VACUUM, and in future "
                "`PRAGMA secure_delete = ON` when they connect"
            )
        (timeout,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute(f"PRAGMA busy_timeout = {_WAIT}")
        try:
            (busy, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            driver.execute(f"PRAGMA busy_timeout = {timeout}")
    if busy and file is not None:
        remains.append(
            f"the write-ahead log still contains the rows, because {_readers(file)} reads an earlier state or writes: "
            "end it, then run `sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'` or repeat the erasure"
        )
    return [f"{database}: {each}" for each in remains]


def _tables(connection: sa.Connection, _: Moment) -> list[str]:
    """Return the names of the tables that exist, without a reflection, whose operators another role could replace."""
    dialect = dialect_of(connection)
    names = {*Base.metadata.tables}.union(*(each.tables for each in derived_data.DERIVED))
    return [name for name in sorted(names) if dialect.has_table(connection, name)]


def _readers(file: Path) -> str:
    """Name the processes that read from the write-ahead log of a file, if the system lists locks."""
    unknown = "another connection"
    if sys.platform != "linux":
        return unknown
    status = Path(f"{file.resolve()}-shm").stat()
    of_file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    pids = {int(each[-4]) for each in locks if each[-3] == of_file and each[-2].isdigit() and int(each[-2]) in _READERS}
    names = ["this process" if pid == os.getpid() else f"process {pid}" for pid in sorted(pids)]
    return " or ".join(names) or unknown
