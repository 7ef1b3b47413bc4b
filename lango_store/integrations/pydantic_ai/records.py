"""Entries and records of conversations, read from sessions.

An entry is a message. The window of the session is the current history: each message is the parent of the next one.
Entries of abandoned branches remain in the log as messages with the role `record`; their `extra` holds their original
role and the seq of their parent.

A record of the framework is stored in the fields of the session and in its value `pydantic_ai`. The value holds the
framework's revision, the counters of the log at that revision, the usage, the requests that a run waits for, and the
branches. If the counters have changed, another program wrote to the session; the record then gets another revision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Final

from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.usage import RunUsage

from lango_store import Message, MessageRole, SessionInfo, SessionNotFound, Store
from lango_store.integrations.fields import level_id, level_key
from lango_store.integrations.pydantic_ai.items import DEFERRED, NAME, USAGE, loaded, model_messages
from lango_store.rows import mapping, storable_id

_LEFT: Final = "left"
"""The name in `extra` of the role that an entry had before its branch was abandoned."""

_PARENT: Final = "parent"
"""The name in `extra` of the seq of the parent entry; 0 means no parent."""

_AT_ONCE: Final = 1_000
"""The number of sessions that a list reads with each statement."""

_USAGE_FIELDS: Final = frozenset(USAGE.dump_python(RunUsage(), mode="json"))


# Entries


class EntryId(str):
    """The id of an entry, with the key of a session that contains the entry. Another session may contain a copy."""

    key: str

    @classmethod
    def of(cls, id: str, key: str) -> EntryId:
        """Return `id` as the id of an entry that was read from the session `key`."""
        entry_id = cls(id)
        entry_id.key = key
        return entry_id


def entry_id(key: str, message: Message) -> str:
    """Return the id of an entry: the message id or, for another writer's message without id, one made of its seq."""
    return message.id or f"{key}#{message.seq}"


class Log:
    """The log of a live session: its window, and the entries of abandoned branches."""

    def __init__(self, view: Store, key: str) -> None:
        self.key = key
        summarized_upto = view.conversation(key).info().summarized_upto
        messages = view.conversation(key).all_messages()
        self._by_seq = {each.seq: each for each in messages if not _is_record(each) or _LEFT in _extra(each)}
        self.by_id = {entry_id(key, each): each for each in self._by_seq.values()}
        self.summarized = {id for id, each in self.by_id.items() if each.seq <= summarized_upto}
        self.window = view.conversation(key).messages()
        in_window = {each.seq for each in self.window}
        summarized = [each for each in messages if not _is_record(each) and each.seq not in in_window]
        self._lines = {each.seq: (line, index) for line in (self.window, summarized) for index, each in enumerate(line)}

    def path(self, id: str) -> list[Message]:
        """Return the path to an entry, from its first ancestor. Raises KeyError if a message of the path is missing."""
        message = self.by_id[id]
        branch: list[Message] = []
        while message.seq not in self._lines:
            branch.append(message)
            parent = _extra(message).get(_PARENT, 0)
            if not parent:
                return branch[::-1]
            if parent not in self._by_seq or len(branch) == len(self._by_seq):
                raise KeyError(f"entry {id!r} of session {self.key!r} follows message {parent}, which does not exist")
            message = self._by_seq[parent]
        line, index = self._lines[message.seq]
        return line[: index + 1] + branch[::-1]

    def moved(self, history: Collection[str]) -> list[Message]:
        """Return the entries that a new history drops, as records, and the records that it takes up, as messages."""
        parents = [0, *(each.seq for each in self.window)]
        pairs = zip(self.window, parents, strict=False)
        removed = [as_left(each, parent) for each, parent in pairs if entry_id(self.key, each) not in history]
        included = [as_shown(each) for id, each in self.by_id.items() if _is_record(each) and id in history]
        return removed + included


def as_left(message: Message, parent: int) -> Message:
    """Convert an entry of an abandoned branch to a record that holds the seq of its parent."""
    extra = _extra(message) | {_LEFT: message.role.value, _PARENT: parent}
    return message.model_copy(update={"role": MessageRole.RECORD, "extra": message.extra | {NAME: extra}})


def as_shown(message: Message) -> Message:
    """Return an entry as a message: one of an abandoned branch gets its original role and `extra` back."""
    own_extra = _extra(message)
    if _LEFT not in own_extra:
        return message
    rest = {name: value for name, value in own_extra.items() if name not in (_LEFT, _PARENT)}
    extra = {name: value for name, value in message.extra.items() if name != NAME} | ({NAME: rest} if rest else {})
    return message.model_copy(update={"role": MessageRole(own_extra[_LEFT]), "extra": extra})


def _extra(message: Message) -> dict[str, Any]:
    return mapping(message.extra.get(NAME))


def _is_record(message: Message) -> bool:
    return message.role is MessageRole.RECORD


def history(view: Store, prefix: str, id: str, limit: int | None) -> list[ConversationEntry]:
    """Return the entries up to an entry, or the last `limit` of them. Raises KeyError if the entry does not exist."""
    if isinstance(id, EntryId):
        with suppress(SessionNotFound):
            window = view.conversation(id.key).messages(last=None if limit is None else limit + 1)
            if window and entry_id(id.key, window[-1]) == id:  # the entry is still the head
                return _entries(id.key, window, limit)
    return _entries(*path_to(view, prefix, id), limit)


def path_to(view: Store, prefix: str, id: str) -> tuple[str, list[Message]]:
    """Return the key of a live session with an entry, and the path to the entry. Raises KeyError if none has it."""
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
                return key, log.path(id)
    raise KeyError(id)


def _entries(key: str, messages: list[Message], limit: int | None) -> list[ConversationEntry]:
    ids = [EntryId.of(entry_id(key, each), key) for each in messages]
    first = 0 if limit is None else max(len(messages) - limit, 0)
    shown = model_messages(key, [as_shown(each) for each in messages[first:]])
    pairs = zip(ids[first:], [None, *ids][first:], shown, strict=False)
    return [ConversationEntry(id=id, parent_id=parent, message=message) for id, parent, message in pairs]


# Records


def read(view: Store, prefix: str, key: str) -> tuple[ConversationRecord, SessionInfo] | None:
    """Return the record of a live session, and the session; return None if the session does not exist or is unused."""
    try:
        info = view.conversation(key).info()
    except SessionNotFound:
        return None
    return None if is_unused(view, info) else (_record(view, prefix, info, _value(view, key)), info)


def is_unused(view: Store, info: SessionInfo) -> bool:
    """Return True if a session has no `ConversationRecord` and never had messages: it was only opened."""
    return info.last_seq == 0 and not _value(view, info.key)


def at_revision(tx: Store, prefix: str, id: str, revision: str) -> tuple[ConversationRecord, SessionInfo]:
    """Return a record and its session. Raises `ConversationConflict` if the record does not have this revision."""
    stored = read(tx, prefix, level_key(id, prefix))
    if stored is None or stored[0].revision != revision:
        raise ConversationConflict(id)
    return stored


def read_many(view: Store, prefix: str, scope: str | None, limit: int | None) -> list[ConversationRecord]:
    """Return the stored records of live sessions, optionally of one scope, the most recently updated first."""
    filters: dict[str, Any] = {} if scope is None else {"user_id": scope}
    infos = _sessions(view, prefix, **filters)
    records: list[ConversationRecord] = []
    while page := list(islice(infos, _AT_ONCE)):
        values = view.values_of([info.key for info in page], NAME)
        stored = ((info, mapping(values.get(info.key, {}).get(NAME))) for info in page)
        records += [_record(view, prefix, info, value) for info, value in stored if value]
    return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]


def _sessions(view: Store, prefix: str, **filters: Any) -> Iterator[SessionInfo]:
    """Yield the live sessions whose key is the prefix followed by one id, without their descendants."""
    infos = view.iter_sessions(page_size=_AT_ONCE, key_prefix=prefix, **filters)
    return (info for info in infos if level_id(info.key, prefix) is not None)


def _value(view: Store, key: str) -> dict[str, Any]:
    return mapping(view.conversation(key).values.get(prefix=NAME).get(NAME))


def _record(view: Store, prefix: str, info: SessionInfo, value: dict[str, Any]) -> ConversationRecord:
    key, log = info.key, _log(info)
    is_current = value.get("log") == log
    head = value.get("head")
    if not is_current:
        last = view.conversation(key).messages(last=1)
        head = entry_id(key, last[0]) if last else None
    usage = value.get("usage")
    if value.get("turns") != info.turn_count:  # another writer saved a turn
        total = view.conversation(key).total_usage()
        usage = {name: each for name, each in total.items() if name in _USAGE_FIELDS}
    moved = [value.get("revision", ""), info.created_at.isoformat(), *log[1:]]
    forked = mapping(value.get("forked"))
    if info.forked_from is not None:  # a fork made by `Conversation.fork`
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
    """Return the value of the session that stores a record. `info` is the session after the write."""
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
    """Return counters that change with every append, removal and branch, but not with title or TTL."""
    return [info.key, info.last_seq, info.message_count, info.record_count]


def added_usage(record: ConversationRecord, before: ConversationRecord | None) -> dict[str, Any]:
    """Return the usage that a conversation has added since the record `before` was saved.

    A new fork adds nothing: its usage is that of the original conversation.

    The framework's `cost` is a decimal as text, so it remains the total so far. `cost_usd` is the increase as a number,
    which reports add up.
    """
    if before is None and record.forked_from is not None:
        return {}
    usage, last = (USAGE.dump_python(each.usage if each else RunUsage(), mode="json") for each in (record, before))
    added = usage if before is None else _increase(usage, last)
    cost = float(usage.get("cost") or 0) - float(last.get("cost") or 0)
    return added | ({"cost_usd": cost} if cost else {})


def _increase(usage: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the increase of a usage: the differences of numbers, and new values that are not numbers."""
    increase: dict[str, Any] = {}
    for name in {**before, **usage}:
        value, old = usage.get(name), before.get(name)
        if isinstance(value, dict) or isinstance(old, dict):
            difference: Any = _increase(mapping(value), mapping(old))
        elif isinstance(value, int | float) or isinstance(old, int | float):
            difference = (value or 0) - (old or 0)
        else:
            difference = None if value == old else value
        if difference:
            increase[name] = difference
    return increase
