"""`OpenAIResponsesCompactionSession` over `LangoSession`: atomic replacement that loses no new item."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Runner
from agents.memory import OpenAIResponsesCompactionSession, SessionSettings

from lango_store import Conflict, Message, Store
from lango_store.integrations.openai_agents import LangoSession

from .responses import EXCHANGE, QUESTION, Item
from .scripted import agent, asks, says, total

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

SUMMARY: list[Item] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAAA"},
]
LATER: Item = {"role": "user", "content": "meanwhile"}


class Client:
    """A client that compacts: it calls `meanwhile`, then returns `SUMMARY`."""

    def __init__(self, meanwhile: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.responses = self
        self.seen: list[Any] = []
        self._meanwhile = meanwhile

    async def compact(self, **options: Any) -> Any:
        self.seen.append(options.get("input"))
        if self._meanwhile is not None:
            await self._meanwhile()
        return SimpleNamespace(output=SUMMARY, usage=None)


def compacting(session: LangoSession, client: Client) -> OpenAIResponsesCompactionSession:
    options: dict[str, Any] = {"client": client}
    return OpenAIResponsesCompactionSession(
        "k", session, **options, should_trigger_compaction=lambda _: True, compaction_mode="input"
    )


def atomic() -> bool:
    """Return whether the framework lets a session replace its items; 0.21 does not."""
    return hasattr(OpenAIResponsesCompactionSession, "_add_items_with_generation")


async def test_session_is_compacted_at_the_end_of_a_run(store: Store) -> None:
    session, client = LangoSession("k", store), Client()
    steps = [asks("Oslo"), says("Cold.")]
    await Runner.run(agent(*steps), "Weather?", session=compacting(session, client))
    assert len(client.seen) == 1
    assert await session.get_items() == SUMMARY
    await Runner.run(agent(says("Still.")), "And now?", session=session)
    assert await session.get_items(2) == (await session.get_items())[-2:]
    assert (await session.get_items())[:2] == SUMMARY
    assert store.conversation("k").total_usage() == total(20)


async def test_compacted_items_and_usage_stay_in_the_log(store: Store) -> None:
    session = LangoSession("k", store)
    await Runner.run(agent(says("Cold.")), "Weather?", session=session)
    await compacting(session, Client()).run_compaction({"force": True})
    assert await session.get_items() == SUMMARY
    if atomic():
        conversation = store.conversation("k")
        assert [message.content for message in conversation.all_messages()][:2] == ["Weather?", "Cold."]
        assert conversation.total_usage() == total(20)
        assert len(conversation.turns.list_compactions()) == 1


async def test_item_added_during_compaction_stays_after_the_summary(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    client = Client(lambda: LangoSession("k", store).add_items([LATER]))
    await compacting(session, client).run_compaction({"force": True})
    if not atomic():  # 0.21 clears and adds in two calls
        assert await session.get_items() == SUMMARY
        return
    assert client.seen == [EXCHANGE]
    for limit in (None, -1, 3, 10):
        assert await session.get_items(limit) == [*SUMMARY, LATER]
    assert await session.get_items(2) == [SUMMARY[1], LATER]
    assert await session.get_items(1) == [LATER]
    left = [*SUMMARY, LATER]
    while left:
        assert await session.pop_item() == left.pop()
        assert await session.get_items() == left
    assert await session.pop_item() is None


async def test_popping_a_summary_restores_no_items(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    await compacting(session, Client()).run_compaction({"force": True})
    assert [await session.pop_item() for _ in range(3)] == [SUMMARY[1], SUMMARY[0], None]
    assert await session.get_items() == []
    await session.add_items([QUESTION])
    assert await session.get_items() == [QUESTION]


async def test_second_compaction_replaces_first_summary_and_later_items(store: Store) -> None:
    session, client = LangoSession("k", store), Client()
    compaction = compacting(session, client)
    await compaction.add_items(EXCHANGE)
    await compaction.run_compaction({"force": True})
    await compaction.add_items([LATER])
    await compaction.run_compaction({"force": True})
    assert client.seen == [EXCHANGE, [*SUMMARY, LATER]]
    assert await session.get_items() == SUMMARY


async def test_summary_is_refused_if_an_item_is_removed_during_the_compaction(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    compaction = compacting(session, Client(session.pop_item))
    if not atomic():
        await compaction.run_compaction({"force": True})
        assert await session.get_items() == SUMMARY
        return
    with pytest.raises(Conflict):
        await compaction.run_compaction({"force": True})
    assert await session.get_items() == EXCHANGE[:-1]


async def test_compaction_replaces_only_the_items_that_it_read(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)

    async def meanwhile() -> None:
        await session.add_items([LATER])
        other = asyncio.create_task(session._read_compaction_items(None))
        assert await other == ([*EXCHANGE, LATER], True)

    await compacting(session, Client(meanwhile)).run_compaction({"force": True})
    assert await session.get_items() == ([*SUMMARY, LATER] if atomic() else SUMMARY)


async def test_summary_replaces_all_items_if_no_items_were_read_before(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    assert await session._atomic_replace_items(SUMMARY) is True
    assert await session.get_items() == SUMMARY
    assert len(store.conversation("k").turns.list_compactions()) == 1


async def test_manual_compaction_replaces_all_items_despite_a_limit(store: Store) -> None:
    session, client = LangoSession("k", store, session_settings=SessionSettings(limit=2)), Client()
    await session.add_items(EXCHANGE)
    await compacting(session, client).run_compaction({"force": True})
    assert client.seen == [EXCHANGE[-2:]]
    assert await session.get_items(-1) == SUMMARY


# Replacing the end of a session


async def snapshot(session: LangoSession, limit: int) -> Any:
    return await session._get_compaction_snapshot(limit, prune_prefix=lambda item: True)


async def test_replacing_the_last_items_by_a_summary_keeps_earlier_items(store: Store) -> None:
    for number, (limit, start) in enumerate(itertools.product((3, 7, 20), (0, 1, 2))):
        session = LangoSession(f"k{number}", store)
        await session.add_items([*EXCHANGE, *EXCHANGE])
        seen = await snapshot(session, limit)
        assert seen.items[-limit:] == [*EXCHANGE, *EXCHANGE][-limit:]
        assert seen.complete is (limit == 20)
        kept = 14 - len(seen.items) + start
        assert await seen.replace_suffix(start, SUMMARY) is True
        assert await session.get_items() == [*[*EXCHANGE, *EXCHANGE][:kept], *SUMMARY]
        assert await seen.replace_suffix(start, SUMMARY) is False
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []


async def test_last_items_are_not_replaced_if_the_end_of_the_session_has_changed(store: Store) -> None:
    writes: list[Callable[[LangoSession], Awaitable[Any]]] = [
        lambda session: session.add_items([LATER]),
        lambda session: session.pop_item(),
        lambda session: session.clear_session(),
        lambda session: asyncio.to_thread(store.delete, session.session_id),
    ]
    for number, write in enumerate(writes):
        session = LangoSession(f"k{number}", store)
        await session.add_items([*EXCHANGE, *EXCHANGE])
        seen, whole = await snapshot(session, 4), await snapshot(session, 20)
        await write(session)
        there = await session.get_items()
        assert await seen.replace_suffix(0, SUMMARY) is False
        assert await session.get_items() == there
        assert await whole.replace_suffix(0, SUMMARY) is (number == 0)
        assert await session.get_items() == (there if number else [*SUMMARY, LATER])


async def test_replacement_by_a_summary_can_begin_between_two_calls_of_one_message(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    seen = await snapshot(session, 4)
    assert seen.items == EXCHANGE[2:]
    assert await seen.replace_suffix(1, SUMMARY) is True
    assert await session.get_items() == [*EXCHANGE[:3], *SUMMARY]


async def test_usage_is_kept_when_last_items_are_compacted(store: Store) -> None:
    session = LangoSession("k", store)
    await Runner.run(agent(says("Cold.")), "Weather?", session=session)
    await Runner.run(agent(says("Still.", cost=30)), "And now?", session=session)
    seen = await snapshot(session, 2)
    assert await seen.replace_suffix(0, SUMMARY)
    assert store.conversation("k").total_usage() == total(20, 30)


async def test_empty_session_is_not_compacted(store: Store) -> None:
    session = LangoSession("k", store)
    assert await snapshot(session, 5) is None
    client = Client(lambda: LangoSession("k", store).add_items([LATER]))
    await compacting(session, client).run_compaction()
    assert await session.get_items() == ([LATER, *SUMMARY] if atomic() else SUMMARY)


async def test_summary_stored_with_conversation_compact_is_returned_as_an_item(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    store.conversation("k").compact(lambda window: Message.system(f"{len(window)} messages"))
    await session.add_items([LATER])
    assert await session.get_items() == [{"role": "system", "content": "5 messages"}, LATER]
