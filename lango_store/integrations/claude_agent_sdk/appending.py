"""A batch of entries, appended: each entry once, with the usage of its responses and the title of its session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lango_store import InvalidMessage, Message, Store
from lango_store.integrations.claude_agent_sdk.entries import NAME, message_of, record_of
from lango_store.integrations.fields import storable_text

_WEIGHTS: Final = {"customTitle": 3, "aiTitle": 2, "summary": 1}
"""The fields of entries that name a session; the higher number wins."""

_TITLED: Final = f"{NAME}.title"
"""The value of a session that names the field its title came from."""


class Response(NamedTuple):
    """A response of the model: the position of its first entry in a batch, and its usage, which all entries repeat."""

    position: int
    usage: dict[str, Any]

    @property
    def tokens(self) -> int | None:
        """The number of output tokens."""
        count = self.usage.get("output_tokens")
        return count if type(count) is int and 0 <= count < 2**53 else None


def append(store: Store, key: str, entries: Sequence[Any], last: str | None, fields: dict[str, Any]) -> str | None:
    """Append entries to a session, which is created with `fields` if there is none.

    Args:
        last: The id of the response that the previous batch ended in, if that is known.

    Returns:
        The id of the response that this batch ends in.
    """
    responses, last = _responses(entries, last)
    messages = [message_of(entry) for entry in entries]
    for response in responses:
        messages[response.position].tokens = response.tokens
    title = _title(entries)

    def write(tx: Store, messages: Sequence[Message]) -> None:
        stored = tx.append_messages(key, messages, create=True, **fields)
        for position, usage in responses:
            if not stored[position].replayed:
                tx.conversation(key).save_turn([], usage)
        if title is not None and not all(message.replayed for message in stored):
            _set_title(tx, key, *title)

    try:
        store.transact(lambda tx: write(tx, messages))
    except InvalidMessage:  # an entry may be nested as deep as a content may be, and deeper than an `extra`
        records = [record_of(entry) for entry in entries]
        store.transact(lambda tx: write(tx, records))
    return last


def _responses(entries: Sequence[Any], last: str | None) -> tuple[list[Response], str | None]:
    """Return the responses that begin in a batch, and the id of the last response."""
    begun: dict[str | int, Response] = {}
    for position, entry in enumerate(entries):
        message = entry.get("message") if isinstance(entry, dict) and entry.get("type") == "assistant" else None
        if not isinstance(message, dict) or not isinstance(usage := message.get("usage"), dict):
            continue
        id = message.get("id") if isinstance(message.get("id"), str) else None
        name = position if id is None else id
        if name in begun:
            begun[name] = begun[name]._replace(usage=usage)
            continue
        block = entry.get("apiBlockIndex")  # not in all versions
        continues = block != 0 if type(block) is int else id is not None and id == last
        last = id
        if not continues:
            begun[name] = Response(position, usage)
    return list(begun.values()), last


def _title(entries: Sequence[Any]) -> tuple[str, str | None] | None:
    """Return the field of most weight that names the session in these entries, and the last name in it."""
    found: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict):
            found |= {field: entry[field] for field in _WEIGHTS if field in entry and _is_title(entry[field])}
    return next(((field, found[field] or None) for field in _WEIGHTS if field in found), None)


def _is_title(name: Any) -> bool:
    return name == "" or storable_text(name) is not None


def _set_title(tx: Store, key: str, field: str, text: str | None) -> None:
    stored = tx.values(key, prefix=_TITLED).get(_TITLED)
    if not isinstance(stored, str) or _WEIGHTS.get(stored, 0) <= _WEIGHTS[field]:
        tx.update(key, title=text)
        tx.set_values(key, {_TITLED: field})
