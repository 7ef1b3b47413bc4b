"""Conversations in sessions: entries as messages, records as fields of a session and its value `pydantic_ai`.

The window is the current history: there an entry follows the one before it. What a branch leaves stays in the log as
records of ours; each says which role it had, and which entry it follows.

The value holds the framework's revision, the log's counters at that revision, the usage, the requests that a run waits
for, and the branches. If another writer changed the log, the revision differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.usage import RunUsage

from lango_store import Message, MessageRole, SessionInfo, SessionNotFound, Store
from lango_store.integrations.fields import level_id, level_key, mapping, storable_id
from lango_store.integrations.pydantic_ai.items import DEFERRED, NAME, USAGE, loaded, model_messages

_LEFT: Final = "left"
"""Names the role that an entry had before its branch was left."""

_PARENT: Final = "parent"
"""Names the seq of the entry that it follows; 0 is none."""

_USAGE_FIELDS: Final = frozenset(USAGE.dump_python(RunUsage(), mode="json"))


# Entries


class EntryId(str):
    """An entry's id with the key of a session that has the entry: the text alone does not name it."""

    key: str

    @classmethod
    def of(cls, id: str, key: str) -> EntryId:
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
    if isinstance(id, EntryId):
        with suppress(SessionNotFound):
            window = view.conversation(id.key).messages(last=None if limit is None else limit + 1)
            if window and entry_id(id.key, window[-1]) == id:  # it is still the head
                return _entries(id.key, window, limit)
    return _entries(*way_to(view, prefix, id), limit)


def way_to(view: Store, prefix: str, id: str) -> tuple[str, list[Message]]:
    """Return the key of a session that has an entry, and the way to the entry; KeyError if no live session has it."""
    if isinstance(id, EntryId):
        keys = [id.key]
    else:
        key, _, seq = id.rpartition("#")
        keys = [info.key for info in _sessions(view, prefix, message_id=storable_id(id) or "")]
        keys += [key] if key and seq.isdecimal() and level_id(key, prefix) is not None else []
    for key in keys:
        with suppress(SessionNotFound):
            log = Log(view, key)
            if id in log.by_id:
                return key, log.way(id)
    raise KeyError(id)


def _entries(key: str, messages: list[Message], limit: int | None) -> list[ConversationEntry]:
    ids = [EntryId.of(entry_id(key, each), key) for each in messages]
    first = 0 if limit is None else max(len(messages) - limit, 0)
    shown = model_messages(key, [as_shown(each) for each in messages[first:]])
    pairs = zip(ids[first:], [None, *ids][first:], shown, strict=False)
    return [ConversationEntry(id=id, parent_id=parent, message=message) for id, parent, message in pairs]


# Records


def read(view: Store, prefix: str, key: str) -> tuple[ConversationRecord, SessionInfo] | None:
    """Return the record of a live session, and the session; None if there is none."""
    try:
        info = view.info(key)
    except SessionNotFound:
        return None
    return _record(view, prefix, info, _value(view, key)), info


def at_revision(tx: Store, prefix: str, id: str, revision: str) -> tuple[ConversationRecord, SessionInfo]:
    """Return a record that is at a revision, and its session; `ConversationConflict` if there is none."""
    found = read(tx, prefix, level_key(id, prefix))
    if found is None or found[0].revision != revision:
        raise ConversationConflict(id)
    return found


def read_many(view: Store, prefix: str, scope: str | None, limit: int | None) -> list[ConversationRecord]:
    """Return the records of live sessions that have one, of a scope if given, the newest first."""
    which: dict[str, Any] = {} if scope is None else {"user_id": scope}
    infos = _sessions(view, prefix, **which)
    records = [_record(view, prefix, info, value) for info in infos if (value := _value(view, info.key))]
    return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]


def _sessions(view: Store, prefix: str, **filters: Any) -> Iterator[SessionInfo]:
    """Yield the live sessions whose key is an id after the prefix, none of a level below."""
    return (info for info in view.iter_sessions(key_prefix=prefix, **filters) if level_id(info.key, prefix) is not None)


def _value(view: Store, key: str) -> dict[str, Any]:
    return mapping(view.values(key, prefix=NAME).get(NAME))


def _record(view: Store, prefix: str, info: SessionInfo, value: dict[str, Any]) -> ConversationRecord:
    key, log = info.key, _log(info)
    is_current = value.get("log") == log
    head = value.get("head")
    if not is_current:
        last = view.conversation(key).messages(last=1)
        head = entry_id(key, last[0]) if last else None
    usage = value.get("usage")
    if value.get("turns") != info.turn_count:  # another writer saved a turn, too
        total = view.conversation(key).total_usage()
        usage = {name: each for name, each in total.items() if name in _USAGE_FIELDS}
    moved = [value.get("revision", ""), info.created_at.isoformat(), *log[1:]]
    forked = mapping(value.get("forked"))
    if info.forked_from is not None:  # a copy that `Conversation.fork` made
        forked = {"from": level_id(info.forked_from, prefix) or info.forked_from}
    deferred = value.get("deferred")
    return ConversationRecord(
        conversation_id=level_id(key, prefix) or key.removeprefix(prefix),
        head_id=None if head is None else EntryId.of(head, key),
        usage=loaded(key, "usage", USAGE, mapping(usage)),
        deferred_tool_requests=None if deferred is None else loaded(key, "deferred", DEFERRED, deferred),
        scope=info.user_id,
        forked_from=forked.get("from"),
        forked_at=forked.get("at"),
        branches=[EntryId.of(tip, key) for tip in value.get("branches", ())],
        revision=value["revision"] if is_current else "@".join(map(str, moved)),
        updated_at=datetime.fromisoformat(value["updated_at"]) if is_current else info.updated_at,
    )


def value_of(record: ConversationRecord, info: SessionInfo) -> dict[str, Any]:
    """Return the session's value for a record that was written, and for the session after that."""
    value: dict[str, Any] = {
        "revision": record.revision,
        "log": _log(info),
        "head": record.head_id,
        "usage": USAGE.dump_python(record.usage, mode="json"),
        "turns": info.turn_count,
        "updated_at": record.updated_at.isoformat(),
    }
    if record.deferred_tool_requests is not None:
        value["deferred"] = DEFERRED.dump_python(record.deferred_tool_requests, mode="json")
    if record.branches:
        value["branches"] = record.branches
    if record.forked_from is not None:
        value["forked"] = {"from": record.forked_from, "at": record.forked_at}
    return value


def _log(info: SessionInfo) -> list[Any]:
    """Return what changes with every append, removal and branch, and with no title or TTL."""
    return [info.key, info.last_seq, info.message_count, info.record_count]


def added_usage(record: ConversationRecord, before: ConversationRecord | None) -> dict[str, Any]:
    """Return the usage of a save's turn: what the conversation cost since it was saved before."""
    usage = USAGE.dump_python(record.usage, mode="json")
    return usage if before is None else _grown(usage, USAGE.dump_python(before.usage, mode="json"))


def _grown(usage: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much a usage grew: numbers by their differences; of what is none, a cost, the new one."""
    grown: dict[str, Any] = {}
    for name in {**before, **usage}:
        value, old = usage.get(name), before.get(name)
        if isinstance(value, dict) or isinstance(old, dict):
            difference: Any = _grown(mapping(value), mapping(old))
        elif isinstance(value, int | float) or isinstance(old, int | float):
            difference = (value or 0) - (old or 0)
        else:
            difference = None if value == old else value
        if difference:
            grown[name] = difference
    return grown
