"""Full-text search in Python: parse a query, take the searchable text out of a message, cut a snippet."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

_MAX_QUERY: Final = 2_000
_MAX_TERMS: Final = 64
_MAX_WORD: Final = 200
_MAX_INDEXED: Final = 100_000  # characters of a message: as a tsvector, which holds 1 MB, they take at most 800 kB
_SNIPPET: Final = 200
_BEFORE: Final = 60

_TERM: Final = re.compile(r'(?P<without>-?)(?:"(?P<phrase>[^"]*)"?(?P<prefix>\*?)|(?P<word>[^\s"]+))')
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_WORD: Final = re.compile(r"[^\W_]+")

Places = list[tuple[int, int]]


@dataclass(frozen=True)
class Term:
    """Words that follow each other; with `prefix` the last one may be longer."""

    words: str
    prefix: bool = False


@dataclass(frozen=True)
class Terms:
    """A parsed query: messages that contain all of `wanted` and none of `unwanted`."""

    wanted: Sequence[Term]
    unwanted: Sequence[Term]


def terms(query: str) -> Terms:
    """Parse a query: words, "a phrase", -word and prefix*. Only the beginning of a very long query counts.

    A term without a letter or a digit is ignored. An unclosed quote ends with the query.
    """
    if not isinstance(query, str):
        raise TypeError(f"words is {type(query).__name__}: give a text")
    wanted: list[Term] = []
    unwanted: list[Term] = []
    for match in _TERM.finditer(_UNSTORABLE.sub(" ", query)[:_MAX_QUERY]):
        text = match["phrase"] if match["word"] is None else match["word"]
        words = " ".join(word[:_MAX_WORD] for word in text.split())
        if not any(letter.isalnum() for letter in words):
            continue
        prefix = bool(match["prefix"]) or (match["word"] is not None and words.endswith("*"))
        (unwanted if match["without"] else wanted).append(Term(words.rstrip("*") if prefix else words, prefix))
        if len(wanted) + len(unwanted) == _MAX_TERMS:
            break
    return Terms(wanted, unwanted)


def searchable(
    role: str, name: str | None, tool_call_id: str | None, text: str | None, content: str | None, tool_calls: str | None
) -> tuple[str, ...]:
    """Return the searchable texts of a stored message, the weightiest first.

    They are its text, the texts of its blocks, the names of its tools and their outputs.
    """
    value = _parsed(content)
    said: list[Any] = []
    blocks: list[Any] = []
    tools: list[Any] = []
    outputs: list[Any] = []
    if tool_call_id is not None or role in ("tool", "function"):
        tools.append(name)
        outputs += [text] if text is not None else _strings(value)
    elif text is not None or isinstance(value, str):
        said.append(value if text is None else text)
    else:
        blocks += _strings(value, "text")
    calls = _parsed(tool_calls)
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            tools.append(call.get("name"))
            outputs += _strings(call.get("output"))
    room, parts = _MAX_INDEXED, []
    for part in (said, blocks, tools, outputs):
        joined = "\n".join(each for each in part if isinstance(each, str))
        parts.append(_UNSTORABLE.sub(" ", joined[:room]))
        room -= len(parts[-1])
    return tuple(parts)


def _parsed(stored: Any) -> Any:
    try:
        return None if stored is None else json.loads(stored)
    except (ValueError, TypeError, RecursionError):  # a damaged row has no words
        return None


def _strings(value: Any, only: str | None = None) -> Iterator[str]:
    """Yield the strings in a JSON value, or only those under one key, in their order."""
    stack = [(None, value)]
    while stack:
        key, item = stack.pop()
        if isinstance(item, str) and only in (None, key):
            yield item
        elif isinstance(item, dict):
            stack += reversed(item.items())
        elif isinstance(item, list):
            stack += ((None, each) for each in reversed(item))


# Snippets


def finder(terms: Terms, *, inside_words: bool, inflected: frozenset[str]) -> Callable[[str], Places]:
    """Return a function that finds the wanted words in a text, without regard to case and accents."""
    if inside_words:
        pattern = re.compile("|".join(re.escape(term.words) for term in terms.wanted), re.IGNORECASE)
        return lambda text: [match.span() for match in pattern.finditer(text)]
    split = [([_folded(word) for word in _WORD.findall(term.words)], term.prefix) for term in terms.wanted]
    whole = {word for words, prefix in split for word in (words[:-1] if prefix else words)}
    begun = tuple(words[-1] for words, prefix in split if prefix and words)

    def is_wanted(word: str) -> bool:
        folded = _folded(word)
        return word in inflected or folded in whole or folded.startswith(begun)

    return lambda text: [match.span() for match in _WORD.finditer(text) if is_wanted(match[0])]


def distinct_words(texts: Sequence[str]) -> set[str]:
    """Return the words of some texts."""
    return {word for text in texts for word in _WORD.findall(text)}


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    return "".join(each for each in unicodedata.normalize("NFD", word.lower()) if not unicodedata.combining(each))


def snippet(text: str, places: Places) -> tuple[str, Places]:
    """Cut out the part of a text that contains the most places, and return it with its places."""
    if len(text) <= _SNIPPET:
        return text, places
    first = max(0, _densest(places) - _BEFORE)
    if first and (space := re.search(r"\s", text[first : first + _BEFORE])):
        first += space.end()
    last = min(len(text), first + _SNIPPET)
    if last < len(text) and (space := re.search(r"\s\S*$", text[first:last])) and space.start() > _SNIPPET // 2:
        last = first + space.start()
    inside = [(max(at, first) - first, min(end, last) - first) for at, end in places if at < last and end > first]
    return text[first:last], inside


def _densest(places: Places) -> int:
    """Return the beginning of the place that is followed by the most others within a snippet; 0 without places."""
    densest = most = behind = 0
    for number, (at, _) in enumerate(places):
        while behind < len(places) and places[behind][1] <= at + _SNIPPET - _BEFORE:
            behind += 1
        if behind - number > most:
            densest, most = at, behind - number
    return densest
