"""Transcripts of a store: appended, loaded, listed and summarized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from claude_agent_sdk import fold_session_summary

from lango_store import DamagedMessage, Message, SessionInfo, SessionNotFound, Store
from lango_store.integrations.claude_agent_sdk.entries import (
    NAME,
    entries_of_other_program,
    entry_of_message,
    message_of,
)
from lango_store.integrations.fields import split_key, storable_text

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionSummaryEntry

Entry = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDED: Final = f"{NAME}.summary"
"""The value of a session that holds its summary, and which part of the session it was folded from."""

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
    """Append entries to a session, created with `fields` if missing; take and return the id of the last response."""
    responses, last = _responses(entries, last)
    messages = [message_of(entry) for entry in entries]
    for response in responses:
        messages[response.position].tokens = response.tokens
    title = _title(entries)

    def write(tx: Store) -> None:
        stored = tx.append_messages(key, messages, create=True, **fields)
        for position, usage in responses:
            if not stored[position].replayed:
                tx.conversation(key).save_turn([], usage)
        if title is not None and not all(message.replayed for message in stored):
            _set_title(tx, key, *title)

    store.transact(write)
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
            entries += entries_of_other_program(key, message, leaf, sessionId=session_id)
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


def last_part(info: SessionInfo) -> str:
    """Return the last of the ids that the key of a session was joined of."""
    return split_key(info.key)[-1]


def summaries(store: Store, key: str, project_key: str) -> Iterator[SessionSummaryEntry]:
    """Yield the summary of each session of a project, with what was appended since the last call folded into it."""
    for info in below(store, key):
        names: SessionKey = {"project_key": project_key, "session_id": last_part(info)}
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
