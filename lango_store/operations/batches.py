"""Messages on their way in: checked, and encoded as the driver takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lango_store.columns import encode_id, encode_json, encode_role, encode_text
from lango_store.errors import InvalidMessage
from lango_store.model import Message, ToolCall


@dataclass(frozen=True)
class Batch:
    """Messages about to be appended, and their rows as the driver takes them, all checked."""

    messages: Sequence[Message]
    rows: Sequence[dict[str, Any]]
    ids: frozenset[str]

    @property
    def tokens(self) -> int:
        """The tokens of all its messages; a message without a count counts 0."""
        return sum(message.tokens or 0 for message in self.messages)

    @property
    def repeats(self) -> bool:
        """Whether an id stands in it twice."""
        return sum(message.id is not None for message in self.messages) > len(self.ids)

    def only(self, positions: Sequence[int]) -> Batch:
        """Give the part of it at these positions."""
        messages = [self.messages[position] for position in positions]
        rows = [self.rows[position] for position in positions]
        return Batch(messages, rows, frozenset(message.id for message in messages if message.id is not None))


def batch(new: Sequence[Message]) -> Batch:
    """Encode messages for the database; `InvalidMessage` for what cannot be kept, before anything is written."""
    rows = [_encoded(message) for message in new]
    return Batch(new, rows, frozenset(row["id"] for row in rows if row["id"] is not None))


def _encoded(message: Message) -> dict[str, Any]:
    if not isinstance(message, Message):
        raise InvalidMessage(
            "message", f"is {type(message).__name__}, not a Message: Message.model_validate(…) makes it one"
        )
    created_at = message.created_at
    if created_at is not None and (not isinstance(created_at, datetime) or created_at.tzinfo is None):
        raise InvalidMessage("created_at", f"{created_at!r} is no time with a time zone: use datetime.now(UTC)")
    tokens = message.tokens
    if tokens is not None and (not isinstance(tokens, int) or not 0 <= tokens < 2**53):
        raise InvalidMessage("tokens", f"{tokens!r} is no count: give 0 or more, or None")
    return {
        "id": encode_id(message.id),
        "role": encode_role(message.role),
        "author": encode_text(message.author, "author"),
        "name": encode_text(message.name, "name"),
        "tool_call_id": encode_text(message.tool_call_id, "tool_call_id"),
        "content": None if message.content is None else encode_json(message.content, "content"),
        "tool_calls": _encoded_calls(message.tool_calls) if message.tool_calls else None,
        "tokens": tokens,
        "extra": encode_json(message.extra, "extra") if message.extra else None,
        "created_at": None if created_at is None else _in_range(created_at),
    }


def _in_range(created_at: datetime) -> datetime:
    try:
        return created_at.astimezone(UTC)
    except OverflowError:
        reason = f"{created_at} lies outside of the years 1 to 9999 in UTC: give a time inside"
        raise InvalidMessage("created_at", reason) from None


def _encoded_calls(calls: Sequence[ToolCall]) -> str:
    plain = [_plain_call(call) for call in calls]
    try:
        return encode_json(plain, "tool_calls")
    except InvalidMessage:  # each value by itself: one may use all levels, and the error names the guilty one
        return "[" + ",".join(_encoded_call(call, f"tool_calls[{n}]") for n, call in enumerate(plain)) + "]"


def _plain_call(call: ToolCall) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": call.id, "name": call.name}
    if "arguments" in call.model_fields_set:
        plain["arguments"] = call.arguments
    if call.answered:
        plain["output"] = call.output
    if call.extra:
        plain["extra"] = call.extra
    return plain


def _encoded_call(plain: Mapping[str, Any], field: str) -> str:
    members = (f'"{name}":{encode_json(value, f"{field}.{name}")}' for name, value in plain.items())
    return "{" + ",".join(members) + "}"
