"""`LangoConversationStore`, the conversation store for pydantic-ai."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

from lango_store import AsyncStore, InvalidState, Message, SessionExists, SessionNotFound, Store
from lango_store.integrations.adapter import Adapter, create_session, retry_conflicts
from lango_store.integrations.fields import level_key, turn_metadata
from lango_store.integrations.pydantic_ai import records
from lango_store.integrations.pydantic_ai.items import NAME, messages_of
from lango_store.integrations.pydantic_ai.records import Log, as_left, as_shown, entry_id, history, path_to

R = TypeVar("R")

Parents = dict[str, str | None]
"""The parent id of each entry that is about to be stored, by the entry's id."""


class LangoConversationStore(Adapter, ConversationStore):
    """A `ConversationStore` of pydantic-ai on SQLite or PostgreSQL.

    A conversation is stored as a session, and its entries as messages with the same ids. The key of the session is the
    id of the conversation, and its user is the scope. The window of the session is the current history. Entries of
    abandoned branches remain in the log as records. A fork has copies of its entries, so deleting a conversation does
    not affect its forks. An expired conversation counts as missing, and so does a session that never had messages and
    has no `ConversationRecord`.

    Args:
        store: A `Store`, an `AsyncStore`, or the URL of a database; URLs for asyncpg and aiosqlite are accepted too.
        prefix: A prefix of all session keys. `%` and `/` of the conversation id are percent-escaped in the key.
        **options: Options of `Store`; only with a URL.

    Raises:
        TypeError: `options` are given together with a store.
        ValueError: The database of the URL is not supported, or an option is invalid.
    """

    def __init__(self, store: Store | AsyncStore | str | sa.URL, *, prefix: str = "", **options: Any) -> None:
        super().__init__(store, **options)
        self._key_prefix = prefix  # a name that the framework's class is unlikely to use

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation.

        If another program wrote to the session, the record is derived from its messages.

        Args:
            conversation_id: The id of the conversation.

        Returns:
            The record, None if the conversation does not exist.

        Raises:
            DamagedMessage: The record cannot be read.
        """
        prefix = self._key_prefix
        stored = await self._read_in_snapshot(
            lambda view: records.read(view, prefix, level_key(conversation_id, prefix))
        )
        return None if stored is None else stored[0]

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of live conversations, the most recently updated first.

        Conversations for which this adapter has stored no record are left out.

        Args:
            scope: Return only the records with this scope.
            limit: The maximum number of records; by default all.

        Returns:
            The records.
        """
        return await self._read_in_snapshot(lambda view: records.read_many(view, self._key_prefix, scope, limit))

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries, all or nothing.

        Args:
            record: The record.
            new_entries: The entries to append.
            expected_revision: The revision of the stored record; None if the conversation must not exist yet.

        Raises:
            ConversationConflict: The stored record has another revision, an entry's id is already stored, or an entry
                that the history needs does not exist. Nothing was written.
            LangoStoreError: The new history would need an entry whose branch was abandoned before a compaction. Fork
                the conversation instead. Nothing was written.
        """
        await self._awaited.run_sync(_save, self._key_prefix, record, new_entries, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its entries.

        Args:
            conversation_id: The id of the conversation.
            expected_revision: The revision of the stored record.

        Raises:
            ConversationConflict: The conversation does not exist, or has another revision. Nothing was deleted.
        """
        await self._awaited.run_sync(_delete, self._key_prefix, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry.

        Args:
            entry_id: The id of the entry.

        Returns:
            The entry.

        Raises:
            KeyError: No live conversation has the entry.
            DamagedMessage: The entry cannot be read.
        """
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the history of an entry: all entries from the first one to it.

        Args:
            head_id: The id of the last entry. None returns an empty list.
            limit: Return only this many of the last entries.

        Returns:
            The entries in order.

        Raises:
            KeyError: No live conversation has the entry, or an entry before it was deleted.
            DamagedMessage: An entry cannot be read.
        """
        if head_id is None or limit == 0:
            return []
        return await self._read_in_snapshot(lambda view: history(view, self._key_prefix, head_id, limit))

    async def _read_in_snapshot(self, read: Callable[[Store], R]) -> R:
        def run(store: Store) -> R:
            with store.snapshot() as view:
                return read(view)

        return await self._awaited.run_sync(run)


# These functions write, in a thread of the store.


def _save(
    store: Store,
    prefix: str,
    record: ConversationRecord,
    entries: Sequence[ConversationEntry],
    expected_revision: str | None,
) -> None:
    """Write a record and its new entries. Raises `ConversationConflict` if the stored revision differs."""
    key = level_key(record.conversation_id, prefix)
    messages = messages_of([entry.message for entry in entries], [str(entry.id) for entry in entries])
    parents: Parents = {str(entry.id): entry.parent_id for entry in entries}

    def write(tx: Store) -> None:
        before = None
        if expected_revision is None:
            _create(tx, key, record.scope)
        else:
            before, info = records.at_revision(tx, prefix, record.conversation_id, expected_revision)
            tx.conversation(key).update(activity=True, expect=info.revision, user_id=record.scope)  # locks the session
        head = None if before is None else before.head_id
        is_linear = [*parents.values(), record.head_id] == [head, *parents]
        new = messages if is_linear else _branch(tx, prefix, record, messages, dict(parents))
        usage = records.added_usage(record, before)
        if new or usage or before is None:
            metadata = turn_metadata(getattr(entry.message, "model_name", None) for entry in entries)
            turn = tx.conversation(key).save_turn(new, usage, metadata=metadata)
            if turn.replayed or any(
                message.replayed for message in turn.messages
            ):  # the id of an entry is already stored
                raise ConversationConflict(record.conversation_id)
        tx.conversation(key).values.set({NAME: records.value_of(record, tx.conversation(key).info())})

    _transact(store, write, record.conversation_id)


def _create(tx: Store, key: str, scope: str | None) -> None:
    """Create the session of a conversation, or use it if it was opened for a turn and is still empty."""
    if not (tx.exists(key) and records.is_unused(tx, tx.conversation(key).update(user_id=scope))):
        create_session(tx, key, user_id=scope)


def _delete(store: Store, prefix: str, conversation_id: str, expected_revision: str) -> None:
    """Delete a conversation and its entries. Raises `ConversationConflict` if the stored revision differs."""

    def write(tx: Store) -> None:
        _, info = records.at_revision(tx, prefix, conversation_id, expected_revision)
        tx.delete(info.key, expect=info.revision)

    _transact(store, write, conversation_id)


def _transact(store: Store, write: Callable[[Store], None], conversation_id: str) -> None:
    try:
        return retry_conflicts(lambda: store.transact(write))  # each try checks the revision again
    except (SessionExists, SessionNotFound) as error:
        raise ConversationConflict(conversation_id) from error


def _branch(
    tx: Store, prefix: str, record: ConversationRecord, messages: Sequence[Message], parents: Parents
) -> list[Message]:
    """Replace the current history with a new one, and return the messages to append.

    Stored entries that the new history no longer has become records, and records that it has again become messages.
    """
    key = level_key(record.conversation_id, prefix)
    log = Log(tx, key)
    try:
        new = [*_entries_of_others(tx, prefix, record, log, parents), *messages]
        new_history = _history(record, log, parents)
    except KeyError as error:
        raise ConversationConflict(record.conversation_id) from error
    moved = log.moved(new_history)
    if moved and (summarized := log.summarized & new_history):
        raise InvalidState(
            f"entry {min(summarized)!r} of session {key!r} belongs to a branch that was abandoned before a summary: "
            "fork the conversation from this entry"
        )
    tx.conversation(key).edits.update_all(moved)
    first = tx.conversation(key).info().last_seq + 1
    seqs: dict[str | None, int] = {id: each.seq for id, each in log.by_id.items()} | {None: 0}
    seqs |= {message.id: seq for seq, message in enumerate(new, first)}
    return [each if each.id in new_history else as_left(each, seqs[parents[str(each.id)]]) for each in new]


def _entries_of_others(tx: Store, prefix: str, record: ConversationRecord, log: Log, parents: Parents) -> list[Message]:
    """Return copies of entries that the new history shares with another conversation, and add them to `parents`."""
    copies: list[Message] = []
    for id in [*parents.values(), record.head_id]:
        if id is None or id in log.by_id or id in parents:
            continue
        other_key, path = path_to(tx, prefix, id)
        parent: str | None = None
        for message in path:
            copy_id = entry_id(other_key, message)
            if copy_id not in log.by_id and copy_id not in parents:
                copies.append(as_shown(message).model_copy(update={"id": copy_id, "seq": 0, "turn_no": None}))
                parents[copy_id] = parent
            parent = copy_id
    return copies


def _history(record: ConversationRecord, log: Log, parents: Parents) -> set[str]:
    """Return the ids of the entries of the new history."""
    history: set[str] = set()
    id = record.head_id
    while id is not None and id in parents and id not in history:
        history.add(id)
        id = parents[id]
    return history | ({entry_id(log.key, message) for message in log.path(id)} if id is not None else set())
