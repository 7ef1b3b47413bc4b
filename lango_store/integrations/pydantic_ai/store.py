"""pydantic-ai's conversations in a `Store`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord, ConversationStore

from lango_store import AsyncStore, Store
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.pydantic_ai import log, records, saving

R = TypeVar("R")


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
        prefix = self._key_prefix
        found = await self._read_in_snapshot(lambda view: records.read(view, prefix, prefix + conversation_id))
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
        await self._awaited.run_sync(saving.save, self._key_prefix, record, new_entries, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its entries; `ConversationConflict` if it is not stored at that revision."""
        await self._awaited.run_sync(saving.delete, self._key_prefix, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; KeyError if no live conversation has it."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id` in order, or the last `limit` of them; KeyError if it does not exist."""
        if head_id is None or limit == 0:
            return []
        return await self._read_in_snapshot(lambda view: log.history(view, self._key_prefix, head_id, limit))

    async def _read_in_snapshot(self, read: Callable[[Store], R]) -> R:
        def run(store: Store) -> R:
            with store.snapshot() as view:
                return read(view)

        return await self._awaited.run_sync(run)
