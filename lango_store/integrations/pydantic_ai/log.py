"""A conversation's entries in the log of its session.

The window is the current history: there an entry follows the one before it. What a branch leaves stays in the log as
records; each says which role it had, and which entry it follows.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

from pydantic_ai.conversation_store import ConversationEntry

from lango_store import Message, MessageRole, SessionNotFound, Store
from lango_store.integrations.fields import mapping, storable_id
from lango_store.integrations.pydantic_ai.items import NAME, model_messages

_LEFT: Final = "left"
"""Names the role that an entry had before its branch was left."""

_PARENT: Final = "parent"
"""Names the seq of the entry that it follows; 0 is none."""


class Known(str):
    """An entry's id with the key of a session that has the entry: the text alone does not name it."""

    key: str

    @classmethod
    def of(cls, id: str, key: str) -> Known:
        """Return an id as it was read."""
        known = cls(id)
        known.key = key
        return known


def entry_id(key: str, message: Message) -> str:
    """Return the id of an entry: its message's, or one made of its seq if another writer stored it without."""
    return message.id or f"{key}#{message.seq}"


class Log:
    """The log of a live session: its window, and what its branches left."""

    def __init__(self, view: Store, key: str) -> None:
        self.key = key
        summarized_upto = view.info(key).summarized_upto
        messages = view.conversation(key).all_messages()
        self._by_seq = {each.seq: each for each in messages if not _is_record(each) or _LEFT in _own(each)}
        self.by_id = {entry_id(key, each): each for each in self._by_seq.values()}
        self.summarized = {id for id, each in self.by_id.items() if each.seq <= summarized_upto}
        self.window = view.messages(key)
        shown = {each.seq for each in self.window}
        summed_up = [each for each in messages if not _is_record(each) and each.seq not in shown]
        self._lines = {each.seq: (line, place) for line in (self.window, summed_up) for place, each in enumerate(line)}

    def way(self, id: str) -> list[Message]:
        """Return the messages from the first one to an entry; KeyError if the entry or one before it is not there."""
        message = self.by_id[id]
        way: list[Message] = []
        while message.seq not in self._lines:
            way.append(message)
            parent = _own(message).get(_PARENT, 0)
            if not parent:
                return way[::-1]
            if parent not in self._by_seq or len(way) == len(self._by_seq):
                raise KeyError(f"entry {id!r} of session {self.key!r} comes after message {parent}, which is gone")
            message = self._by_seq[parent]
        line, place = self._lines[message.seq]
        return line[: place + 1] + way[::-1]

    def moved(self, history: Collection[str]) -> list[Message]:
        """Return the messages that a new history takes up again, and as records those that it leaves."""
        parents = [0, *(each.seq for each in self.window)]
        pairs = zip(self.window, parents, strict=False)
        gone = [as_left(each, parent) for each, parent in pairs if entry_id(self.key, each) not in history]
        back = [as_shown(each) for id, each in self.by_id.items() if _is_record(each) and id in history]
        return gone + back


def as_left(message: Message, parent: int) -> Message:
    """Return an entry as the record that it becomes when its branch is left."""
    own = _own(message) | {_LEFT: message.role.value, _PARENT: parent}
    return message.model_copy(update={"role": MessageRole.RECORD, "extra": message.extra | {NAME: own}})


def as_shown(message: Message) -> Message:
    """Return an entry in the role that it has in a history."""
    own = _own(message)
    if _LEFT not in own:
        return message
    rest = {name: value for name, value in own.items() if name not in (_LEFT, _PARENT)}
    extra = {name: value for name, value in message.extra.items() if name != NAME} | ({NAME: rest} if rest else {})
    return message.model_copy(update={"role": MessageRole(own[_LEFT]), "extra": extra})


def _own(message: Message) -> dict[str, Any]:
    return mapping(message.extra.get(NAME))


def _is_record(message: Message) -> bool:
    return message.role is MessageRole.RECORD


def history(view: Store, prefix: str, id: str, limit: int | None) -> list[ConversationEntry]:
    """Return the entries up to one, or the last `limit` of them; KeyError if no live conversation has it."""
    if isinstance(id, Known):
        with suppress(SessionNotFound):
            window = view.conversation(id.key).messages(last=None if limit is None else limit + 1)
            if window and entry_id(id.key, window[-1]) == id:  # it is still the head
                return _entries(id.key, window, limit)
    return _entries(*way_to(view, prefix, id), limit)


def way_to(view: Store, prefix: str, id: str) -> tuple[str, list[Message]]:
    """Return the key of a session that has an entry, and the way to the entry; KeyError if no live session has it."""
    if isinstance(id, Known):
        keys = [id.key]
    else:
        key, _, seq = id.rpartition("#")
        keys = [info.key for info in view.iter_sessions(key_prefix=prefix, message_id=storable_id(id) or "")]
        keys += [key] if key and seq.isdecimal() and key.startswith(prefix) else []
    for key in keys:
        with suppress(SessionNotFound):
            log = Log(view, key)
            if id in log.by_id:
                return key, log.way(id)
    raise KeyError(id)


def _entries(key: str, messages: list[Message], limit: int | None) -> list[ConversationEntry]:
    ids = [Known.of(entry_id(key, each), key) for each in messages]
    first = 0 if limit is None else max(len(messages) - limit, 0)
    loaded = model_messages(key, [as_shown(each) for each in messages[first:]])
    pairs = zip(ids[first:], [None, *ids][first:], loaded, strict=False)
    return [ConversationEntry(id=id, parent_id=parent, message=message) for id, parent, message in pairs]
