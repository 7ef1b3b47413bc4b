"""Append, load, list and summarize transcripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from claude_agent_sdk import fold_session_summary

from lango_store import DamagedMessage, Message, SessionExpired, SessionInfo, SessionNotFound, Store
from lango_store.integrations.claude_agent_sdk.branches import as_shown, leave_branches
from lango_store.integrations.claude_agent_sdk.entries import (
    NAME,
    entries_of_other_program,
    entry_of_message,
    message_of,
)
from lango_store.integrations.claude_agent_sdk.usage import (
    NO_RESPONSE,
    Last,
    add_missing,
    by_model,
    responses_of,
    start_fork,
    subtract,
)
from lango_store.integrations.fields import split_key, turn_metadata
from lango_store.rows import mapping, storable_id, storable_text

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionSummaryEntry

Entry = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDED: Final = f"{NAME}.summary"
"""The name of the session value that holds the summary, with the position up to which it includes entries."""

_AT_ONCE: Final = 1_000
"""The number of sessions that a list reads with each statement."""

_BEHIND: Final = 20
"""The maximum number of messages that a list reads to complete a stored summary, without storing it again."""

_WEIGHTS: Final = {"customTitle": 3, "aiTitle": 2, "summary": 1}
"""The fields of entries that contain a title of the session. The field with the highest number takes precedence."""

_TITLED: Final = f"{NAME}.title"
"""The name of the session value that holds the field from which the title was taken."""


class Seen(NamedTuple):
    """What is remembered of a session that was read or written.

    Attributes:
        last: The last response.
        source: The key of the session of which this session is a fork, while copied entries may be appended.
    """

    last: Last = NO_RESPONSE
    source: str | None = None


def begins(entries: Sequence[Any]) -> bool:
    """Return True if the first entry of a transcript is among these entries."""
    return any(
        isinstance(entry, dict) and entry.get("parentUuid", "") is None and not entry.get("logicalParentUuid")
        for entry in entries
    )


def roots(entries: Sequence[Any]) -> list[str]:
    """Return the ids of the entries that follow no other entry. A fork that the CLI makes has copies of them."""
    ids = [entry.get("uuid") for entry in entries if isinstance(entry, dict) and entry.get("parentUuid", "") is None]
    return [id for id in ids if isinstance(id, str)]


def append(
    store: Store,
    key: str,
    entries: Sequence[Any],
    seen: Seen,
    fields: dict[str, Any],
    *,
    create: bool,
    parent: str | None,
    parent_exists: bool,
) -> Seen:
    """Append entries to a session.

    With `create`, the session is created with `fields` if it does not exist. An expired session is always replaced. If
    the session is that of a subagent, `parent` is the session to which it belongs. With `parent_exists`, that session
    must still exist.

    Returns what is to be remembered of the session.
    """
    responses, last = responses_of(entries, seen.last)
    messages = [message_of(entry) for entry in entries]
    for response in responses:
        messages[response.position].tokens = response.tokens
    title = _title(entries)
    totals = next((each for each in reversed(entries) if each.get("type") == "cost-state"), None)
    source = seen.source

    def write(tx: Store) -> Seen:
        if parent is not None and parent_exists:
            with suppress(SessionExpired):
                # The update locks the parent, so that it is not deleted before the child is created.
                tx.conversation(parent).update()
        try:
            stored = tx.conversation(key).append_messages(messages, create=create, **fields if create else {})
        except SessionExpired:
            stored = tx.conversation(key).append_messages(messages, create=True, **fields)
        leave_branches(tx, key, stored)
        new = [each for each in responses if not stored[each.position].replayed]
        copied = [each for each in new if each.is_copy or (source is not None and _exists(tx, source, each.id))]
        saved = [(each.model, each.added) for each in new if each not in copied and each.added]
        for model, usage in saved:
            tx.conversation(key).save_turn([], usage, metadata=turn_metadata([model]))
        if source is not None and copied:
            start_fork(tx, key, source, by_model((each.model, each.usage) for each in copied))
        if parent is not None:
            subtract(tx, parent, by_model(saved))
        elif totals is not None:
            add_missing(tx, key, totals)
        if title is not None and not all(message.replayed for message in stored):
            _set_title(tx, key, *title)
        if parent is None:
            _fold(tx, key, entries, stored)
        return Seen(last, None if saved else source)

    return store.transact(write)


def _exists(tx: Store, key: str, id: Any) -> bool:
    try:
        return storable_id(id) is not None and tx.conversation(key).find_message(id) is not None
    except SessionNotFound:
        return False


def _title(entries: Sequence[Any]) -> tuple[str, str | None] | None:
    """Return the title field of highest weight in these entries, with its last text; None without a title."""
    titles: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict):
            titles |= {field: entry[field] for field in _WEIGHTS if field in entry and _is_title(entry[field])}
    return next(((field, titles[field] or None) for field in _WEIGHTS if field in titles), None)


def _is_title(name: Any) -> bool:
    return name == "" or storable_text(name) is not None


def _set_title(tx: Store, key: str, field: str, text: str | None) -> None:
    stored = tx.conversation(key).values.get(prefix=_TITLED).get(_TITLED)
    if not isinstance(stored, str) or _WEIGHTS.get(stored, 0) <= _WEIGHTS[field]:
        tx.conversation(key).update(title=text)
        tx.conversation(key).values.set({_TITLED: field})


def load(store: Store, key: str, session_id: str) -> list[Entry]:
    """Load the entries of a live session in order. The list is empty if the session does not exist."""
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
                entries.append(entry_of_message(as_shown(message)))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise DamagedMessage(
                    key, message.seq, f"extra.{NAME}", f"does not contain an entry ({error!r})"
                ) from None
        else:
            entries += entries_of_other_program(key, message, leaf, sessionId=session_id)
        leaf = entries[-1].get("uuid", leaf) if entries else leaf
    return entries


def sessions(store: Store, key: str) -> Iterator[SessionInfo]:
    """Yield the live sessions of a project, without the transcripts of subagents."""
    prefix = f"{key}:"
    for info in store.iter_sessions(page_size=_AT_ONCE, key_prefix=prefix):
        if not {":", "/"} & set(info.key[len(prefix) :]):
            yield info


def subpaths(store: Store, key: str) -> Iterator[str]:
    """Yield the subpaths of a session's subagent transcripts. The session itself need not exist."""
    prefix = f"{key}/"
    for info in store.iter_sessions(key_prefix=prefix):
        if "/" not in info.key[len(prefix) :]:
            yield split_key(info.key, prefix)[0]


def milliseconds(info: SessionInfo) -> int:
    """Return the time of a session's last write, in milliseconds since 1970."""
    return (info.updated_at - _EPOCH) // timedelta(milliseconds=1)


def last_part(info: SessionInfo) -> str:
    """Return the last id in the key of a session."""
    return split_key(info.key)[-1]


def summaries(store: Store, key: str) -> list[SessionSummaryEntry]:
    """Return the summary of each live session of a project.

    Appends keep the stored summaries current. Those of sessions that other programs or earlier releases wrote are
    completed: with one statement for all that miss few messages, the others one by one, which stores them.
    """
    found: list[SessionSummaryEntry] = []
    rebuilt: dict[str, dict[str, Any]] = {}
    with store.snapshot() as view:
        infos = sessions(view, key)
        while page := list(islice(infos, _AT_ONCE)):
            values = view.values_of([info.key for info in page], _FOLDED)
            stored = {info.key: _current(info, values[info.key].get(_FOLDED)) for info in page}
            missing = {info.key: info.last_seq - stored[info.key]["seq"] for info in page}
            behind = [key for key, number in missing.items() if 0 < number <= _BEHIND]
            last = max((missing[key] for key in behind), default=0)
            ends = view.messages_of(behind, last=last, damaged="return") if behind else {}
            for info in page:
                folded = _with_messages(info.key, stored[info.key], ends.get(info.key, ()))
                if missing[info.key] > _BEHIND:
                    rest = view.conversation(info.key).all_messages(after=folded["seq"])
                    rebuilt[info.key] = folded = _with_messages(info.key, folded, rest)
                found.append({"session_id": last_part(info), "mtime": milliseconds(info), "data": folded["data"]})
    for name, folded in rebuilt.items():
        with suppress(SessionNotFound):  # deleted after it was listed
            store.conversation(name).values.set({_FOLDED: folded})
    return found


def _current(info: SessionInfo, stored: Any) -> dict[str, Any]:
    """Return a stored summary, or an empty one if the session was created again or messages were removed."""
    life = [info.created_at.isoformat(), info.last_seq - info.message_count - info.record_count]
    is_current = isinstance(stored, dict) and stored.get("life") == life
    return stored if is_current else {"life": life, "seq": 0, "data": {}}


def _with_messages(key: str, folded: dict[str, Any], messages: Sequence[Message | DamagedMessage]) -> dict[str, Any]:
    """Add messages to a summary, without those that it includes."""
    new: list[Message] = []
    for message in messages:
        if message.seq > folded["seq"]:
            if isinstance(message, DamagedMessage):
                raise message
            new.append(message)
    entries = _entries(key, split_key(key)[-1], new)
    return _with_entries(key, folded, entries, new[-1].seq) if new else folded


def _with_entries(key: str, folded: dict[str, Any], entries: Sequence[Any], seq: int) -> dict[str, Any]:
    names: SessionKey = {"project_key": "", "session_id": split_key(key)[-1]}
    before: SessionSummaryEntry = {"session_id": names["session_id"], "mtime": 0, "data": folded["data"]}
    return folded | {"seq": seq, "data": fold_session_summary(before, names, list(entries))["data"]}


def _fold(tx: Store, key: str, entries: Sequence[Any], stored: Sequence[Message]) -> None:
    """Add a batch of entries, which was stored, to the summary of a session.

    The summary is read each time, because it is deleted when an entry is redacted. One that does not include all
    earlier messages stays as it is; the next list completes it.
    """
    new = [(message.seq, entry) for message, entry in zip(stored, entries, strict=True) if not message.replayed]
    if not new:
        return
    if new[0][0] == 1:
        folded = _current(tx.conversation(key).info(), None)
    else:
        folded = mapping(tx.conversation(key).values.get(prefix=_FOLDED).get(_FOLDED))
    if folded.get("seq") == new[0][0] - 1:
        folded = _with_entries(key, folded, [entry for _, entry in new], new[-1][0])
        tx.conversation(key).values.set({_FOLDED: folded})
