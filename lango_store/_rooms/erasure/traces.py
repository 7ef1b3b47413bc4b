"""Remove deleted rows from the files of a database, or describe where they remain."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import Moment, dialect_of
from lango_store._operations import derived_data
from lango_store.tables import Base

_WAIT: Final = 5_000  # milliseconds for readers that still use the log
_READERS: Final = range(123, 128)  # the bytes of -shm that readers of the log lock: https://sqlite.org/walformat.html

_LOCKS: Final = Path("/proc/locks")

# ANALYZE keeps the statistics of a table that has become empty.
_VACUUM: Final = (
    "dead rows stay in the files of the tables, and frequent values in the statistics, until all transactions have "
    "ended that are open now, and then a superuser has run, with an exclusive lock on each table: DELETE FROM "
    "pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relname ~ 'lango'); VACUUM (FULL, ANALYZE) {}; "
    "VACUUM FULL pg_statistic"
)
_HIDDEN: Final = (
    "row-level security applies to this role, and rows that its policies hide are not erased: repeat the erasure as "
    "the owner of the tables"
)
_LOG: Final = (
    "segments of the write-ahead log, their archives and replicas that are behind contain the rows until they are "
    "recycled or deleted"
)
_DESCRIBE: Final = (
    "SELECT identity, row_security_active(to_regclass(%(name)s)::oid) "
    "FROM pg_identify_object('pg_class'::regclass, to_regclass(%(name)s)::oid, 0)"
)
"""The name with its schema, NULL if there is no such table, and whether policies hide rows from this role."""

BACKUPS: Final = "backups and exports contain the rows until they are deleted; repeat the erasure on a restored backup"


def remove(context: Context, database: str) -> list[str]:
    """Remove deleted rows from the search index and from SQLite's files; return what remains in a database."""
    derived_data.clean(context)
    if dialect_of(context.engine).leaves_dead_rows:
        return [f"{database}: {each}" for each in context.on_primary().read_together(_on_server)]
    context.transact(_forget_samples)
    remains: list[str] = []
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
        if busy:
            _, _, file = driver.execute("PRAGMA database_list").fetchone()
            remains.append(
                f"the write-ahead log still contains the rows, because {_readers(file)} reads an earlier state or "
                "writes: end it, then run `sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'` or repeat the erasure"
            )
    return [f"{database}: {each}" for each in remains]


def _on_server(connection: sa.Connection, _: Moment) -> list[str]:
    """Return what remains on a server. No operator is used, because another role could replace it."""
    names = {*Base.metadata.tables}.union(*(each.tables for each in derived_data.DERIVED))
    rows = [connection.exec_driver_sql(_DESCRIBE, {"name": name}).one() for name in sorted(names)]
    tables = ", ".join(identity for identity, _ in rows if identity is not None)
    return [_VACUUM.format(tables), _LOG, *[_HIDDEN] * any(is_filtered for _, is_filtered in rows)]


def _forget_samples(connection: sa.Connection, _: Moment) -> None:
    """Delete the values that ANALYZE of some builds of SQLite has copied from indexes."""
    if dialect_of(connection).has_table(connection, "sqlite_stat4"):
        connection.exec_driver_sql("DELETE FROM sqlite_stat4 WHERE tbl LIKE 'lango%'")


def _readers(file: str) -> str:
    """Name the processes that read from the write-ahead log of a file, if the system lists locks."""
    try:
        status = Path(f"{file}-shm").stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return "another connection"
    of_file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = [line.split() for line in lines]
    pids = {int(each[-4]) for each in locks if each[-3] == of_file and each[-2].isdigit() and int(each[-2]) in _READERS}
    names = ["this process" if pid == os.getpid() else f"process {pid}" for pid in sorted(pids)]
    return " or ".join(names) or "another connection"
