"""Reading of a JSON file with a large array, by itself or in an object: its items are read one by one."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from lango_store.interchange import files
from lango_store.interchange.fidelity import LEVELS, STRICT, NotJson, check_levels, json_errors

_BYTES: Final = 1 << 16
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_decode: Final = json.JSONDecoder(**STRICT).raw_decode


def read_members(file: BinaryIO, array: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each member of the object in a file.

    If the member `array` is an array, its name and each item are yielded instead, and [] before the first item. Raises
    ValueError if the file is not a JSON object, has a name twice, or has a value that cannot be stored.
    """
    text, names = _Text(file), set()
    if text.next() != "{":
        raise ValueError(f"it is {type(text.value()).__name__}")
    text.take("{")
    end = text.take("}") if text.next() == "}" else ""
    while end != "}":
        name = text.value()
        if not isinstance(name, str):
            raise ValueError("it has a name that is not a text")
        if name in names:
            raise ValueError(f"it has the name {name!r} twice")
        names.add(name)
        text.take(":")
        if name == array and text.next() == "[":
            yield name, []
            yield from ((name, item) for item in _items(text))
        else:
            yield name, text.value()
        end = text.take(",}")
    if text.next():
        raise NotJson("is not JSON (Extra data after the object)")


def read_items(file: BinaryIO, levels: int = LEVELS) -> Iterator[Any]:
    """Yield the items of the array in a file, or the value if it is not an array.

    Raises ValueError if the file is not JSON, or has a value that cannot be stored or has more levels.
    """
    text = _Text(file, levels)
    yield from _items(text) if text.next() == "[" else (text.value(),)
    if text.next():
        raise NotJson("is not JSON (Extra data after the value)")


def _items(text: "_Text") -> Iterator[Any]:
    text.take("[")
    end = text.take("]") if text.next() == "]" else ""
    while end != "]":
        yield text.value()
        end = text.take(",]")


class _Text:
    """The text of a file, of which only the current value is in memory."""

    def __init__(self, file: BinaryIO, levels: int = LEVELS) -> None:
        self._file, self._levels = file, levels
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0

    def _read(self) -> bool:
        """Read as much as is waiting, so that a long value is not decoded too often; return False at the end."""
        waiting = self._text[self._position :]
        if len(waiting) > files.LONGEST_LINE:
            raise ValueError(files.too_long())
        read = self._file.read(max(_BYTES, len(waiting)))
        self._text, self._position = waiting + self._decoder.decode(read, final=not read), 0
        return bool(read)

    def next(self) -> str:
        """Return the next character that is not a space, without taking it; "" at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read():
                return ""

    def take(self, expected: str) -> str:
        """Take and return the next character, which must be one of the expected ones."""
        character = self.next()
        if not character or character not in expected:
            raise NotJson(f"is not JSON ({' or '.join(expected)} is missing before {character or 'its end'})")
        self._position += 1
        return character

    def value(self) -> Any:
        """Take and return the next value."""
        self.next()
        while True:
            with json_errors(self._levels):
                try:
                    value, end = _decode(self._text, self._position)
                except json.JSONDecodeError:  # perhaps because the value continues in the file
                    if self._read():
                        continue
                    raise
            if end < len(self._text) or not self._read():  # the digits of a number may continue
                break
        check_levels(value, self._text, self._position, end, self._levels)
        self._position = end
        return value
