"""What a person types to find messages, read so that every text means something; and where words stand in a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_LONGEST: Final = 2_000
_MOST: Final = 64
_LONGEST_WORD: Final = 200
_SNIPPET: Final = 200
_BEFORE: Final = 60
_MARKED: Final = 1_000_000  # characters, from the first place that is marked

_TERM: Final = re.compile(r'(?P<without>-?)(?:"(?P<phrase>[^"]*)"?(?P<begins>\*?)|(?P<word>[^\s"]+))')
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Term:
    """Words that stand one after the other, the last one perhaps only begun."""

    words: str
    prefix: bool = False


@dataclass(frozen=True)
class Terms:
    """What is looked for: messages that hold all of `wanted` and none of `unwanted`."""

    wanted: Sequence[Term]
    unwanted: Sequence[Term]


def terms(typed: str) -> Terms:
    """Read what a person typed: words, "a phrase", -word and prefix*; of a very long text the beginning.

    What holds no letter and no digit is left out. An unclosed quote ends where the text ends.
    """
    if not isinstance(typed, str):
        raise TypeError(f"words is {type(typed).__name__}: give a text")
    wanted: list[Term] = []
    unwanted: list[Term] = []
    for found in _TERM.finditer(_UNSTORABLE.sub(" ", typed)[:_LONGEST]):
        text = found["phrase"] if found["word"] is None else found["word"]
        words = " ".join(word[:_LONGEST_WORD] for word in text.split())
        if not any(letter.isalnum() for letter in words):
            continue
        prefix = bool(found["begins"]) or (found["word"] is not None and words.endswith("*"))
        (unwanted if found["without"] else wanted).append(Term(words.rstrip("*") if prefix else words, prefix))
        if len(wanted) + len(unwanted) == _MOST:
            break
    return Terms(wanted, unwanted)


def marked_literally(text: str, terms: Terms, marks: tuple[str, str], *, within_words: bool = False) -> str:
    """Mark the wanted words of a text as they were typed, in upper or lower case.

    For a text so long that the database, which knows other forms of a word, takes too long.
    """
    one_of = "|".join(each for term in terms.wanted if (each := _pattern(term, within_words=within_words)))
    done: list[str] = []
    upto = 0
    end = len(text)
    for found in re.finditer(one_of, text, re.IGNORECASE) if one_of else ():
        if not done:
            end = found.start() + _MARKED
        if found.start() > end:
            break
        done += (text[upto : found.start()], marks[0], found[0], marks[1])
        upto = found.end()
    return "".join([*done, text[upto:]])


def _pattern(term: Term, *, within_words: bool) -> str:
    if within_words:
        return re.escape(term.words)
    words = r"[\W_]+".join(map(re.escape, re.findall(r"[^\W_]+", term.words)))
    end = r"[^\W_]*" if term.prefix else r"(?![^\W_])"
    return rf"(?<![^\W_]){words}{end}"


@dataclass(frozen=True)
class Snippet:
    """A part of a text, and from where to where the words that were found stand in it."""

    text: str
    places: list[tuple[int, int]]


def snippet(text: str, marked: str, start: str, stop: str) -> Snippet:
    """Cut the part of a text that holds the most places; they are marked in a second one, of the same length."""
    length, places = _unmarked(marked, start, stop)
    if length != len(text):  # nothing would be where it is said to be
        places = []
    if len(text) <= _SNIPPET:
        return Snippet(text, places)
    first = max(0, _densest(places) - _BEFORE)
    if first and (space := re.search(r"\s", text[first : first + _BEFORE])):
        first += space.end()
    last = min(len(text), first + _SNIPPET)
    if last < len(text) and (space := re.search(r"\s\S*$", text[first:last])) and space.start() > _SNIPPET // 2:
        last = first + space.start()
    inside = [(max(at, first) - first, min(end, last) - first) for at, end in places if at < last and end > first]
    return Snippet(text[first:last], inside)


def _densest(places: Sequence[tuple[int, int]]) -> int:
    """Return where the first of those places begins of which the most fit beside each other; 0 without any."""
    densest = most = behind = 0
    for number, (at, _) in enumerate(places):
        while behind < len(places) and places[behind][1] <= at + _SNIPPET - _BEFORE:
            behind += 1
        if behind - number > most:
            densest, most = at, behind - number
    return densest


def _unmarked(marked: str, start: str, stop: str) -> tuple[int, list[tuple[int, int]]]:
    """Return how long a text is without its marks, and from where to where it was marked."""
    length = 0
    places: list[tuple[int, int]] = []
    for number, part in enumerate(marked.split(start)):
        inside, mark, after = part.partition(stop)
        if mark and number:
            places.append((length, length + len(inside)))
        length += len(inside) + len(after)
    return length, places
