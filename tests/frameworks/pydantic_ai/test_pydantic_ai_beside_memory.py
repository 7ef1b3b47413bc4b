"""Random calls: the store returns the same results as the framework's in-memory store."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

from frameworks.pydantic_ai.talking import asked, said
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.usage import RunUsage

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

_examples = itertools.count()
_texts = itertools.count()


class Both:
    """The store and the in-memory store, which must return equal results."""

    def __init__(self, ours: ConversationStore, data: st.DataObject) -> None:
        self.stores: list[ConversationStore] = [InMemoryConversationStore(), ours]
        self.data = data
        self.entries: list[str] = []
        self.revisions: list[str] = []
        self.shared: dict[str, int] = {}
        """The requests that each fork shares with its original conversation."""

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a primitive of both stores, and check that results or errors are equal."""
        results = []
        for store in self.stores:
            try:
                results.append(await getattr(store, method)(*arguments, **options))
            except (ConversationConflict, LookupError) as error:
                results.append(ConversationConflict if isinstance(error, ConversationConflict) else LookupError)
        assert results[0] == results[1]
        return results[1]

    async def write(self) -> None:
        draw = self.data.draw
        id = draw(st.sampled_from("abc"))
        record = await self.call("read_record", id)
        old = record or ConversationRecord(conversation_id=id, head_id=None)
        expected = old.revision if record is not None else None
        if draw(st.integers(0, 9)) == 0:
            expected = draw(st.sampled_from([None, "nothing", *self.revisions]))
        parent: str | None = old.head_id
        if draw(st.integers(0, 2)) == 0:
            parent = draw(st.sampled_from([None, *self.entries]))
        new: list[ConversationEntry] = []
        for _ in range(draw(st.integers(0, 3))):
            number = next(_texts)
            message = asked(f"{number}") if draw(st.booleans()) else said(f"{number}")
            new.append(ConversationEntry(parent_id=parent, message=message))
            parent = new[-1].id
        head = draw(st.sampled_from([parent, *(entry.id for entry in new)])) if new else parent
        if draw(st.integers(0, 19)) == 0:
            head = "nobody"
        updated = replace(
            old,
            head_id=head,
            usage=RunUsage(requests=draw(st.integers(0, 5)), details=draw(st.sampled_from([{}, {"a": 1}]))),
            scope=draw(st.sampled_from([None, "ann", "bob"])),
            branches=[*old.branches, old.head_id] if old.head_id and draw(st.booleans()) else old.branches,
            revision=f"r{next(_texts)}",
        )
        if record is None and draw(st.booleans()):
            updated.forked_from, updated.forked_at = draw(st.sampled_from("abc")), head
        if draw(st.booleans()):  # an entry id does not identify its conversation
            updated.head_id = updated.head_id and str(updated.head_id)
        known = {head} | {entry.parent_id for entry in new[:1]}
        if not known - {None, *(entry.id for entry in new)} <= await self.stored():
            head = "nobody"  # an entry whose parent is gone; memory keeps it, and cannot read it
        if head == "nobody":
            updated.head_id, new = "nobody", []
        if await self.call("write_record", updated, new_entries=new, expected_revision=expected) is None:
            self.entries += [entry.id for entry in new]
            self.revisions.append(updated.revision)
            if record is None:
                self.shared[id] = 0 if updated.forked_from is None else updated.usage.requests

    async def stored(self) -> set[str | None]:
        """Return the entries that stored conversations reach: the in-memory store deletes other entries only later."""
        found: set[str | None] = set()
        for record in await self.stores[0].read_records():
            for tip in (record.head_id, *record.branches):
                found |= {entry.id for entry in await self.stores[0].read_history(tip)}
        return found

    async def delete(self) -> None:
        id = self.data.draw(st.sampled_from("abc"))
        record = await self.call("read_record", id)
        await self.call("delete_record", id, expected_revision="old" if record is None else record.revision)

    async def look(self) -> None:
        for scope in (None, "ann"):
            for limit in (None, 1, 2):
                await self.call("read_records", scope=scope, limit=limit)
        for record in await self.call("read_records"):
            for head in (record.head_id, *record.branches):
                for limit in (None, 0, 1, 2):
                    await self.call("read_history", head, limit=limit)
                    await self.call("read_history", head and str(head), limit=limit)
        for id in await self.stored():
            await self.call("read_entry", str(id))


def test_random_calls_return_same_results_as_in_memory_store(url: str) -> None:
    with Store(url) as store:

        @given(st.data())
        def test(data: st.DataObject) -> None:
            async def main() -> None:
                prefix = f"{next(_examples)}/"
                async with LangoConversationStore(store, prefix=prefix) as ours:
                    both = Both(ours, data)
                    for _ in range(data.draw(st.integers(1, 10))):
                        await (both.delete() if data.draw(st.integers(0, 5)) == 0 else both.write())
                        await both.look()
                        for record in await ours.read_records():
                            total = store.conversation(prefix + record.conversation_id).total_usage()
                            shared = both.shared[record.conversation_id]
                            assert total.get("requests", 0) == record.usage.requests - shared

            asyncio.run(main())

        test()
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
