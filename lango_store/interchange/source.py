"""Files of other systems, which must not change while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.fidelity import check_key
from lango_store.interchange.files import LONGEST_LINE, lines_of, reading, state

MAX_NAME: Final = 255
"""The bytes that file systems give to a file's name."""


class Source:
    """A file and the state it was found in."""

    def __init__(self, path: Path, longest_line: int = LONGEST_LINE) -> None:
        self.path = path
        self.longest_line = longest_line
        self._found = state(path)

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """Open the file to read all of it; `InvalidFile` if it has changed by the end."""
        with reading(self.path) as file:
            yield file
        self.check()

    def check(self) -> None:
        """Raise `InvalidFile` if the file has changed since it was found."""
        if state(self.path) != self._found:
            raise InvalidFile(self.path, "was written to while it was read: stop the writer, then import again")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, with their numbers, from 1."""
        with self.reading() as file:
            for number, line in lines_of(file, self.path, self.longest_line):
                if not line.isspace():
                    yield number, line


def first_bytes(path: Path, count: int) -> bytes:
    """Read the first bytes of a file; nothing of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def checked_file_key(path: Path, key: str) -> str:
    """Return the session key; `InvalidFile` if no session can have it."""
    try:
        return check_key(key)
    except InvalidKey as error:
        raise InvalidFile(path, f"{error}: change it in the file") from error
