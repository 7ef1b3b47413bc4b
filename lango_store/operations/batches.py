"""Messages on their way in: checked, and encoded as the driver takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lango_store.encoding import encode_json
from lango_store.model import Message, MessageRole
from lango_store.operations.rows import encode_message

_RECORD: Final = MessageRole.RECORD.value


@dataclass(frozen=True)
class Batch:
    """Messages about to be appended, and their rows as the driver takes them, all checked."""

    messages: Sequence[Message]
    rows: Sequence[dict[str, Any]]

    @functools.cached_property
    def ids(self) -> frozenset[str]:
        """The ids that its messages carry."""
        return frozenset(row["id"] for row in self.rows if row["id"] is not None)

    @property
    def tokens(self) -> int:
        """The tokens of all its messages, records left out; a message without a count counts 0."""
        return sum([row["tokens"] or 0 for row in self.rows if row["role"] != _RECORD])

    @property
    def records(self) -> int:
        """How many of them are records."""
        return [row["role"] for row in self.rows].count(_RECORD)

    @property
    def repeats(self) -> bool:
        """Whether an id stands in it twice."""
        return sum(message.id is not None for message in self.messages) > len(self.ids)

    def only(self, positions: Sequence[int]) -> Batch:
        """Return the part of it at these positions."""
        return Batch(
            [self.messages[position] for position in positions], [self.rows[position] for position in positions]
        )


def batch(new: Sequence[Message], encode: Callable[[Any, str], str] = encode_json) -> Batch:
    """Encode messages for the database; `InvalidMessage` for what cannot be stored, before anything is written."""
    return Batch(new, [encode_message(message, encode) for message in new])
