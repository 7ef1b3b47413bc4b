"""Checkpoints and pending writes as records of the log.

The id of a record begins with the namespace and the id of its checkpoint, so that the records of a checkpoint are
neighbors in the order of their ids. A record is never changed: a later checkpoint refers to the values and messages of
earlier ones by their `seq`.
"""

import hashlib
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from lango_store import Conversation, Message, MessageRole, SessionExpired, SessionNotFound
from lango_store.integrations.langgraph.messages import NAME, Packed

_PAGE: Final = 16
PREFIX: Final = f"{NAME}:"


def prefix_of(namespace: str) -> str:
    """Return the start of the ids of a namespace's records."""
    digest = hashlib.blake2b(namespace.encode(), digest_size=8).hexdigest() if namespace else ""
    return f"{PREFIX}{digest}:"


def record(kind: str, namespace: str, checkpoint_id: str, **content: Any) -> Message:
    """Return a record: a checkpoint, or pending writes for it."""
    id = prefix_of(namespace) + checkpoint_id
    if kind == "writes":
        id += f"!{uuid.uuid4().hex}"
    content |= {"ns": namespace, "id": checkpoint_id}
    return Message(role=MessageRole.RECORD, author=NAME, name=kind, id=id, content=content)


@dataclass
class Stored:
    """A stored checkpoint: its record, and the records of its pending writes."""

    record: Message
    writes: list[Message] = field(default_factory=list)

    @property
    def content(self) -> dict[str, Any]:
        """The content of the checkpoint's record."""
        content: dict[str, Any] = self.record.content
        return content

    @property
    def id(self) -> str:
        """The id of the checkpoint."""
        id: str = self.content["id"]
        return id

    @property
    def holders(self) -> dict[str, int]:
        """For each channel with a value, the `seq` of the record that has it."""
        return self.content["refs"] | dict.fromkeys(self.content["values"], self.record.seq)

    def ordered_writes(self) -> list[tuple[str, str, Packed]]:
        """Return task, channel and value of each pending write.

        Of two writes of a task with the same position, the first one counts, but the last one of errors, interrupts
        and the like, whose positions are negative.
        """
        chosen: dict[tuple[str, int], tuple[tuple[str, str, int], tuple[str, str, Packed]]] = {}
        for each in sorted(self.writes, key=lambda message: message.seq):
            content = each.content
            for position, channel, packed in content["writes"]:
                at, key = (content["task"], position), writes_sort_key(content["path"], content["task"], position)
                if position < 0 or at not in chosen:
                    chosen[at] = (key, (content["task"], channel, packed))
        return [write for _, write in sorted(chosen.values(), key=lambda pair: pair[0])]


def writes_record(
    namespace: str, checkpoint_id: str, task: str, path: str, writes: Sequence[tuple[str, Packed]]
) -> Message:
    """Return the record of a task's pending writes."""
    numbered = [
        [WRITES_IDX_MAP.get(channel, position), channel, packed] for position, (channel, packed) in enumerate(writes)
    ]
    return record("writes", namespace, checkpoint_id, task=task, path=path, writes=numbered)


def stored(
    conversation: Conversation, prefix: str, *, before: str | None = None, page: int | None = None
) -> Iterator[Stored]:
    """Yield the checkpoints whose ids start with a text, the last one first; with `page`, read page by page."""
    writes: dict[str, list[Message]] = {}
    while True:
        found: list[Message] = []
        with suppress(SessionNotFound, SessionExpired):
            found = conversation.find_by_prefix(prefix, before=before, limit=page)
        for each in found:
            if each.name == "checkpoint":
                yield Stored(each, writes.pop(str(each.id), []))
            else:
                writes.setdefault(str(each.id).partition("!")[0], []).append(each)
        if page is None or len(found) < page:
            return
        before, page = found[-1].id, page * 2


def find(conversation: Conversation, namespace: str, checkpoint_id: str | None) -> Stored | None:
    """Find a checkpoint, by default the last one of the namespace."""
    prefix = prefix_of(namespace) + (checkpoint_id or "")
    found = stored(conversation, prefix, page=None if checkpoint_id else _PAGE)
    return next((each for each in found if checkpoint_id is None or each.id == checkpoint_id), None)


# The messages of a checkpoint


def as_groups(seqs: Iterable[int]) -> str:
    """Write ascending or unordered seqs as text, consecutive ones as a group: `1-4 7`."""
    groups: list[list[int]] = []
    for seq in seqs:
        if groups and seq == groups[-1][1] + 1:
            groups[-1][1] = seq
        else:
            groups.append([seq, seq])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in groups)


def seqs_of(holder: Message) -> list[int]:
    """Return the seqs of the messages that a checkpoint's record lists."""
    listed: Mapping[str, Any] = holder.content["messages"]
    bounds = (group.split("-") for group in listed["rows"].split())
    earlier = itertools.chain.from_iterable(range(int(each[0]), int(each[-1]) + 1) for each in bounds)
    return [*earlier, *range(holder.seq - listed["new"], holder.seq)]
