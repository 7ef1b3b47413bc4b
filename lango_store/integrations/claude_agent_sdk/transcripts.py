"""Transcripts of a store: loaded, listed and summarized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from claude_agent_sdk import fold_session_summary

from lango_store import DamagedMessage, Message, SessionInfo, SessionNotFound, Store
from lango_store.integrations.claude_agent_sdk.entries import NAME, entry_of_message
from lango_store.integrations.claude_agent_sdk.foreign import entries_of

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionSummaryEntry

Entry = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDED: Final = f"{NAME}.summary"
"""The value of a session that holds its summary, and which part of the session it was folded from."""


def load(store: Store, key: str, session_id: str) -> list[Entry]:
    """Load the entries of a live session in order; an empty list without a session."""
    try:
        return _entries(key, session_id, store.conversation(key).all_messages())
    except SessionNotFound:
        return []


def _entries(key: str, session_id: str, messages: Sequence[Message]) -> list[Entry]:
    entries: list[Entry] = []
    leaf: str | None = None
    for message in messages:
        if NAME in message.extra:
            try:
                entries.append(entry_of_message(message))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise DamagedMessage(key, message.seq, f"extra.{NAME}", f"holds no entry ({error!r})") from None
        else:
            entries += entries_of(key, message, leaf, sessionId=session_id)
        leaf = entries[-1].get("uuid", leaf) if entries else leaf
    return entries


def below(store: Store, key: str, *, expired: bool | None = False) -> Iterator[SessionInfo]:
    """Yield the sessions of a project, or the subpaths of a session."""
    # Keys are joined with ":", so that what is further below has one more of them.
    prefix = f"{key}:"
    for info in store.iter_sessions(key_prefix=prefix, expired=expired):
        if ":" not in info.key[len(prefix) :]:
            yield info


def milliseconds(info: SessionInfo) -> int:
    """Return the time of a session's last write."""
    return (info.updated_at - _EPOCH) // timedelta(milliseconds=1)


def summaries(store: Store, project: str, named: Callable[[str], SessionKey]) -> Iterator[SessionSummaryEntry]:
    """Yield the summary of each session of a project, with what was appended since the last call folded into it."""
    for info in below(store, project):
        names = named(info.key)
        try:
            data = _folded(store, info, names)
        except SessionNotFound:  # deleted since it was listed
            continue
        yield {"session_id": names["session_id"], "mtime": milliseconds(info), "data": data}


def _folded(store: Store, info: SessionInfo, names: SessionKey) -> Entry:
    # A session that was created again under its key, or that lost messages, is folded from its start.
    life = [info.created_at.isoformat(), info.last_seq - info.message_count - info.record_count]
    found: Any = store.values(info.key, prefix=_FOLDED).get(_FOLDED)
    is_current = isinstance(found, dict) and found.get("life") == life
    data, folded = (found["data"], found["seq"]) if is_current else ({}, 0)
    if folded >= info.last_seq:
        return cast("Entry", data)
    messages = store.conversation(info.key).all_messages(after=folded)
    if not messages:
        return cast("Entry", data)
    entries: Any = _entries(info.key, names["session_id"], messages)
    before: SessionSummaryEntry = {"session_id": names["session_id"], "mtime": 0, "data": data}
    summary = fold_session_summary(before, names, entries)["data"]
    store.set_values(info.key, {_FOLDED: {"life": life, "seq": messages[-1].seq, "data": summary}})
    return summary
