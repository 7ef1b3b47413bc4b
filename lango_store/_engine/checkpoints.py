"""Checkpoints for a SQLite with the WAL-reset bug, made only while no commit is possible.

The connections of our engines switch off SQLite's automatic checkpoints. About every 1,000 pages, a connection outside
of a transaction takes the write lock while a second connection makes the checkpoint.

SQLite also makes a checkpoint when the last connection closes. No commit can happen during that checkpoint: SQLite
first takes an exclusive lock on the file, and every other connection holds a shared lock while it has the log open.
"""

import os
import threading
from collections.abc import MutableMapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

_INFO: Final = "lango_store_checkpoints"
_PAGES: Final = 1_000
_ROWS: Final = 32  # written between two checks of the log; a check takes a twentieth of the time of an append
_HEADER, _FRAME_HEADER, _SALTS = 32, 24, 8  # bytes; https://sqlite.org/fileformat2.html#walformat
_SMALLEST_PAGE: Final = 512


class Checkpoints:
    """Runs the checkpoints of one engine's database file at safe moments."""

    def __init__(self, sqlite: Any) -> None:
        self._sqlite = sqlite
        self._lock = threading.Lock()
        self._salts = b""
        self._due = _PAGES

    def connected(self, driver: Any, info: MutableMapping[str, Any]) -> None:
        """Switch off automatic checkpoints on a new connection, and remember the connection's file."""
        driver.execute("PRAGMA wal_autocheckpoint = 0")
        file = next(path for _, name, path in driver.execute("PRAGMA database_list") if name == "main")
        with suppress(OSError):  # the file has just been deleted
            info[_INFO] = _Connection(self, file)

    def make_if_due(self, driver: Any, connection: "_Connection") -> None:
        """Make a checkpoint if the log has enough pages. If the checkpoint fails, a later call tries again."""
        log = f"{connection.file}-wal"
        with suppress(OSError, self._sqlite.Error):
            if os.stat(log).st_size < _HEADER + _PAGES * (_FRAME_HEADER + _SMALLEST_PAGE):  # noqa: PTH116 # Path is slow
                return
            salts, due = self._read(log)
            if due and connection.is_current() and self._lock.acquire(blocking=False):
                try:
                    self._make(driver, connection.file, salts)
                finally:
                    self._lock.release()

    def _read(self, log: str) -> tuple[bytes, bool]:
        """Return the salts of the log, and True if it is long enough for a checkpoint."""
        # The size of the file is not the size of the log: SQLite restarts the log at the beginning of the file, with
        # new salts. Closing the log releases no lock of the process, because SQLite locks only the other two files.
        with open(log, "rb", buffering=0) as file:  # noqa: PTH123
            header = file.read(_HEADER)
            salts = header[16:24]
            page = self._due if salts == self._salts else _PAGES
            file.seek(_HEADER + (page - 1) * (_FRAME_HEADER + int.from_bytes(header[8:12])) + _SALTS)
            return salts, file.read(_SALTS) == salts

    def _make(self, driver: Any, file: str, salts: bytes) -> None:
        (timeout,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute("PRAGMA busy_timeout = 0")
        try:
            driver.execute("BEGIN IMMEDIATE")  # if another connection is writing, that one makes the checkpoint later
            other = self._sqlite.connect(f"{Path(file).as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)
            with closing(other):
                busy, pages, _ = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy:
                self._salts, self._due = salts, pages + _PAGES  # a log that readers still need continues to grow
        finally:
            if driver.in_transaction:
                driver.execute("ROLLBACK")
            driver.execute(f"PRAGMA busy_timeout = {timeout}")


class _Connection:
    """A connection, and the number of written rows after which it checks the log again."""

    __slots__ = ("_identity", "_process", "checkpoints", "file", "next_look")

    def __init__(self, checkpoints: Checkpoints, file: str) -> None:
        self.checkpoints = checkpoints
        self.file = file
        self.next_look = 1
        self._process = os.getpid()
        self._identity = _identity(file)

    def is_current(self) -> bool:
        """Return True if this process opened the connection and the path still names the same file."""
        return self._process == os.getpid() and self._identity == _identity(self.file)


def _identity(file: str) -> tuple[int, int]:
    status = Path(file).stat()
    return status.st_dev, status.st_ino


def make_if_due(driver: Any, info: MutableMapping[str, Any]) -> None:
    """Make a checkpoint if a connection outside of a transaction has written and the log has enough pages."""
    connection: _Connection | None = info.get(_INFO)
    if connection is not None and driver.total_changes >= connection.next_look:
        connection.next_look = driver.total_changes + _ROWS
        connection.checkpoints.make_if_due(driver, connection)
