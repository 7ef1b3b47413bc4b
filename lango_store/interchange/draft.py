"""Intermediate form of a session, `SessionDraft`: formats of other systems convert it from files or to files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from lango_store import Message

Item = TypeVar("Item")


@dataclass
class Part:
    """A turn, a compaction (its messages are the summary), or messages outside a turn.

    `first_seq` and `replaced_upto` are set on export: the position of the part in the log, and the last seq that a
    compaction replaces. On import, a compaction replaces everything before it.
    """

    messages: list[Message]
    kind: Literal["turn", "compaction"] | None = None
    id: str | None = None
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None
    created_at: datetime | None = None
    first_seq: int = 0
    replaced_upto: int | None = None


@dataclass(frozen=True)
class Branch:
    """Messages that replace the log after its first `kept` messages; what they replace is kept as an alternative."""

    kept: int
    messages: list[Message]


@dataclass(frozen=True)
class Skipped:
    """A line of a file that could not be read, or could not be stored unchanged.

    Attributes:
        line: The line number, from 1. In a format without lines, the number of the message or the id of the row.
        reason: The cause, and the value that was stored instead, if any.
    """

    line: int
    reason: str


class Reread(Generic[Item]):
    """Items that each iteration reads again, because they may not fit into memory."""

    def __init__(self, read: Callable[[], Iterator[Item]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[Item]:
        return self._read()


class FileParts:
    """The parts in a file, which each iteration reads again.

    Args:
        read: Reads the parts, and appends lines that could not be read, or could not be stored unchanged, to its list.
        skipped: The list that the first iteration passes to `read`. Later iterations would report the same lines.
    """

    def __init__(self, read: Callable[[list[Skipped]], Iterator[Part]], skipped: list[Skipped]) -> None:
        self._read = read
        self._skipped: list[Skipped] | None = skipped

    def __iter__(self) -> Iterator[Part]:
        skipped, self._skipped = self._skipped, None
        return self._read([] if skipped is None else skipped)


@dataclass
class SessionDraft:
    """A session and its messages.

    `parts` can be iterated several times. In a large session they are read from the file or the database each time.
    `log` yields the messages one by one; without it, they are taken from the parts.

    `fields` are keyword arguments of `Store.create`, except key, TTL and messages. `extra` holds data of the other
    system that has no column, under the system's name; it is stored as a value of the session. An export sets
    `summarized_upto`, the last seq that a compaction removed from the window, and `records`, the number of records,
    which `parts` leaves out. `suspensions` holds the states of the suspensions that have no answer. `branches` follow
    the parts in the order in which they were written; `log` is then what the last one left.

    An export sets `tree`, which reads all messages and records, also those of alternatives: each after the one that it
    follows, with the `seq` of that one, and the `seq` of the last one that is shown. Both are 0 if there is none.
    """

    key: str
    parts: Iterable[Part] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_consolidated: int = 0
    summarized_upto: int = 0
    forked_from: str | None = None
    records: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    suspensions: list[Any] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    log: Iterable[Message] | None = None
    tree: Callable[[], tuple[list[tuple[Message, int]], int]] = lambda: ([], 0)

    @property
    def messages(self) -> Iterable[Message]:
        """The messages of all parts, to be iterated once."""
        return (message for part in self.parts for message in part.messages) if self.log is None else self.log
