"""pydantic-ai's conversations in a `Store`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

from lango_store import AsyncStore, LangoStoreError, Message, SessionExists, SessionNotFound, Store
from lango_store.integrations.adapter import Adapter, create_session, retry_conflicts
from lango_store.integrations.fields import level_key
from lango_store.integrations.pydantic_ai import records
from lango_store.integrations.pydantic_ai.items import NAME, messages_of
from lango_store.integrations.pydantic_ai.records import Log, as_left, as_shown, entry_id, history, way_to

R = TypeVar("R")

Parents = dict[str, str | None]
"""The ids of entries about to be stored, and of the entries before them."""


class LangoConversationStore(Adapter, ConversationStore):
    """A `ConversationStore` on SQLite or PostgreSQL: a conversation is a session, its id the key, its scope `user_id`.

    Takes a `Store`, an `AsyncStore` or a URL with the options of `Store`; closed, it closes what it made. `prefix` goes
    before each id in the key, and `%` and `/` of the id are percent-escaped there. An entry is a message of the
    session, its id the message's. The window is the current history; what a branch leaves stays in the log as records.
    A fork has copies of its entries, so that `delete` erases all of a conversation and nothing of its forks. An expired
    conversation is one that is not there.
    """

    def __init__(self, store: Store | AsyncStore | str | sa.URL, *, prefix: str = "", **options: Any) -> None:
        super().__init__(store, **options)
        self._key_prefix = prefix  # no name of a member that the framework's class has, nor one it may have soon

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, None if there is none; of another writer's session it is made up."""
        prefix = self._key_prefix
        found = await self._read_in_snapshot(
            lambda view: records.read(view, prefix, level_key(conversation_id, prefix))
        )
        return None if found is None else found[0]

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records that were written, or those with a scope, newest `updated_at` first, at most `limit`."""
        return await self._read_in_snapshot(lambda view: records.read_many(view, self._key_prefix, scope, limit))

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries, all or nothing; `ConversationConflict` if another writer was first."""
        await self._awaited.run_sync(_save, self._key_prefix, record, new_entries, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its entries; `ConversationConflict` if it is not stored at that revision."""
        await self._awaited.run_sync(_delete, self._key_prefix, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; KeyError if no live conversation has it."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id` in order, or the last `limit` of them; KeyError if it does not exist."""
        if head_id is None or limit == 0:
            return []
        return await self._read_in_snapshot(lambda view: history(view, self._key_prefix, head_id, limit))

    async def _read_in_snapshot(self, read: Callable[[Store], R]) -> R:
        def run(store: Store) -> R:
            with store.snapshot() as view:
                return read(view)

        return await self._awaited.run_sync(run)


# Writes, called in a thread of the store


def _save(
    store: Store,
    prefix: str,
    record: ConversationRecord,
    entries: Sequence[ConversationEntry],
    expected_revision: str | None,
) -> None:
    """Write a record and its new entries; `ConversationConflict` if it is not at that revision."""
    key = level_key(record.conversation_id, prefix)
    messages = messages_of([entry.message for entry in entries], [str(entry.id) for entry in entries])
    parents: Parents = {str(entry.id): entry.parent_id for entry in entries}

    def write(tx: Store) -> None:
        before = None
        if expected_revision is None:
            create_session(tx, key, user_id=record.scope)
        else:
            before, info = records.at_revision(tx, prefix, record.conversation_id, expected_revision)
            tx.update(key, activity=True, expect=info.revision, user_id=record.scope)  # locks the session
        head = None if before is None else before.head_id
        follows = [*parents.values(), record.head_id] == [head, *parents]
        new = messages if follows else _branched(tx, prefix, record, messages, dict(parents))
        usage = records.added_usage(record, before)
        if new or usage or before is None:
            turn = tx.conversation(key).save_turn(new, usage)
            if turn.replayed or any(message.replayed for message in turn.messages):  # an entry's id is taken
                raise ConversationConflict(record.conversation_id)
        tx.set_values(key, {NAME: records.value_of(record, tx.info(key))})

    _transact(store, write, record.conversation_id)


def _delete(store: Store, prefix: str, conversation_id: str, expected_revision: str) -> None:
    """Delete a conversation and all of its entries; `ConversationConflict` if it is not at that revision."""

    def write(tx: Store) -> None:
        _, info = records.at_revision(tx, prefix, conversation_id, expected_revision)
        tx.delete(info.key, expect=info.revision)

    _transact(store, write, conversation_id)


def _transact(store: Store, write: Callable[[Store], None], conversation_id: str) -> None:
    try:
        return retry_conflicts(lambda: store.transact(write))  # which asks again whether the record is at its revision
    except (SessionExists, SessionNotFound) as error:
        raise ConversationConflict(conversation_id) from error


def _branched(
    tx: Store, prefix: str, record: ConversationRecord, messages: Sequence[Message], parents: Parents
) -> list[Message]:
    """Return the messages to append; what the new history leaves becomes records, what it takes up, messages."""
    key = level_key(record.conversation_id, prefix)
    log = Log(tx, key)
    try:
        new = [*_entries_of_others(tx, prefix, record, log, parents), *messages]
        new_history = _history(record, log, parents)
    except KeyError as error:
        raise ConversationConflict(record.conversation_id) from error
    moved = log.moved(new_history)
    if moved and (summarized := log.summarized & new_history):
        raise LangoStoreError(
            f"entry {min(summarized)!r} of session {key!r} was left before a summary took the place of what came then: "
            "fork the conversation from it"
        )
    for message in moved:
        tx.conversation(key).update_message(message.seq, message)
    first = tx.info(key).last_seq + 1
    seqs: dict[str | None, int] = {id: each.seq for id, each in log.by_id.items()} | {None: 0}
    seqs |= {message.id: seq for seq, message in enumerate(new, first)}
    return [each if each.id in new_history else as_left(each, seqs[parents[str(each.id)]]) for each in new]


def _entries_of_others(tx: Store, prefix: str, record: ConversationRecord, log: Log, parents: Parents) -> list[Message]:
    """Return copies of what the new history shares with another conversation, and add them to `parents`."""
    copies: list[Message] = []
    for id in [*parents.values(), record.head_id]:
        if id is None or id in log.by_id or id in parents:
            continue
        other, way = way_to(tx, prefix, id)
        parent: str | None = None
        for message in way:
            own = entry_id(other, message)
            if own not in log.by_id and own not in parents:
                copies.append(as_shown(message).model_copy(update={"id": own, "seq": 0, "turn_no": None}))
                parents[own] = parent
            parent = own
    return copies


def _history(record: ConversationRecord, log: Log, parents: Parents) -> set[str]:
    """Return the ids of the entries of the new history."""
    history: set[str] = set()
    id = record.head_id
    while id is not None and id in parents and id not in history:
        history.add(id)
        id = parents[id]
    return history | ({entry_id(log.key, message) for message in log.way(id)} if id is not None else set())
