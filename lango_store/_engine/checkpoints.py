"""Checkpoints for a SQLite with the WAL-reset bug: never while a commit is possible.

SQLite's automatic checkpoints are off for the connections of our engines. About every 1,000 pages one that is outside
of a transaction holds the write lock while another makes the checkpoint.

SQLite also makes a checkpoint when the last connection closes. No commit can meet it: SQLite takes an exclusive lock on
the file first, and every other connection has a shared one for as long as it has the log open.
"""

import os
import threading
from collections.abc import MutableMapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

_INFO: Final = "lango_store_checkpoints"
_PAGES: Final = 1_000
_ROWS: Final = 32  # between two looks at the log, which take a twentieth of an append
_HEADER, _FRAME_HEADER, _SALTS = 32, 24, 8  # bytes; https://sqlite.org/fileformat2.html#walformat
_SMALLEST_PAGE: Final = 512


class Checkpoints:
    """The checkpoints of an engine's file."""

    def __init__(self, sqlite: Any) -> None:
        self._sqlite = sqlite
        self._turn = threading.Lock()
        self._salts = b""
        self._due = _PAGES

    def connected(self, driver: Any, info: MutableMapping[str, Any]) -> None:
        """Prepare a new connection of the engine."""
        driver.execute("PRAGMA wal_autocheckpoint = 0")
        file = next(path for _, name, path in driver.execute("PRAGMA database_list") if name == "main")
        with suppress(OSError):  # the file has just been deleted
            info[_INFO] = _Connection(self, file)

    def make_if_due(self, driver: Any, connection: "_Connection") -> None:
        """Make a checkpoint if the log has enough pages; if it cannot be made now, a later call makes it."""
        log = f"{connection.file}-wal"
        with suppress(OSError, self._sqlite.Error):
            if os.stat(log).st_size < _HEADER + _PAGES * (_FRAME_HEADER + _SMALLEST_PAGE):  # noqa: PTH116 # Path is slow
                return
            salts, due = self._read(log)
            if due and connection.is_current() and self._turn.acquire(blocking=False):
                try:
                    self._make(driver, connection.file, salts)
                finally:
                    self._turn.release()

    def _read(self, log: str) -> tuple[bytes, bool]:
        """Return the salts of the log, and whether it has a page at which a checkpoint is due."""
        # The size does not tell: a log begins again at the start of its file, with new salts. SQLite locks the other
        # files only, so that closing this one gives up no lock of the process.
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
            driver.execute("BEGIN IMMEDIATE")  # if another connection is writing, its next call makes the checkpoint
            other = self._sqlite.connect(f"{Path(file).as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)
            with closing(other):
                busy, pages, _ = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy:  # the log may be needed by readers, and grow on
                self._salts, self._due = salts, pages + _PAGES
        finally:
            if driver.in_transaction:
                driver.execute("ROLLBACK")
            driver.execute(f"PRAGMA busy_timeout = {timeout}")


class _Connection:
    """A connection, and how many rows it has written when it looks at the log next."""

    __slots__ = ("_identity", "_process", "checkpoints", "file", "next_look")

    def __init__(self, checkpoints: Checkpoints, file: str) -> None:
        self.checkpoints = checkpoints
        self.file = file
        self.next_look = 1
        self._process = os.getpid()
        self._identity = _identity(file)

    def is_current(self) -> bool:
        """Return whether this process opened the connection, and its path still names the same file."""
        return self._process == os.getpid() and self._identity == _identity(self.file)


def _identity(file: str) -> tuple[int, int]:
    status = Path(file).stat()
    return status.st_dev, status.st_ino


def make_if_due(driver: Any, info: MutableMapping[str, Any]) -> None:
    """Make a checkpoint if a connection, now outside of a transaction, has written, and the log has enough pages."""
    connection: _Connection | None = info.get(_INFO)
    if connection is not None and driver.total_changes >= connection.next_look:
        connection.next_look = driver.total_changes + _ROWS
        connection.checkpoints.make_if_due(driver, connection)
