"""The checker: decides from the logs whether a history has the properties."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.proof.adapter import LEASE
from benchmarks.proof.worker import Record


class Operation(NamedTuple):
    """An operation with its first and last record; `end` is None if the process was killed."""

    call: Record
    end: Record | None

    @property
    def is_ok(self) -> bool:
        """Return True if the store has acknowledged the operation."""
        return self.end is not None and self.end.state == "ok"

    def began_after(self, other: "Operation") -> bool:
        """Return True if the other operation was acknowledged before this one began."""
        return other.end is not None and other.is_ok and other.end.time < self.call.time


class History:
    """The operations of a trial, by name."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        calls = [each for each in records if each.state == "call"]
        ends = {each.op: each for each in records if each.state in ("ok", "error")}
        self.operations = [Operation(call, ends.get(call.op)) for call in calls]

    def of(self, *names: str) -> list[Operation]:
        return [each for each in self.operations if each.call.do in names]

    def reads(self) -> list[tuple[Operation, list[str]]]:
        return [(each, each.end.data) for each in self.of("read") if each.end and each.is_ok]

    @property
    def final(self) -> list[str]:
        return self.reads()[-1][1]


def kept(history: History) -> Iterator[str]:
    """Check that each acknowledged message is in each later read, and that each read message was sent."""
    sent = {text for each in history.of("append") for text in each.call.data[0]}
    sent |= {text for each in history.records if each.state in ("model", "tool") for text in each.data}
    sent |= {each.call.data[0] for each in history.of("turn")}
    for read, texts in history.reads():
        for append in history.of("append"):
            for text in append.call.data[0]:
                if read.began_after(append) and text not in texts:
                    yield f"{text} was acknowledged, and is missing"
        for text in texts:
            if text not in sent:
                yield f"{text!r} was read, and was never sent"


def once(history: History) -> Iterator[str]:
    """Check that no message is stored twice."""
    for _, texts in history.reads():
        for text in texts:
            if texts.count(text) > 1:
                yield f"{text} is stored {texts.count(text)} times"


def ordered(history: History) -> Iterator[str]:
    """Check that each read is the beginning of the final order, and that acknowledged appends keep their order."""
    final = history.final
    for _, texts in history.reads():
        if texts != final[: len(texts)]:
            yield f"a reader has seen {_shown(texts)}, and the final order is {_shown(final)}"
    firsts: dict[str, Operation] = {}
    for append in history.of("append"):
        for text in append.call.data[0]:
            firsts.setdefault(text, append)
    for append in history.of("append"):
        for text in append.call.data[0]:
            for later, first in firsts.items():
                if first.began_after(append) and {text, later} <= {*final} and final.index(later) < final.index(text):
                    yield f"{text} was acknowledged before {later} was sent, and follows it"


def whole(history: History) -> Iterator[str]:
    """Check that each read has all messages of a batch, or none, and in their order."""
    for append in history.of("append"):
        batch = append.call.data[0]
        for _, texts in history.reads():
            if (stored := [text for text in texts if text in batch]) and [*dict.fromkeys(stored)] != batch:
                yield f"of the batch {_shown(batch)}, a reader has seen {_shown(stored)}"


def _paid_once(kind: str) -> Callable[[History], Iterator[str]]:
    def paid(history: History) -> Iterator[str]:
        """Check that a second call follows only if the first was interrupted before its result was stored."""
        calls = [each for each in history.records if each.state == kind]
        for first, second in pairwise(calls):
            own = [each for each in history.records if each.op == first.op and each.time < second.time]
            states = {each.state for each in own if each.time > first.time}
            other = [each for each in history.records if each.op == second.op and each.time <= second.time]
            if _was_silent(other):  # it cannot know that another process has its turn
                continue
            if f"{kind} stored" in states or ("ok" in states and first.do == "turn"):
                yield f"the {kind} was called for {second.data[0]} again after its result was stored"
            elif not states & {"killed", "error"} and not _was_silent([*own, second]):
                yield f"the {kind} was called for {second.data[0]} twice at the same time"

    return paid


def _was_silent(records: Sequence[Record]) -> bool:
    """Return True if nothing was heard of a process for a lease."""
    return any(later.time - earlier.time > LEASE * 0.9e9 for earlier, later in pairwise(records))


def finished(history: History) -> Iterator[str]:
    """Check that each turn whose model or tool was called has one answer in the end."""
    final = history.final
    for request in {each.data[0] for each in history.records if each.state in ("model", "tool")}:
        answers = [text for text in final if text.startswith("model of ") and text.endswith(f" to {request}")]
        if len(answers) != 1:
            yield f"turn {request} was begun, and has {len(answers)} answers in the end"


def answered(history: History) -> Iterator[str]:
    """Check that one answer was accepted."""
    if len(accepted := [each.call.data[0] for each in history.of("answer") if each.is_ok]) > 1:
        yield f"the answers {_shown(accepted)} were both accepted"


def followed(history: History) -> Iterator[str]:
    """Check that a follower has seen the final log, once and in order."""
    seen = [text for each in history.of("follow") if each.end and each.is_ok for text in each.end.data[0]]
    if seen != history.final:
        yield f"the follower has seen {_shown(seen)}, and the final order is {_shown(history.final)}"


def _shown(texts: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, texts))}]"


PROPERTIES: dict[str, tuple[str, Callable[[History], Iterator[str]]]] = {
    "acknowledged is kept": ("", kept),
    "an id is stored once": ("ids", once),
    "one order": ("", ordered),
    "a turn is paid once": ("request", _paid_once("model")),
    "an interrupted turn is finished": ("turn", finished),
    "a batch is whole": ("batch", whole),
    "a tool call runs once": ("tool", _paid_once("tool")),
    "an answer is used once": ("answer", answered),
    "a follower sees all once": ("follow", followed),
}
"""Each property, what a store must support for it, and its check."""


def check(records: Sequence[Record], can: frozenset[str]) -> dict[str, str | None]:
    """Return the first violation of each property that the store supports, or None if there is none."""
    history = History(records)
    found: dict[str, str | None] = {}
    for name, (needed, find) in PROPERTIES.items():
        if not needed or needed in can:
            found[name] = next(find(history), None)
    return found
