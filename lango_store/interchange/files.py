"""Files of other systems: written whole or not at all, and never over a file that says something else."""

from __future__ import annotations

import filecmp
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lango_store.errors import InvalidFile


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read; `InvalidFile` if it cannot be."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InvalidFile(path, f"cannot be read ({error.strerror}): see that it is there and may be read") from error


def state(path: Path) -> object:
    """Give what changes when a file is written to or replaced; `InvalidFile` if it cannot be looked at."""
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidFile(path, f"cannot be read ({error.strerror}): see that it is there") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Write a file under another name, and give it its name when it is on disk.

    A file that is there with the same bytes stays; with other bytes it is an error, and stays too.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".lango-", suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            yield file  # type: ignore[misc]
            file.flush()
            os.fsync(file.fileno())
        _place(temporary, path)
    except OSError as error:
        raise InvalidFile(path, f"cannot be written ({error.strerror}): see the folder, its rights and room") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _place(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename it never replaces a file
    except FileExistsError:
        if not filecmp.cmp(temporary, path, shallow=False):
            raise InvalidFile(path, "is there with other content: move it away, or give another folder") from None
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
