"""A file that is read twice, once to examine it and once to hand out its messages, and must not change in between."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from lango_store import columns
from lango_store.columns import checked_key, encode_id, encode_text
from lango_store.errors import InvalidFile, InvalidKey, InvalidMessage
from lango_store.interchange.files import reading, state
from lango_store.model import MessageRole

MAX_NAME: Final = 255
"""The bytes that file systems give to a file's name."""


class Source:
    """A file and the state it was found in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found = state(path)

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """Open the file to read all of it; `InvalidFile` if it changed since it was found."""
        with reading(self.path) as file:
            yield file
        self.check()

    def check(self) -> None:
        """Raise `InvalidFile` if somebody wrote to the file since it was found."""
        if state(self.path) != self._found:
            raise InvalidFile(self.path, "was written to while it was read: stop what writes it, then import again")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Give the lines that are not blank, with their numbers, from 1."""
        with self.reading() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line


MAX_LEVELS: Final = columns.MAX_LEVELS + 10
"""The levels of a line or a member: those of a field, and what is around it."""

TOO_DEEP: Final = "is nested too deeply"


def first_bytes(path: Path, count: int) -> bytes:
    """Read how a file begins; nothing of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


JSON_LIMITS: Final[dict[str, Any]] = {"parse_constant": _no_number, "parse_float": _finite}
"""What a JSON decoder needs to refuse what no JSON text may say (NaN) and what we cannot keep (1e999)."""


def strict_json(text: str) -> Any:
    """Read JSON; ValueError for what is none or cannot be kept."""
    try:
        value = json.loads(text, **JSON_LIMITS)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_levels(value, text, 0, len(text))
    return value


def check_levels(value: Any, text: str, start: int, end: int) -> None:
    """Raise ValueError if a value, read from this part of a text, has more levels than we can write again."""
    if text.count("[", start, end) + text.count("{", start, end) <= MAX_LEVELS:
        return
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [inner for each in level for inner in _inside(each) if isinstance(inner, (dict, list))]
    if level:
        raise ValueError(TOO_DEEP)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def checked_file_key(path: Path, key: str) -> str:
    """Give a session key back; `InvalidFile` if no session can have it."""
    try:
        return checked_key(key)
    except InvalidKey as error:
        raise InvalidFile(path, f"{error}: change it in the file") from error


def kept_text(value: Any) -> str | None:
    """Give a text that a column can keep, None for any other value."""
    try:
        return encode_text(value, "text") or None if isinstance(value, str) else None
    except InvalidMessage:
        return None


def known_role(word: Any) -> MessageRole | None:
    """Give the role that a word stands for, None if it is none of ours."""
    return next((role for role in MessageRole if role.value == word), None)


def kept_id(value: Any) -> str | None:
    """Give an id that an index can keep, None for any other value."""
    try:
        return encode_id(value) if isinstance(value, str) else None
    except InvalidMessage:
        return None
