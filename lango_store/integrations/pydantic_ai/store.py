"""pydantic-ai's conversations in a `Store`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord, ConversationStore

from lango_store.aio import AsyncStore
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.pydantic_ai import entries, records, saving
from lango_store.integrations.pydantic_ai.records import Known
from lango_store.store import Store


class LangoConversationStore(Adapter, ConversationStore):
    """A `ConversationStore` on SQLite or PostgreSQL: a conversation is a session, its id the key, its scope `user_id`.

    Takes a `Store`, an `AsyncStore` or a URL with the options of `Store`; closed, it closes what it made. `prefix` goes
    before each id in the key. An entry is a message of the session, its id the message's. The window is the current
    history; what a branch leaves stays in the log as records. A fork has copies of its entries, so that `delete`
    erases all of a conversation and nothing of its forks. An expired conversation is one that is not there.
    """

    def __init__(self, store: Store | AsyncStore | str | sa.URL, *, prefix: str = "", **options: Any) -> None:
        super().__init__(store, **options)
        self._key_prefix = prefix  # no name of a member that the framework's class has, nor one it may have soon

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, None if there is none; of another writer's session it is made up."""
        return await self._awaited.run_sync(_read_record, self._key_prefix, conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records that were written, or those with a scope, newest `updated_at` first, at most `limit`."""
        return await self._awaited.run_sync(_read_records, self._key_prefix, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and the entries that it adds, all or nothing; the usage that it adds is a turn's.

        `ConversationConflict` if the stored record is at another revision, if there is one and None was expected, if an
        entry's id is taken, or if the head is an entry that nobody has.
        """
        await self._awaited.run_sync(_write_record, self._key_prefix, record, tuple(new_entries), expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its entries, those of the branches it left too; forks have copies of theirs.

        `ConversationConflict` if it is not stored at that revision.
        """
        await self._awaited.run_sync(_delete_record, self._key_prefix, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; KeyError if no live conversation has it."""
        return (await self._awaited.run_sync(_read_history, self._key_prefix, entry_id, 1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id` in order, or the last `limit` of them; KeyError if nobody has it."""
        if head_id is None or limit == 0:
            return []
        return await self._awaited.run_sync(_read_history, self._key_prefix, head_id, limit)


def _read_record(store: Store, prefix: str, conversation_id: str) -> ConversationRecord | None:
    with store.context.single_read() as connection:
        return records.read(connection, store.context.moment(connection), prefix, prefix + conversation_id)


def _read_records(store: Store, prefix: str, scope: str | None, limit: int | None) -> list[ConversationRecord]:
    with store.context.single_read() as connection:
        return records.read_many(connection, store.context.moment(connection), prefix, scope, limit)


def _write_record(
    store: Store,
    prefix: str,
    record: ConversationRecord,
    new_entries: Sequence[ConversationEntry],
    expected_revision: str | None,
) -> None:
    saving.Save(store.context, prefix, record, new_entries, expected_revision).run()


def _delete_record(store: Store, prefix: str, conversation_id: str, expected_revision: str) -> None:
    saving.delete(store.context, prefix, conversation_id, expected_revision)


def _read_history(store: Store, prefix: str, head_id: str, limit: int | None) -> list[ConversationEntry]:
    with store.context.single_read() as connection:
        moment = store.context.moment(connection)
        if isinstance(head_id, Known):
            found = entries.history(connection, moment, head_id, limit)
            if found is not None:
                return found
        return entries.way_to(connection, moment, prefix, head_id, limit)
