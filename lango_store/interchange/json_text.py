"""JSON of other systems: read whole, or refused with the reason, and large objects read member by member."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final, TextIO

from lango_store._rows.encoding import MAX_LEVELS, reject_constant
from lango_store._values.json_faults import levels_within
from lango_store.backup.files import LONGEST_LINE, too_long

LEVELS: Final = MAX_LEVELS + 10
"""The levels of a line or a member: those of a field, and what is around it."""


class NotJson(ValueError):
    """A text is not JSON, perhaps because it was cut off."""


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


_STRICT: Final[dict[str, Any]] = {"parse_constant": reject_constant, "parse_float": _finite}
"""What a JSON decoder needs to refuse what no JSON text may say (NaN) and what we cannot store (1e999)."""


def read_json(text: str, *, levels: int = LEVELS, strict: bool = True) -> Any:
    """Return the value of a JSON text; `NotJson` or another ValueError says why it cannot be read or stored.

    Unless `strict`, NaN and Infinity are read, as Python writes them.
    """
    try:
        value = json.loads(text, **(_STRICT if strict else {}))
    except json.JSONDecodeError as error:
        raise NotJson(f"is not JSON ({error})") from None
    except ValueError as error:
        raise ValueError(f"cannot be read ({error})") from None
    except RecursionError:
        raise _too_deep(levels) from None
    _check_levels(value, levels, text, 0, len(text))
    return value


def _check_levels(value: Any, levels: int, text: str, start: int, end: int) -> None:
    """Raise ValueError if a value, read from this part of a text, has more levels than that."""
    if text.count("[", start, end) + text.count("{", start, end) > levels and not levels_within(value, levels):
        raise _too_deep(levels)


def _too_deep(levels: int) -> ValueError:
    return ValueError(f"is nested more than {levels} levels deep")


_DECODER: Final = json.JSONDecoder(**_STRICT)
_CHUNK: Final = 64 * 1024


class JsonMembers:
    """The JSON object in a text file; after each of `names`, `value` or `elements` reads what stands there.

    ValueError where the text is not a JSON object, or says a name twice.
    """

    def __init__(self, file: TextIO, longest: int = LONGEST_LINE) -> None:
        self._file = file
        self._longest = longest
        self._text = ""
        self._at = 0
        self._ended = False

    def names(self) -> Iterator[str]:
        """Yield the object's names, in their order."""
        self._take("{")
        seen: set[str] = set()
        mark = self._next() if self._next() == "}" else ","
        while mark == ",":
            name = self.value()
            if not isinstance(name, str):
                raise ValueError(f"{type(name).__name__} stands where a name should")
            if name in seen:
                raise ValueError(f"the name {name!r} stands there twice")
            seen.add(name)
            self._take(":")
            yield name
            mark = self._take(",}")
        if not seen:
            self._take("}")
        if self._next():
            raise ValueError("the text goes on after the object")

    def elements(self) -> Iterator[Any]:
        """Yield the elements of a list."""
        self._take("[")
        if self._next() == "]":
            self._take("]")
            return
        yield self.value()
        while self._take(",]") == ",":
            yield self.value()

    def value(self) -> Any:
        """Return the next value, read whole."""
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise _too_deep(LEVELS) from None
            except ValueError:
                if self._ended:
                    raise
            else:
                if end < len(self._text) or self._ended:  # a number may go on in what was not read yet
                    _check_levels(value, LEVELS, self._text, self._at, end)
                    self._at = end
                    if end > _CHUNK:  # what was read may be large
                        self._text, self._at = self._text[end:], 0
                    return value
            self._more()

    def _next(self) -> str:
        """Look at the next character that is not white space, "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._more()

    def _take(self, marks: str) -> str:
        found = self._next()
        if not found or found not in marks:
            raise ValueError(f"{found or 'the end'!r} stands where {' or '.join(marks)} should")
        self._at += 1
        return found

    def _more(self) -> None:
        text, self._text = self._text[self._at :], ""
        if len(text) > self._longest:
            raise ValueError(f"a value {too_long(self._longest)}")
        # A part of what there is, so that a long value is not scanned too often, and what is read ahead not large.
        read = self._file.read(max(_CHUNK, len(text) // 16))
        text += read  # in place, as nothing else has it
        self._text, self._at, self._ended = text, 0, not read
