"""Files of other systems: written whole or not at all, and never over a file that says something else."""

from __future__ import annotations

import filecmp
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lango_store.errors import InvalidFile

_BEGINNING, _END = ".lango-", ".tmp"


def unfinished(path: Path) -> bool:
    """Tell by a file's name whether it is what an export that was killed left behind."""
    return path.name.startswith(_BEGINNING) and path.name.endswith(_END)


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

    A file that is there with the same bytes stays; with other bytes it is `InvalidFile`, and stays too.
    """
    temporary = path.with_name(f"{_BEGINNING}{secrets.token_hex(8)}{_END}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            try:
                _name(temporary, path)
            except FileExistsError:
                if not filecmp.cmp(temporary, path, shallow=False):
                    raise InvalidFile(
                        path, "is there with other content: move it away, or give another folder"
                    ) from None
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidFile(path, f"cannot be written ({error.strerror}): see the folder, its rights and room") from error


def _name(temporary: Path, path: Path) -> None:
    """Give a file its name unless another has it: of two at once one gets `FileExistsError`."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: an empty file of that name is ours to replace
        path.touch(exist_ok=False)
        temporary.replace(path)
