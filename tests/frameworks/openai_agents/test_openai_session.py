"""`LangoSession` as a session of the framework: methods, limits and errors."""

import asyncio
from typing import Any

import pytest
from agents import Runner
from agents.memory import Session, SessionSettings

from lango_store import InvalidKey, Store
from lango_store.integrations.openai_agents import LangoSession

from .responses import CALL_OSLO, CALL_ROME, EXCHANGE, QUESTION, SAID
from .scripted import agent, says
from .sessions import run, said, texts

pytestmark = pytest.mark.anyio


def test_lango_session_implements_session_protocol(url: str) -> None:
    with Store(url) as store:
        assert isinstance(LangoSession("k", store), Session)


async def test_items_are_added_read_popped_and_cleared(url: str) -> None:
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


async def test_item_added_twice_is_stored_twice(url: str) -> None:
    async with LangoSession("k", url) as session:
        await session.add_items([SAID, SAID])
        await session.add_items([SAID])
        assert await session.get_items() == [SAID] * 3


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
def test_limit_returns_last_items_in_order(url: str, given: int | None, setting: int | None, expected: int) -> None:
    async def main() -> None:
        async with LangoSession("k", url, session_settings=SessionSettings(limit=setting)) as session:
            await session.add_items(EXCHANGE)
            assert await session.get_items(given) == EXCHANGE[len(EXCHANGE) - expected :]

    run(main)


def test_session_settings_can_be_a_dict_and_have_defaults(url: str) -> None:
    with Store(url) as store:
        assert LangoSession("k", store, session_settings={"limit": 5}).session_settings == SessionSettings(limit=5)
        assert LangoSession("k", store).session_settings == SessionSettings()
        with pytest.raises(TypeError, match="limitt"):
            LangoSession("k", store, session_settings={"limitt": 5})


async def test_parallel_tool_calls_are_stored_in_one_message_and_popped_separately(url: str) -> None:
    async with LangoSession("k", url) as session:
        await session.add_items([QUESTION, CALL_OSLO, CALL_ROME])
        assert session.store.conversation("k").info().message_count == 2
        assert await session.get_items(1) == [CALL_ROME]
        assert await session.pop_item() == CALL_ROME
        assert await session.get_items() == [QUESTION, CALL_OSLO]
        assert await session.pop_item() == CALL_OSLO
        assert await session.get_items() == [QUESTION]


async def test_concurrent_pops_return_different_items(store: Store) -> None:
    both = [LangoSession("k", store) for _ in range(2)]
    await both[0].add_items(said(*"abcdefgh"))
    popped = await asyncio.gather(*(both[n % 2].pop_item() for n in range(8)))
    assert sorted(texts(popped)) == list("abcdefgh")


# Session fields and forks


async def test_session_key_is_prefix_and_id(store: Store) -> None:
    await LangoSession("telegram:1/ü%", store, prefix="acme/").add_items(said("a"))
    await LangoSession("1", store, prefix="agents:").add_items(said("b"))
    assert {info.key for info in store.iter_sessions()} == {"agents:1", "acme/telegram:1%2Fü%25"}
    assert texts(await LangoSession("telegram:1/ü%", store, prefix="acme/").get_items()) == ["a"]
    assert texts(await LangoSession("agents:1", store).get_items()) == ["b"]


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
def test_invalid_session_id_is_refused_by_constructor(url: str, session_id: Any, prefix: str, named: str) -> None:
    with Store(url) as store, pytest.raises(InvalidKey, match=named):
        LangoSession(session_id, store, prefix=prefix)


async def test_clear_removes_items_and_keeps_session_fields(store: Store) -> None:
    store.create("k", user_id="ann", title="Weather")
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    await session.clear_session()
    info = store.conversation("k").info()
    assert (info.user_id, info.title, info.message_count, info.record_count) == ("ann", "Weather", 0, 0)


# Concurrent calls


async def test_fork_has_first_items_and_does_not_change_origin(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    store.conversation("k").fork("branch", upto=3)
    branch = LangoSession("branch", store)
    assert await branch.get_items() == EXCHANGE[:4]
    await branch.add_items(EXCHANGE)
    assert await session.get_items() == EXCHANGE


async def test_redacted_items_keep_positions_and_next_run_works(store: Store) -> None:
    session = LangoSession("k", store)
    await session.add_items(EXCHANGE)
    for message in store.conversation("k").all_messages():
        store.conversation("k").edits.redact(message.seq, reason="a password" if message.seq % 2 else None)
    assert await session.get_items() == [
        {"role": "user", "content": "(redacted)"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "(redacted)"},
        {"type": "function_call_output", "call_id": "call_1", "output": "(redacted)"},
        {"type": "function_call_output", "call_id": "call_2", "output": "(redacted)"},
        {"role": "assistant", "content": "(redacted)"},
    ]
    result = await Runner.run(agent(says("Cold.")), "And now?", session=session)
    assert result.final_output == "Cold."
    for _ in range(8):
        assert await session.pop_item() is not None
    assert await session.get_items() == []
