"""Reading of files with size limits, and atomic writing that by default overwrites no existing file."""

import filecmp
import gzip
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from lango_store.errors import InvalidFile

_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".lango-", ".tmp"

PACKED: Final = ".gz"
"""The suffix of files compressed with gzip."""


def unfinished(path: Path) -> bool:
    """Return True if the name of a file is that of a temporary file, left by an export that was killed."""
    return path.name.startswith(_TEMPORARY_PREFIX) and path.name.endswith(_TEMPORARY_SUFFIX)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; decompress it if its name ends with `.gz`.

    Raises `InvalidFile` if that fails, or if the compressed file expands to an unusual size.
    """
    try:
        with path.open("rb") as file:
            yield cast(BinaryIO, BufferedReader(_Unpacked(path, file))) if path.suffix == PACKED else file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidFile(
            path, f"cannot be decompressed ({error}): the file is damaged or incomplete, use another copy"
        ) from error
    except OSError as error:
        raise InvalidFile(path, f"cannot be read ({error.strerror}): check the path and the permissions") from error


UNPACKED: Final = 64 << 20
_RATIO: Final = 100
"""A compressed file may expand to `UNPACKED` bytes plus `_RATIO` times its size. Conversations expand 4 to 20 times."""


class _Unpacked(RawIOBase):
    """The content of a compressed file. A read raises `InvalidFile` as soon as the content is too large."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._unpacked.readinto(buffer)
        self._size += count
        if self._size > UNPACKED + _RATIO * self._file.tell():
            raise InvalidFile(
                self._path,
                f"expands to more than {_RATIO} times its size: "
                "if you trust it, decompress it with gunzip and import the result",
            )
        return count


LONGEST_LINE: Final = 256 << 20
"""The maximum size of a line in bytes, and of a value in a format without lines in characters."""


def lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line, including its end. Raises `InvalidFile` if a line is too long."""
    number = 0
    waiting: list[tuple[int, bytes]] = []  # keeps no reference to a yielded line, so that a large line is freed early
    while line := file.readline(LONGEST_LINE + 2):
        number += 1
        if len(line.removesuffix(b"\n")) > LONGEST_LINE:
            raise InvalidFile(path, f"line {number} {too_long()}")
        waiting.append((number, line))
        del line
        yield waiting.pop()


def too_long() -> str:
    """Return the error text for a line or a file that is longer than `LONGEST_LINE`."""
    return f"has more than {LONGEST_LINE:,} bytes: the file is damaged, use another copy"


def state(path: Path) -> object:
    """Return a value that differs after the file is written to or replaced."""
    try:
        status = path.stat()
    except OSError as error:
        raise InvalidFile(path, f"cannot be read ({error.strerror}): check the path") from error
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def atomic_writer(path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, and rename it when it is on disk. A `.gz` file is compressed.

    Only the owner may read the file. Without `replace`, an existing file is not changed, and `InvalidFile` is raised
    if its content differs.
    """
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if path.suffix == PACKED:  # without name and time: equal content gives equal bytes
                    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                        yield cast(BinaryIO, packed)
                else:
                    yield file
                file.flush()
                os.fsync(file.fileno())
            try:
                if replace:
                    temporary.replace(path)
                else:
                    _rename(temporary, path)
            except FileExistsError:
                if not filecmp.cmp(temporary, path, shallow=False):
                    raise InvalidFile(
                        path, "exists with different content: replace it, move it away, or give another name"
                    ) from None
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidFile(
            path, f"cannot be written ({error.strerror}): check the folder, its permissions and its free space"
        ) from error


def _rename(temporary: Path, path: Path) -> None:
    """Rename a file unless the name exists. Of two concurrent calls, one raises `FileExistsError`."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: reserve the name with an empty file, then replace that
        path.touch(exist_ok=False)
        temporary.replace(path)
