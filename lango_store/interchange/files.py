"""Files of other systems: written whole or not at all, and never over a file that says something else."""

import filecmp
import gzip
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from lango_store.errors import InvalidFile

_BEGINNING, _END = ".lango-", ".tmp"

PACKED: Final = ".gz"
"""The suffix of a file that is packed with gzip."""


def unfinished(path: Path) -> bool:
    """Return whether a file is the rest of an export that was killed, by its name."""
    return path.name.startswith(_BEGINNING) and path.name.endswith(_END)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read, one whose name ends with `.gz` unpacked; `InvalidFile` if it cannot be."""
    try:
        with gzip.open(path) if path.suffix == PACKED else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidFile(path, f"cannot be unpacked ({error}): it is damaged or cut off, take another copy") from error
    except OSError as error:
        raise InvalidFile(path, f"cannot be read ({error.strerror}): check that it is there and may be read") from error


LONGEST_LINE: Final = 256 << 20
"""The most bytes that a line may have, or a file in a format without lines."""


def lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers, from 1, and the lines of a file, with their ends; `InvalidFile` if a line is too long."""
    number = 0
    waiting: list[tuple[int, bytes]] = []  # so that the reader of a line is the only one to hold it
    while line := file.readline(LONGEST_LINE + 2):
        number += 1
        if len(line.removesuffix(b"\n")) > LONGEST_LINE:
            raise InvalidFile(path, f"line {number} {too_long()}")
        waiting.append((number, line))
        del line
        yield waiting.pop()


def too_long() -> str:
    """Return what is wrong with a line or a file that is longer than `LONGEST_LINE`."""
    return f"has more than {LONGEST_LINE:,} bytes: no agent wrote it, take another copy"


def state(path: Path) -> object:
    """Return what changes when a file is written to or replaced; `InvalidFile` if it cannot be looked at."""
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidFile(path, f"cannot be read ({error.strerror}): check that it is there") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def atomic_writer(path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
    """Write a file under another name, and give it its name when it is on disk; packed if that ends with `.gz`.

    Only its owner may read it. A file that is there with the same bytes stays; with other bytes it is `InvalidFile` and
    stays too, unless it is to be replaced.
    """
    temporary = path.with_name(f"{_BEGINNING}{secrets.token_hex(8)}{_END}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if path.suffix == PACKED:  # without name and time, so that the same content is the same bytes
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
                    _name(temporary, path)
            except FileExistsError:
                if not filecmp.cmp(temporary, path, shallow=False):
                    raise InvalidFile(
                        path, "exists with other content: replace it, move it away, or give another name"
                    ) from None
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidFile(
            path, f"cannot be written ({error.strerror}): check the folder, its permissions and its free space"
        ) from error


def _name(temporary: Path, path: Path) -> None:
    """Give a file its name unless another has it: of two at once one gets `FileExistsError`."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: an empty file of that name is ours to replace
        path.touch(exist_ok=False)
        temporary.replace(path)
