"""Items of a stored session: loaded, removed and replaced. The functions run in a thread of the store."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from lango_store import (
    Conversation,
    DamagedMessage,
    Message,
    MessageRole,
    PendingCompaction,
    SessionInfo,
    SessionNotFound,
    Store,
    Turn,
)
from lango_store.integrations.adapter import retry_conflicts
from lango_store.integrations.openai_agents.items import NAME, Item, items_of, messages_of


class Row(NamedTuple):
    """A stored message: its `seq`, and its items, one at least."""

    seq: int
    items: list[Item]


class Window(NamedTuple):
    """The window of a session when it was read, to be replaced later."""

    pending: PendingCompaction
    rows: list[Row]


def load_items(store: Store, key: str, limit: int | None) -> list[Item]:
    """Load the items of a session, or the last ones; an empty list without a session."""
    conversation = store.conversation(key)
    try:
        messages = conversation.messages(last=limit, records=True)
        rows = _rows(key, messages)
        if limit is not None and len(rows) < len(messages):  # records of other writers were counted
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
        try:
            rows.append(Row(message.seq, items_of(message)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DamagedMessage(key, message.seq, "extra", f"{NAME} does not fit the message") from error
    return rows


def items_in(rows: Sequence[Row]) -> list[Item]:
    """Return the items of all rows."""
    return [item for row in rows for item in row.items]


def load_turns(store: Store, key: str) -> list[Turn]:
    """Load the turns of a session; an empty list without a session."""
    try:
        return store.conversation(key).turns()
    except SessionNotFound:
        return []


def clear(store: Store, key: str) -> None:
    """Remove all items of a session, if there is one."""
    with suppress(SessionNotFound):
        store.conversation(key).clear()


def pop_item(store: Store, key: str) -> Item | None:
    """Remove the last item of a session and return it; None if there is none."""

    def pop(tx: Store) -> Item | None:
        info = tx.info(key)
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
    """Read the window of a session; None if it is empty."""
    try:
        pending = store.conversation(key).begin_compaction(records=True)
    except SessionNotFound:
        return None
    return None if pending is None else Window(pending, _rows(key, pending.session.messages))


def replace_window(store: Store, seen: Window, output: Sequence[Item]) -> None:
    """Replace a window with a summary, before later items; `Conflict` if it was compacted or cut since."""
    store.conversation(seen.pending.session.key).finish_compaction(seen.pending, messages_of(output))


def replace_end(store: Store, seen: Window, start: int, output: Sequence[Item]) -> None:
    """Replace the items at the end of a window from a position on; `Conflict` if the session has changed since."""
    left = list(seen.rows)
    while len(left) > 1 and start >= len(left[0].items):
        start -= len(left.pop(0).items)
    session = seen.pending.session
    new = [*left[0].items[:start], *output]
    store.transact(lambda tx: _replace_rows(tx.conversation(session.key), left, new, session))


def _replace_rows(conversation: Conversation, rows: Sequence[Row], items: Sequence[Item], seen: SessionInfo) -> None:
    """Put items in the place of the last rows; `Conflict` if the session has changed since it was seen.

    Needs a transaction.
    """
    expect: int | None = seen.revision
    for row in rows:
        conversation.delete_message(row.seq, expect=expect)
        expect = None
    if seen.summarized_upto and conversation.info().summarized_upto < seen.summarized_upto:
        conversation.compact(lambda _: [])  # a session of the framework never gets back what a summary replaced
    if items:
        conversation.append_messages(messages_of(items))
