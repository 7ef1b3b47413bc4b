"""Reading of files of other systems, which must not change while they are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.fidelity import check_key
from lango_store.interchange.files import lines_of, reading, state

MAX_NAME: Final = 255
"""The maximum length of a file name, in bytes."""


@contextmanager
def reading_unchanged(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading. On close, raise `InvalidFile` if the file has changed since it was opened."""
    before = state(path)
    with reading(path) as file:
        yield file
    if state(path) != before:
        raise InvalidFile(path, "was changed while it was read: stop the writer, then import again")


def lines_in(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their line numbers from 1."""
    with reading_unchanged(path) as file:
        for number, line in lines_of(file, path):
            if not line.isspace():
                yield number, line


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
