"""Checkpoints and pending writes as records of the log.

The id of a record begins with the namespace and the id of its checkpoint, so that the records of a checkpoint are
neighbors in the order of their ids. A record is never changed: a later checkpoint refers to the values and messages of
earlier ones by their `seq`.
"""

import base64
import hashlib
import itertools
import secrets
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from lango_store import Conversation, Message, MessageRole
from lango_store.rows import mapping

NAME: Final = "langgraph"
"""The name under which the rest of a message is stored in `extra`, and the author of records."""

Packed = list[str]
"""A value in the serializer's own form: its type, and its bytes in base64. Larger values are compressed."""

CHANNEL: Final = "messages"
_LARGE: Final = 200
_COMPRESSED: Final = "+zlib"
PREFIX: Final = f"{NAME}:"


def pack(serde: Any, value: Any) -> Packed:
    """Serialize a value."""
    kind, data = serde.dumps_typed(value)
    if len(data) >= _LARGE and len(compressed := zlib.compress(data, 1)) < len(data):
        kind, data = kind + _COMPRESSED, compressed
    return [kind, base64.b64encode(data).decode()]


def unpack(serde: Any, packed: Packed) -> Any:
    """Return the value of `pack`."""
    kind, data = packed[0], base64.b64decode(packed[1])
    if kind.endswith(_COMPRESSED):
        kind, data = kind.removesuffix(_COMPRESSED), zlib.decompress(data)
    return serde.loads_typed((kind, data))


def prefix_of(namespace: str) -> str:
    """Return the start of the ids of a namespace's records."""
    digest = hashlib.blake2b(namespace.encode(), digest_size=8).hexdigest() if namespace else ""
    return f"{PREFIX}{digest}:"


def checkpoint_record(namespace: str, checkpoint_id: str, **content: Any) -> Message:
    """Return the record of a checkpoint."""
    id = prefix_of(namespace) + checkpoint_id
    content |= {"ns": namespace, "id": checkpoint_id}
    return Message(role=MessageRole.RECORD, author=NAME, name="checkpoint", id=id, content=content)


def writes_record(
    namespace: str, checkpoint_id: str, task: str, path: str, writes: Sequence[tuple[str, Packed]]
) -> Message:
    """Return the record of a task's pending writes."""
    id = f"{prefix_of(namespace)}{checkpoint_id}!{secrets.token_hex(8)}"
    numbered = [
        [WRITES_IDX_MAP.get(channel, number), channel, packed] for number, (channel, packed) in enumerate(writes)
    ]
    content = {"task": task, "path": path, "writes": numbered}
    return Message(role=MessageRole.RECORD, author=NAME, name="writes", id=id, content=content)


@dataclass
class Stored:
    """A stored checkpoint: its record, and the records of its pending writes."""

    record: Message
    writes: list[Message]

    @property
    def content(self) -> dict[str, Any]:
        """The content of the checkpoint's record."""
        content: dict[str, Any] = self.record.content
        return content

    @property
    def id(self) -> str:
        """The id of the checkpoint."""
        return str(self.content["id"])

    @property
    def holders(self) -> dict[str, int]:
        """For each channel with a value, the `seq` of the record that has it."""
        own = [*self.content["values"], *([CHANNEL] if CHANNEL in self.content else [])]
        return self.content["refs"] | dict.fromkeys(own, self.record.seq)

    def pending(self) -> list[tuple[str, str, Packed]]:
        """Return task, channel and value of each pending write.

        Of two writes of a task with the same position, the first one counts, but the last one of errors, interrupts
        and the like, whose positions are negative.
        """
        chosen: dict[tuple[str, int], tuple[tuple[str, str, int], str, Packed]] = {}
        for each in sorted(self.writes, key=lambda message: message.seq):
            task, path = each.content["task"], each.content["path"]
            for position, channel, packed in each.content["writes"]:
                if position < 0 or (task, position) not in chosen:
                    chosen[task, position] = (writes_sort_key(path, task, position), channel, packed)
        return [(key[1], channel, packed) for key, channel, packed in sorted(chosen.values())]


def stored(conversation: Conversation, prefix: str, count: int = 4) -> Iterator[Stored]:
    """Yield the checkpoints whose record ids start with a text, the last one first; read `count` records at first.

    A redacted record has no content, and is left out.
    """
    previous = None
    while True:
        found = conversation.all_messages(id_prefix=prefix, last=count)
        writes: list[Message] = []
        for each in reversed(found):
            if each.content is None:
                continue
            if each.name != "checkpoint":
                writes.append(each)
            elif previous is None or str(each.id) < previous:
                previous = str(each.id)
                yield Stored(each, [write for write in writes if str(write.id).startswith(f"{previous}!")])
                writes = []
        if len(found) < count:
            return
        count *= 4


def has_value(holder: Message | None, channel: str) -> bool:
    """Return True if a record has the value of a channel; a redacted one has none."""
    content = mapping(holder and holder.content)
    return channel in mapping(content.get("values")) or (channel == CHANNEL and CHANNEL in content)


def seqs_of(holder: Message | None) -> list[int]:
    """Return the seqs of the messages that a record lists, if it is a checkpoint's."""
    listed = mapping(holder and holder.content).get(CHANNEL)
    if holder is None or listed is None:
        return []
    return [*itertools.accumulate(listed["steps"]), *range(holder.seq - listed["new"], holder.seq)]


def steps_of(seqs: Sequence[int]) -> list[int]:
    """Return the differences of ascending seqs, which compress better."""
    return [seq - previous for previous, seq in itertools.pairwise([0, *seqs])]
