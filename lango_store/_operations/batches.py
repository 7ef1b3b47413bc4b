"""Messages on their way in: checked, and encoded as the driver takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lango_store._operations.rows import encode_message
from lango_store._values.model import Message, MessageRole

_RECORD: Final = MessageRole.RECORD.value


class Batch:
    """Messages about to be appended, and their rows as the driver takes them, all checked."""

    __slots__ = ("ids", "messages", "records", "repeats", "rows", "tokens")

    def __init__(self, messages: Sequence[Message], *, rows: list[dict[str, Any]] | None = None) -> None:
        """Encode messages for the database.

        Raises:
            InvalidMessage: A message cannot be stored.
        """
        self.messages: Final = list(messages)
        self.rows: list[dict[str, Any]] = []
        ids: list[str] = []
        records = tokens = 0
        for position, message in enumerate(self.messages):
            row = encode_message(message) if rows is None else rows[position]
            self.rows.append(row)
            if row["id"] is not None:
                ids.append(row["id"])
            if row["role"] == _RECORD:
                records += 1
            elif row["tokens"]:
                tokens += row["tokens"]
        self.ids: Final = frozenset(ids)
        """The ids that its messages carry."""
        self.repeats: Final = len(ids) > len(self.ids)
        """Whether two of its messages have one id."""
        self.records: Final = records
        """How many of them are records."""
        self.tokens: Final = tokens
        """The tokens of its messages, records left out; a message without a count counts 0."""

    def only(self, positions: Sequence[int]) -> Batch:
        """Return the part of it at these positions."""
        rows = [self.rows[position] for position in positions]
        return Batch([self.messages[position] for position in positions], rows=rows)
