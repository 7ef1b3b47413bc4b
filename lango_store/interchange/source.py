"""Reading of files of other systems, which must not change while they are read."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.fidelity import check_key
from lango_store.interchange.files import lines_of, reading, state
from lango_store.rows.storage import guard, guard_fault

MAX_NAME: Final = 255
"""The maximum length of a file name, in bytes."""


@contextmanager
def reading_unchanged(path: Path, before: object = None) -> Iterator[BinaryIO]:
    """Open a file for reading. Raise `InvalidFile` at the start or the end if it has changed since `before`.

    `before` is an earlier `state` of the file; by default the state at the start.
    """
    before = before or state(path)
    check_unchanged(path, before)
    with reading(path) as file:
        yield file
    check_unchanged(path, before)


def check_unchanged(path: Path, before: object) -> None:
    """Raise `InvalidFile` if a file has changed since `before`."""
    if state(path) != before:
        raise InvalidFile(path, "was changed while it was read: stop the writer, then import again")


def lines_in(path: Path, before: object = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their line numbers from 1. See `reading_unchanged`."""
    with reading_unchanged(path, before) as file:
        for number, line in lines_of(file, path):
            if not line.isspace():
                yield number, line


def open_database(path: Path) -> sqlite3.Connection:
    """Open a SQLite file that cannot make its reader run without end, whatever its schema and its pages are."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    guard(connection, path)
    return connection


def database_fault(error: Exception) -> str:
    """Return the reason why a file that `open_database` opened cannot be read."""
    return guard_fault(error) or str(error)


def copy_database(path: Path, folder: str | Path) -> Path:
    """Copy a SQLite file, with its `-wal` or `-journal` file, to a folder. The original is never opened or changed."""
    endings = [each for each in ("", "-wal", "-journal") if not each or Path(f"{path}{each}").is_file()]
    copy = Path(folder, "copy.db")
    with ExitStack() as stack:  # open all files before copying the first, for a consistent copy
        files = [stack.enter_context(reading_unchanged(Path(f"{path}{each}"))) for each in endings]
        for ending, file in zip(endings, files, strict=True):
            with Path(f"{copy}{ending}").open("wb") as to:
                shutil.copyfileobj(file, to)
    return copy


def first_bytes(path: Path, count: int) -> bytes:
    """Read the first bytes of a file. The result is empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def checked_file_key(path: Path, key: str) -> str:
    """Return a key unchanged. Raises `InvalidFile` if the key is not a valid session key."""
    try:
        return check_key(key)
    except InvalidKey as error:
        raise InvalidFile(path, f"{error}: change it in the file") from error
