"""Records of conversations: fields of the session and the session's value `pydantic_ai`.

The value holds the framework's revision, the log's counters at that revision, the usage, the requests that a run waits
for, and the branches. If another writer changed the log, the revision differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic_ai.conversation_store import ConversationConflict, ConversationRecord
from pydantic_ai.usage import RunUsage

from lango_store import SessionInfo, SessionNotFound, Store
from lango_store.integrations.fields import mapping
from lango_store.integrations.pydantic_ai.items import DEFERRED, NAME, USAGE, loaded
from lango_store.integrations.pydantic_ai.log import Known, entry_id

_USAGE_FIELDS: Final = frozenset(USAGE.dump_python(RunUsage(), mode="json"))


def read(view: Store, prefix: str, key: str) -> tuple[ConversationRecord, SessionInfo] | None:
    """Return the record of a live session, and the session; None if there is none."""
    try:
        info = view.info(key)
    except SessionNotFound:
        return None
    return _record(view, prefix, info, _value(view, key)), info


def at_revision(tx: Store, prefix: str, id: str, revision: str) -> tuple[ConversationRecord, SessionInfo]:
    """Return a record that is at a revision, and its session; `ConversationConflict` if there is none."""
    found = read(tx, prefix, prefix + id)
    if found is None or found[0].revision != revision:
        raise ConversationConflict(id)
    return found


def read_many(view: Store, prefix: str, scope: str | None, limit: int | None) -> list[ConversationRecord]:
    """Return the records of live sessions that have one, of a scope if given, the newest first."""
    which: dict[str, Any] = {} if scope is None else {"user_id": scope}
    infos = view.iter_sessions(key_prefix=prefix, **which)
    records = [_record(view, prefix, info, value) for info in infos if (value := _value(view, info.key))]
    return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]


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
        forked = {"from": info.forked_from.removeprefix(prefix)}
    deferred = value.get("deferred")
    return ConversationRecord(
        conversation_id=key.removeprefix(prefix),
        head_id=None if head is None else Known.of(head, key),
        usage=loaded(key, "usage", USAGE, mapping(usage)),
        deferred_tool_requests=None if deferred is None else loaded(key, "deferred", DEFERRED, deferred),
        scope=info.user_id,
        forked_from=forked.get("from"),
        forked_at=forked.get("at"),
        branches=[Known.of(tip, key) for tip in value.get("branches", ())],
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
