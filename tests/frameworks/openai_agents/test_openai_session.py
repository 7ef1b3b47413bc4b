"""`LangoSession` is a session for the framework: its verbs, its limits, its life, and what is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from agents.memory import Session, SessionSettings
from support.databases import MakeDatabase

from lango_store import DamagedMessage, InvalidKey, Message, Store
from lango_store.integrations.openai_agents import LangoSession
from lango_store.testing import Clock

from .responses import CALL_OSLO, CALL_ROME, EXCHANGE, QUESTION, SAID
from .sessions import run, said, texts


def test_it_is_a_session_for_the_framework(url: str) -> None:
    with Store(url) as store:
        assert isinstance(LangoSession("k", store), Session)


def test_items_are_added_read_popped_and_cleared(url: str) -> None:
    async def main() -> None:
        async with LangoSession("k", url) as session:
            assert await session.get_items() == []
            assert await session.pop_item() is None
            await session.clear_session()
            await session.add_items([])
            assert not session.store.exists("k")
            await session.add_items(EXCHANGE)
            await session.add_items(said("thanks"))
            assert await session.get_items() == [*EXCHANGE, *said("thanks")]
            assert await session.pop_item() == said("thanks")[0]
            assert await session.get_items() == EXCHANGE
            await session.clear_session()
            assert await session.get_items() == []
            assert await session.pop_item() is None
            await session.add_items(said("again"))
            assert await session.get_items() == said("again")

    run(main)


def test_an_item_is_stored_as_often_as_it_is_added(url: str) -> None:
    async def main() -> None:
        async with LangoSession("k", url) as session:
            await session.add_items([SAID, SAID])
            await session.add_items([SAID])
            assert await session.get_items() == [SAID] * 3

    run(main)


@pytest.mark.parametrize(
    ("given", "setting", "expected"),
    [
        (None, None, 7),
        (None, 2, 2),
        (None, 0, 0),
        (None, -1, 7),
        (3, None, 3),
        (3, 2, 3),
        (0, 2, 0),
        (0, None, 0),
        (-1, 2, 7),
        (100, 2, 7),
        (2**31 - 1, None, 7),
        (2**70, None, 7),
    ],
)
def test_a_limit_is_the_last_items_in_their_order(
    url: str, given: int | None, setting: int | None, expected: int
) -> None:
    async def main() -> None:
        async with LangoSession("k", url, session_settings=SessionSettings(limit=setting)) as session:
            await session.add_items(EXCHANGE)
            assert await session.get_items(given) == EXCHANGE[len(EXCHANGE) - expected :]

    run(main)


def test_settings_may_be_a_dict_and_are_there_if_none_are_given(url: str) -> None:
    with Store(url) as store:
        assert LangoSession("k", store, session_settings={"limit": 5}).session_settings == SessionSettings(limit=5)
        assert LangoSession("k", store).session_settings == SessionSettings()
        with pytest.raises(TypeError, match="limitt"):
            LangoSession("k", store, session_settings={"limitt": 5})


def test_calls_side_by_side_are_one_message_and_popped_one_by_one(url: str) -> None:
    async def main() -> None:
        async with LangoSession("k", url) as session:
            await session.add_items([QUESTION, CALL_OSLO, CALL_ROME])
            assert session.store.info("k").message_count == 2
            assert await session.get_items(1) == [CALL_ROME]
            assert await session.pop_item() == CALL_ROME
            assert await session.get_items() == [QUESTION, CALL_OSLO]
            assert await session.pop_item() == CALL_OSLO
            assert await session.get_items() == [QUESTION]

    run(main)


def test_two_callers_that_pop_get_different_items(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            both = [LangoSession("k", store) for _ in range(2)]
            await both[0].add_items(said(*"abcdefgh"))
            popped = await asyncio.gather(*(both[n % 2].pop_item() for n in range(8)))
            assert sorted(texts(popped)) == list("abcdefgh")

    run(main)


# The session


def test_the_id_is_the_key_after_a_prefix_if_there_is_one(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            await LangoSession("telegram:1/ü%", store).add_items(said("a"))
            await LangoSession("1", store, prefix="agents:").add_items(said("b"))
            assert [info.key for info in store.iter_sessions()] == ["agents:1", "telegram:1/ü%"]
            assert store.open("telegram:1/ü%").messages()[0].content == "a"
            assert texts(await LangoSession("agents:1", store).get_items()) == ["b"]

    run(main)


@pytest.mark.parametrize(
    ("session_id", "prefix", "named"),
    [
        ("", "", "1 to 512"),
        ("\x00", "", "NUL"),
        ("\ud800", "", "surrogate"),
        (5, "", "is int, not text"),
        ("i" * 513, "", "513"),
        ("i" * 400, "p" * 300, "700"),
    ],
)
def test_an_id_that_is_no_key_is_refused_when_the_session_is_made(
    url: str, session_id: Any, prefix: str, named: str
) -> None:
    with Store(url) as store, pytest.raises(InvalidKey, match=named):
        LangoSession(session_id, store, prefix=prefix)


def test_an_expired_session_counts_as_absent_and_the_next_item_begins_it_anew(url: str, clock: Clock) -> None:
    async def main() -> None:
        with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
            session = LangoSession("k", store)
            await session.add_items(said("old"))
            clock.move(hours=2)
            assert await session.get_items() == []
            assert await session.get_items(3) == []
            assert await session.pop_item() is None
            await session.clear_session()
            assert store.info("k", expired=True).message_count == 1
            await session.add_items(said("new"))
            assert texts(await session.get_items()) == ["new"]
            assert store.info("k").expires_at == clock() + timedelta(hours=1)

    run(main)


def test_a_clear_takes_the_items_and_leaves_what_is_known_of_the_session(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            store.create("k", user_id="ann", title="Weather")
            session = LangoSession("k", store)
            await session.add_items(EXCHANGE)
            await session.clear_session()
            info = store.info("k")
            assert (info.user_id, info.title, info.message_count, info.record_count) == ("ann", "Weather", 0, 0)

    run(main)


@pytest.mark.parametrize(
    ("seq", "field", "column", "value"),
    [
        (3, "tool_calls", "tool_calls", '[{"id": "call_1"}]'),
        (3, "tool_calls", "tool_calls", '[{"name": 5, "id": "call_1"}]'),
        (3, "tool_calls", "tool_calls", '{"id": "call_1"}'),
        (3, "tool_calls", "tool_calls", "5"),
        (3, "extra", "extra", '{"openai_agents": [{}]}'),
        (6, "extra", "extra", '{"openai_agents": [{}, {}]}'),
        (6, "extra", "extra", '{"openai_agents": [{"content": 5}]}'),
        (6, "extra", "extra", '{"openai_agents": 5}'),
        (6, "extra", "extra", "5"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(url: str, seq: int, field: str, column: str, value: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            session = LangoSession("k", store)
            await session.add_items(EXCHANGE)
            with store.engine.begin() as connection:
                damage = sa.text(f"UPDATE lango_message SET {column} = :value WHERE seq = :seq")
                if connection.dialect.name == "postgresql":
                    damage = sa.text(f"UPDATE lango_message SET {column} = CAST(:value AS JSON) WHERE seq = :seq")
                connection.execute(damage, {"seq": seq, "value": value})
            with pytest.raises(DamagedMessage) as caught:
                await session.get_items()
            assert (caught.value.seq, caught.value.field.split(".")[0]) == (seq, field)
            assert await session.get_items(1) == EXCHANGE[-1:] if seq != 6 else True

    run(main)


@pytest.mark.parametrize(
    ("seq", "field", "change"),
    [
        (1, "text", "text = x'ff'"),
        (1, "text", "text = CAST(x'ff' AS TEXT)"),
        (1, "role", "role = 'nobody'"),
        (3, "role", "role = 'nobody'"),
        (6, "role", "role = 'nobody'"),
        (2, "content", "content = '{'"),
        (3, "tool_calls", "tool_calls = '[{]'"),
    ],
)
def test_what_only_a_file_can_hold_is_named_too(make_sqlite: MakeDatabase, seq: int, field: str, change: str) -> None:
    async def main() -> None:
        with Store(make_sqlite()) as store:
            session = LangoSession("k", store)
            await session.add_items(EXCHANGE)
            with store.engine.begin() as connection:
                connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
                connection.exec_driver_sql(f"UPDATE lango_message SET {change} WHERE seq = {seq}")
            with pytest.raises(DamagedMessage) as caught:
                await session.get_items()
            assert (caught.value.seq, caught.value.field) == (seq, field)

    run(main)


# Several at once


def test_items_of_eight_writers_are_all_there_each_batch_whole(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            writers = [LangoSession("k", store) for _ in range(8)]

            async def write(number: int) -> None:
                for batch in range(10):
                    await writers[number].add_items(said(f"{number} {batch} a", f"{number} {batch} b"))

            await asyncio.gather(*map(write, range(8)))
            found = texts(await writers[0].get_items())
            assert len(found) == 160
            assert all(one[:-1] == other[:-1] for one, other in zip(found[::2], found[1::2], strict=True))
            for number in range(8):
                mine = [text for text in found if text.startswith(f"{number} ")]
                assert mine == [f"{number} {batch} {part}" for batch in range(10) for part in "ab"]

    run(main)


def test_a_cancelled_write_is_known_to_have_landed_or_never_does(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            session = LangoSession("k", store)
            for number in range(30):
                task = asyncio.create_task(session.add_items(said(str(number))))
                await asyncio.sleep(0)
                if number % 2:
                    await asyncio.sleep(0.001)
                task.cancel()
                before: list[str] | None = None
                try:
                    await task
                except asyncio.CancelledError:
                    before = texts(await session.get_items())
                assert before is None or texts(await session.get_items()) == before
            assert store.info("k").message_count == len(set(texts(await session.get_items())))

    run(main)


def test_a_message_of_ours_is_in_the_frameworks_next_question(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            session = LangoSession("k", store)
            await session.add_items(said("a"))
            store.append_message("k", Message.assistant("b"))
            assert texts(await session.get_items()) == ["a", "b"]

    run(main)
