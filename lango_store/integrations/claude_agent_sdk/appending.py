"""A batch of entries, stored: each once, with what it cost and what it says of its session."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store import writing
from lango_store.access import Access
from lango_store.dialect import AnyConnection, Moment
from lango_store.errors import InvalidMessage, SessionNotFound
from lango_store.integrations.claude_agent_sdk.entries import NAME, message_of, record_of
from lango_store.interchange.fidelity import storable_text
from lango_store.model import UNSET, Message, SessionFields
from lango_store.operations import appends, sessions, turns
from lango_store.operations.appends import unstored
from lango_store.operations.batches import Batch
from lango_store.operations.messages import with_ids
from lango_store.operations.rows import encode_message
from lango_store.operations.sessions import ANYTHING, Expected, New
from lango_store.store import Store

_CUSTOM: Final = "customTitle"
_WEIGHTS: Final = {_CUSTOM: 3, "aiTitle": 2, "summary": 1}
"""The fields of entries that name a session, and which of them outweighs which."""

_TITLED: Final = f"{NAME}.title"
"""The value of a session that says which of these fields its title came from."""


@dataclass(frozen=True)
class Cost:
    """What the responses in a batch cost: all entries of a response, one for each of its blocks, say the same."""

    usage: dict[str, Any]
    tokens: dict[int, int]
    """The tokens of each response, by the place of the entry at which it is counted."""
    last: str | None
    """The last response, in this batch or before it."""

    @classmethod
    def of(cls, entries: Sequence[Any], last: str | None, counted: Collection[str] = ()) -> Cost:
        """Sum up what was not `counted` before; `last` is the response that the batch before this one ended in."""
        usages: dict[str | int, dict[str, Any]] = {}
        tokens: dict[int, int] = {}
        for place, entry in enumerate(entries):
            found = _response(entry)
            if found is None:
                continue
            id, usage = found
            name = place if id is None else id
            if name not in usages:
                block = entry.get("apiBlockIndex")  # not all versions tell it
                again = id in counted or (block != 0 if type(block) is int else id is not None and id == last)
                last = id
                if again:
                    continue
                output = usage.get("output_tokens")
                if type(output) is int and 0 <= output < 2**53:
                    tokens[place] = output
            usages[name] = usage
        return cls(turns.total(usages.values()), tokens, last)


def _response(entry: Any) -> tuple[str | None, dict[str, Any]] | None:
    """Return the id of the response that an entry is of, and what that cost; None for any other entry."""
    message = entry.get("message") if isinstance(entry, dict) and entry.get("type") == "assistant" else None
    if not isinstance(message, dict) or not isinstance(usage := message.get("usage"), dict):
        return None
    id = message.get("id")
    return (id if isinstance(id, str) else None), usage


def append(
    store: Store, key: str, entries: Sequence[Any], last: str | None, fields: SessionFields, *, there: bool = False
) -> str | None:
    """Append entries to a session, which is made of `fields` if there is none; return the last response now.

    An entry whose `uuid` is stored is not stored again. A session that was `there` is written to before one is made:
    that takes a shorter statement.
    """
    writer = _Writer(key, entries, last, fields)
    title = _title(entries)
    if title is None:
        try:
            writer.write(store.access, make=not there)
        except SessionNotFound:  # deleted or expired since
            if not there:
                raise
            writer.write(store.access)
    else:
        store.transact(lambda tx: _write_with_title(tx, key, writer, *title))
    return writer.cost.last


def _write_with_title(store: Store, key: str, writer: _Writer, field: str, text: str | None) -> None:
    if writer.write(store.access) and not _is_outweighed(store, key, field):
        store.update(key, title=text)
        store.set_values(key, {_TITLED: field})


def _is_outweighed(store: Store, key: str, field: str) -> bool:
    """Whether a session, which is locked, has a title from a field of more weight."""
    stored = store.values(key, prefix=_TITLED).get(_TITLED)
    return _WEIGHTS.get(stored, 0) > _WEIGHTS[field] if isinstance(stored, str) else False


class _Writer:
    def __init__(self, key: str, entries: Sequence[Any], last: str | None, fields: SessionFields) -> None:
        self._key, self._entries, self._last, self._fields = key, entries, last, fields
        self.cost = Cost.of(entries, last)

    def write(self, access: Access, *, make: bool = True) -> bool:
        """Write the entries that are not stored yet; False if all of them are."""
        new = self._encoded(access)
        new_session = writing.new_session(access, self._key, UNSET, self._fields) if make else None

        def put(
            connection: AnyConnection,
            now: Moment,
            key: str,
            new: Batch,
            expected: Expected,
            create: New | None = None,
            cost: Cost = self.cost,
        ) -> bool:
            turn = turns.new_turn(None, cost.usage, None) if cost.usage else None
            appends.write(connection, now, key, new, expected, create, turn)
            return True

        def put_new(connection: sa.Connection, now: datetime, key: str, new: Batch, expected: Expected) -> bool:
            sessions.lock(connection, now, key)
            fresh = unstored(new, with_ids(connection, key, new.ids))
            if not fresh.rows:
                return False
            kept = {id(message) for message in fresh.messages}
            positions = [position for position, message in enumerate(new.messages) if id(message) in kept]
            return put(connection, now, key, fresh, expected, cost=self._cost_of(positions))

        return writing.append_once(access, self._key, new, ANYTHING, new_session, put, put_new)

    def _cost_of(self, places: Sequence[int]) -> Cost:
        """Return what the entries at these places cost, the others being stored."""
        fresh = set(places)
        stored = (_response(entry) for place, entry in enumerate(self._entries) if place not in fresh)
        counted = {found[0] for found in stored if found is not None and found[0] is not None}
        return Cost.of([self._entries[place] for place in places], self._last, counted)

    def _encoded(self, access: Access) -> Batch:
        messages = [self._message(place, message_of(entry)) for place, entry in enumerate(self._entries)]
        try:
            return writing.encoded(access, messages)
        except InvalidMessage:  # an entry may have all the levels that a content may have, and none to spare
            return writing.encoded(access, list(map(self._storable, messages, self._entries)))

    def _message(self, place: int, message: Message) -> Message:
        if place in self.cost.tokens:
            message.tokens = self.cost.tokens[place]
        return message

    @staticmethod
    def _storable(message: Message, entry: Any) -> Message:
        try:
            encode_message(message)
        except InvalidMessage:
            return record_of(entry)
        return message


def _title(entries: Sequence[Any]) -> tuple[str, str | None] | None:
    """Return the field of most weight that names the session in these entries, and the last name in it."""
    found: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict) and not _WEIGHTS.keys().isdisjoint(entry):
            found |= {field: name for field, name in entry.items() if field in _WEIGHTS and _is_title(name)}
    for field in _WEIGHTS:
        if field in found:
            return field, found[field] or None
    return None


def _is_title(name: Any) -> bool:
    return name == "" or storable_text(name) is not None
