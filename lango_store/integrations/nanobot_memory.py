"""What a framework's session was when it was loaded or saved last: what changed since, here and by others."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lango_store.errors import Conflict

Line = dict[str, Any]


@dataclass(frozen=True)
class State:
    """What a session holds: its lines as digests, how many of them are consolidated, and the rest as text."""

    lines: list[bytes]
    consolidated: int
    rest: str

    @classmethod
    def of(cls, lines: Iterable[Line], consolidated: int, rest: Any) -> State:
        """Return the state of a session that holds this."""
        return cls([_digest(line) for line in lines], consolidated, json.dumps(rest))

    def same_log(self, other: State) -> bool:
        """Whether the lines are the same, and what counts them."""
        return self.lines == other.lines and self.consolidated == other.consolidated


def _digest(line: Line) -> bytes:
    return hashlib.blake2b(json.dumps(line).encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Known:
    """What the database had of a session: a state, the seq of each line, and which life of the session it was."""

    state: State
    seqs: list[int]
    last_seq: int
    incarnation: int | None
    metadata: dict[str, str]

    def still(self, incarnation: int, last_seq: int, state: State) -> bool:
        """Whether a state can be written: nobody else wrote messages, or it has none to write."""
        return self.incarnation == incarnation and (self.last_seq == last_seq or self.state.same_log(state))

    def same_lines(self, state: State) -> int:
        """Count the first lines that are still the same, up to where a stored message ends."""
        pairs = enumerate(zip(self.state.lines, state.lines, strict=False))
        same = next((place for place, (old, new) in pairs if old != new), min(len(self.seqs), len(state.lines)))
        while 0 < same < len(self.seqs) and self.seqs[same] == self.seqs[same - 1]:
            same -= 1
        return same

    def merged(self, key: str, ours: Line, theirs: Line) -> Line:
        """Return the metadata with the changes of both sides; `Conflict` if they changed one key to two values."""
        here, there = texts(ours), texts(theirs)
        if there == self.metadata:
            return ours
        merged: Line = {}
        for name in ours | theirs:
            changed = here.get(name) != self.metadata.get(name)
            if changed and there.get(name) not in (self.metadata.get(name), here.get(name)):
                reason = f"metadata {name!r} of session {key!r} was changed by somebody else too: load it again"
                raise Conflict(key, expected=self.last_seq, last_seq=self.last_seq, message=reason)
            source = ours if changed else theirs
            if name in source:
                merged[name] = source[name]
        return merged


NOTHING: Final = Known(State([], 0, ""), [], 0, None, {})
"""What there is of a session that is not in the database."""


def texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return each value as text, to compare it with later."""
    return {name: json.dumps(value) for name, value in metadata.items()}


class Memory:
    """What is known of sessions, as long as somebody holds them; being mutable, they cannot be keys of a dict."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], Known]] = {}

    def remember(self, session: object, known: Known) -> None:
        """Remember what is known of this very object."""
        place = id(session)
        self._found[place] = weakref.ref(session, lambda _: self._found.pop(place, None)), known

    def recall(self, session: object) -> Known | None:
        """Return what is known of this very object, None if it was neither loaded nor saved."""
        found = self._found.get(id(session))
        return found[1] if found is not None and found[0]() is session else None
