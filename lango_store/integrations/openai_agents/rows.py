"""Load, remove and replace the items of a stored session. The functions run in threads of the store."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from lango_store import (
    Conversation,
    Message,
    MessageRole,
    PendingCompaction,
    SessionInfo,
    SessionNotFound,
    Store,
    Turn,
)
from lango_store.integrations.adapter import retry_conflicts
from lango_store.interchange.openai_items import NAME, Item, messages_of, stored_items


class Row(NamedTuple):
    """A stored message: its `seq`, and its items (at least one)."""

    seq: int
    items: list[Item]


class Window(NamedTuple):
    """The window of a session at the time it was read, to be replaced later."""

    pending: PendingCompaction
    rows: list[Row]


def load_items(store: Store, key: str, limit: int | None) -> list[Item]:
    """Load the items of a session, or the last `limit` items. The list is empty if the session does not exist."""
    conversation = store.conversation(key)
    try:
        messages = conversation.messages(last=limit, records=True)
        rows = _rows(key, messages)
        if limit is not None and len(rows) < len(messages):  # the limit included records of other writers
            rows = _rows(key, conversation.messages(records=True))
    except SessionNotFound:
        return []
    items = items_in(rows)
    return items if limit is None else items[max(len(items) - limit, 0) :]


def _rows(key: str, messages: Sequence[Message]) -> list[Row]:
    rows: list[Row] = []
    for message in messages:
        if message.role is MessageRole.RECORD and message.author != NAME:
            continue
        rows.append(Row(message.seq, stored_items(key, message)))
    return rows


def items_in(rows: Sequence[Row]) -> list[Item]:
    """Return the items of all rows."""
    return [item for row in rows for item in row.items]


def load_turns(store: Store, key: str) -> list[Turn]:
    """Load the turns of a session. The list is empty if the session does not exist."""
    try:
        return store.conversation(key).turns.list()
    except SessionNotFound:
        return []


def clear(store: Store, key: str) -> None:
    """Remove all items of a session, if the session exists."""
    with suppress(SessionNotFound):
        store.conversation(key).clear()


def pop_item(store: Store, key: str) -> Item | None:
    """Remove and return the last item of a session; return None if the session has no items."""

    def pop(tx: Store) -> Item | None:
        info = tx.conversation(key).info()
        conversation = tx.conversation(key)
        rows = _rows(key, conversation.messages(last=1, records=True))
        rows = rows or _rows(key, conversation.messages(records=True))
        if not rows:
            return None
        *others, item = rows[-1].items
        _replace_rows(conversation, rows[-1:], others, info)
        return item

    try:
        return retry_conflicts(lambda: store.transact(pop))
    except SessionNotFound:
        return None


def read_window(store: Store, key: str) -> Window | None:
    """Read the window of a session; return None if it is empty."""
    try:
        pending = store.conversation(key).turns.begin_compaction(records=True)
    except SessionNotFound:
        return None
    return None if pending is None else Window(pending, _rows(key, pending.session.messages))


def replace_window(store: Store, window: Window, output: Sequence[Item]) -> None:
    """Replace a window with a summary. Items that were added later follow the summary.

    Raises:
        Conflict: The session was compacted, or its items were changed or removed, since the
            window was read.
    """
    window.pending.finish(messages_of(output))


def replace_end(store: Store, window: Window, start: int, output: Sequence[Item]) -> None:
    """Replace a window's items from position `start`. Raises `Conflict` if the session has changed after the read."""
    remaining = list(window.rows)
    while len(remaining) > 1 and start >= len(remaining[0].items):
        start -= len(remaining.pop(0).items)
    session = window.pending.session
    new = [*remaining[0].items[:start], *output]
    store.transact(lambda tx: _replace_rows(tx.conversation(session.key), remaining, new, session))


def _replace_rows(conversation: Conversation, rows: Sequence[Row], items: Sequence[Item], info: SessionInfo) -> None:
    """Replace the last rows with items, in a transaction. Raises `Conflict` if `info` is outdated."""
    conversation.edits.delete_all([row.seq for row in rows], expect=info.revision)
    if info.summarized_upto and conversation.info().summarized_upto < info.summarized_upto:
        conversation.compact(lambda _: [])  # deleting a summary must not bring back the messages that it replaced
    conversation.append_messages(messages_of(items))  # without items, this still checks the lease of a turn
