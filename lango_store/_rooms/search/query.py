"""Full-text search in Python: parse queries, extract the searchable text of messages, cut snippets.

Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without spaces between words. The index stores such a text
as overlapping pairs of characters, and a query for a word becomes the phrase of its pairs.
"""

import json
import re
import unicodedata
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.content import Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking, read, shown

_MAX_QUERY: Final = 2_000
_MAX_TERMS: Final = 64
_MAX_WORD: Final = 200
_MAX_INDEXED: Final = 100_000  # characters of a message: at most 800 kB as a tsvector, whose limit is 1 MB
_MAX_SPLIT: Final = 150_000  # of the same text in pairs: at most 900 kB as a tsvector
_SNIPPET_LENGTH: Final = 200
_CONTEXT_BEFORE: Final = 60

_TERM: Final = re.compile(r'(?P<without>-?)(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_WORD: Final = re.compile(r"[^\W_]+")

_HAN: Final = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_OTHER_UNSPACED: Final = (
    *((0x0E01, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai and Lao, Burmese, Khmer
    *((0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),  # Japanese
)


def _characters(kind: str) -> str:
    """Return the letters (L) or the marks (M) of the scripts in `_OTHER_UNSPACED`."""
    each = (chr(code) for first, last in _OTHER_UNSPACED for code in range(first, last + 1))
    return "".join(letter for letter in each if unicodedata.category(letter)[0] == kind)


# Marks, such as the tone marks of Thai, are ignored: databases disagree whether they belong to a word.
_CHARACTER: Final = re.compile(f"[{_HAN}{_characters('L')}][{_characters('M')}]*")
_UNSPACED_TEXT: Final = re.compile(f"(?:{_CHARACTER.pattern})+")

Places = list[tuple[int, int]]


@dataclass(frozen=True)
class Term:
    """Consecutive words. With `prefix`, the last word is only the beginning of a word."""

    words: str
    prefix: bool = False


@dataclass(frozen=True)
class SearchQuery:
    """A parsed query. A message matches if it contains all of `wanted` and none of `unwanted`."""

    wanted: Sequence[Term]
    unwanted: Sequence[Term]


def parse_query(query: str) -> SearchQuery:
    """Parse a query of words, "a phrase", -word and prefix*.

    Only the first 2,000 characters and 64 terms of a query are used. A term without a letter or digit is ignored. A
    quote that is not closed ends at the end of the query.
    """
    if not isinstance(query, str):
        raise TypeError(f"words is {type(query).__name__}: give a text")
    wanted: list[Term] = []
    unwanted: list[Term] = []
    for match in _TERM.finditer(_storable(query)[:_MAX_QUERY]):
        words = " ".join(word[:_MAX_WORD] for word in (match["word"] or match["phrase"]).split())
        if not any(letter.isalnum() for letter in words):
            continue
        prefix = match["word"] is not None and words.endswith("*")
        words = " ".join(in_pairs(words.rstrip("*") if prefix else words).split())
        # The index has a single character only as a part of pairs.
        prefix = prefix or _CHARACTER.fullmatch(words.rpartition(" ")[2]) is not None
        (unwanted if match["without"] else wanted).append(Term(words, prefix))
        if len(wanted) + len(unwanted) == _MAX_TERMS:
            break
    return SearchQuery(wanted, unwanted)


def searchable(
    role: str,
    name: str | None,
    tool_call_id: str | None,
    text: str | None,
    content: str | None,
    tool_calls: str | None,
    extra: str | None = None,
) -> tuple[str, str]:
    """Return the searchable texts of a stored message: its own texts, and the names and outputs of its tools."""
    is_result = tool_call_id is not None or role in ("tool", "function")
    value, calls, rest = _parsed(content) if text is None else text, _parsed(tool_calls), _parsed(extra)
    texts: list[Any] = []
    tools: list[Any] = [name] if is_result else []
    if not calls and not rest and _is_plain(value, is_result):
        (tools if is_result else texts).extend(_strings(value))
    else:
        message = Message.model_construct(
            role=MessageRole.TOOL if is_result else MessageRole.ASSISTANT,
            content=value,
            name=name,
            tool_call_id=tool_call_id,
            tool_calls=[_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
            extra=rest if isinstance(rest, dict) else {},
        )
        for part in shown(message):
            if isinstance(part, Native):
                part = part.shown
            match part:
                case Call():
                    tools.append(part.name)
                case Result():
                    tools += [] if part.name in tools else [part.name]
                    tools += _texts(read(part.content, is_data=True), None)
                case _:
                    (tools if is_result else texts).extend(_texts([part], None if is_result else "text"))
    first, second = ("\n".join(each for each in part if isinstance(each, str)) for part in (texts, tools))
    return _storable(first[:_MAX_INDEXED]), _storable(second[: max(0, _MAX_INDEXED - len(first))])


def _is_plain(content: Any, is_result: bool) -> bool:
    """Return True for a text and for the data of a tool, which have no parts: most messages."""
    return isinstance(content, str) or (is_result and isinstance(content, dict) and "content" not in content)


def _call(stored: dict[str, Any]) -> ToolCall:
    fields: dict[str, Any] = {name: str(stored.get(name) or "") for name in ("id", "name")}
    return ToolCall.model_construct(None, **fields, **({"output": stored["output"]} if "output" in stored else {}))


def _texts(parts: Iterable[Part], only: str | None) -> Iterator[str | None]:
    """Yield the texts of parts, and the strings of blocks of an unknown kind; with `only`, just those of this name."""
    for part in parts:
        match part:
            case Text() | Refusal() | Thinking():
                yield part.text
            case Media(name=name) | Source(title=name):
                yield name
            case Native():
                yield from _strings(part.block, "text" if part.form else only)


def indexed(content: str, tools: str) -> tuple[str, str]:
    """Return the searchable texts of a message as the index stores them, with pairs of characters."""
    first = in_pairs(content)[:_MAX_SPLIT]
    return first, in_pairs(tools)[: _MAX_SPLIT - len(first)]


def in_pairs(text: str) -> str:
    """Replace text without spaces between words by its overlapping pairs of characters, separated by spaces."""
    return text if text.isascii() else _UNSPACED_TEXT.sub(lambda match: f" {' '.join(_pairs(match[0]))} ", text)


def _pairs(text: str) -> list[str]:
    letters = [each[0] for each in _CHARACTER.findall(text)]
    return [one + two for one, two in pairwise(letters)] or letters


def _storable(text: str) -> str:
    return _UNSTORABLE.sub(" ", text)


def _parsed(stored: Any) -> Any:
    try:
        return None if stored is None else json.loads(stored)
    except (ValueError, TypeError, RecursionError):  # a damaged row has no searchable text
        return None


def _strings(value: Any, only: str | None = None) -> Iterator[str]:
    """Yield the strings in a JSON value in their order; with `only`, just the values of keys with this name."""
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


def finder(query: SearchQuery) -> Callable[[str], Places]:
    """Return a function that finds the wanted words in a text, ignoring case and accents."""
    whole: set[str] = set()
    prefixes: list[str] = []
    for term in query.wanted:
        words = [_folded(word) for word in _WORD.findall(term.words)]
        if term.prefix and words:
            prefixes.append(words.pop())
        whole.update(words)

    has_pairs = any(map(_CHARACTER.search, (*whole, *prefixes)))

    @cache  # a long text repeats its words and pairs
    def is_wanted(word: str) -> bool:
        folded = _folded(word)
        return folded in whole or folded.startswith(tuple(prefixes))

    def places(text: str) -> Places:
        words = [match.span() for match in _WORD.finditer(_without_unspaced(text)) if is_wanted(match[0])]
        return sorted(words + _places_of_pairs(text, is_wanted)) if has_pairs else words

    return places


def _without_unspaced(text: str) -> str:
    """Replace text without spaces between words by as many spaces."""
    return text if text.isascii() else _UNSPACED_TEXT.sub(lambda match: " " * len(match[0]), text)


def _places_of_pairs(text: str, is_wanted: Callable[[str], bool]) -> Places:
    """Return the positions of wanted pairs of characters and single characters; pairs that overlap become one."""
    places: Places = []
    for run in _UNSPACED_TEXT.finditer(text):
        letters = [*_CHARACTER.finditer(text, *run.span())]
        for number, letter in enumerate(letters):
            start, end = letter.span()
            if not is_wanted(letter[0][0]):
                following = letters[number + 1] if number + 1 < len(letters) else None
                if following is None or not is_wanted(letter[0][0] + following[0][0]):
                    continue
                end = following.end()
            if places and start < places[-1][1]:
                places[-1] = (places[-1][0], max(end, places[-1][1]))
            else:
                places.append((start, end))
    return places


def matcher(query: SearchQuery) -> Callable[[Sequence[str]], bool]:
    """Return a function that tells whether the texts of a message match a query, ignoring case and accents."""

    def needle(term: Term) -> str:
        return f"{_spaced(term.words).rstrip()}{'' if term.prefix else ' '}"

    wanted, unwanted = list(map(needle, query.wanted)), list(map(needle, query.unwanted))

    def matches(texts: Sequence[str]) -> bool:
        spaced = [_spaced(text) for text in texts]
        matching = (any(each in text for text in spaced) for each in wanted)
        return all(matching) and not any(each in text for text in spaced for each in unwanted)

    return matches


def _spaced(text: str) -> str:
    return f" {' '.join(_WORD.findall(_folded(in_pairs(text))))} "


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()
    return "".join(each for each in unicodedata.normalize("NFD", word.lower()) if not unicodedata.combining(each))


def snippet(text: str, places: Places) -> tuple[str, Places]:
    """Return the part of a text with the most matches, and the positions of the matches in this part."""
    if len(text) <= _SNIPPET_LENGTH:
        return text, places
    first = max(0, _densest(places) - _CONTEXT_BEFORE)
    if first and (space := re.search(r"\s", text[first : first + _CONTEXT_BEFORE])):
        first += space.end()
    last = min(len(text), first + _SNIPPET_LENGTH)
    if last < len(text) and (space := re.search(r"\s\S*$", text[first:last])) and space.start() > _SNIPPET_LENGTH // 2:
        last = first + space.start()
    inside = [(max(at, first) - first, min(end, last) - first) for at, end in places if at < last and end > first]
    return text[first:last], inside


def _densest(places: Places) -> int:
    """Return the start of the match that is followed by the most other matches within a snippet; 0 without matches."""
    ends = [end for _, end in places]
    following = [
        bisect(ends, begin + _SNIPPET_LENGTH - _CONTEXT_BEFORE) - number for number, (begin, _) in enumerate(places)
    ]
    return places[following.index(max(following))][0] if places else 0
