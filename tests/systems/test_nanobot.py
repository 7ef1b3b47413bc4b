"""Scenarios of nanobot's session architecture: channel keys, history and consolidation."""

from typing import Any

import pytest
from support.factories import message

from lango_store import Message, Store

WEATHER: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there!"},
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "NYC"}'}}
        ],
    },
    {"role": "tool", "content": "22.5C", "tool_call_id": "call_1", "name": "get_weather"},
    {"role": "assistant", "content": "22.5C."},
]


def weather() -> list[Message]:
    only_ours = {"timestamp": "2026-02-01T12:00:01Z", "tools_used": ["web_search"]}
    return [Message.from_openai(each | only_ours) for each in WEATHER]


@pytest.mark.parametrize("key", ["telegram:12345678", "discord:987654321", "cli:direct", "cron:job-abc123", "a b/🌍"])
def test_session_key_can_be_a_channel_and_a_chat_id(store: Store, key: str) -> None:
    store.open(key)
    assert store.get(key).key == key


def test_get_or_create_returns_stored_or_empty_session(store: Store) -> None:
    assert store.open("cli:direct").get().messages == []
    store.append_message("cli:direct", message("x"))
    assert [m.content for m in store.open("cli:direct").get().messages] == ["x"]


def test_history_has_only_fields_of_chat_apis(store: Store) -> None:
    session = store.open("telegram:12345678", messages=weather())
    assert session.history() == WEATHER
    assert session.messages()[0].extra["tools_used"] == ["web_search"]


def test_history_returns_last_messages(store: Store) -> None:
    session = store.open("k", messages=weather())
    assert session.history(last=4) == WEATHER[2:]


def test_history_starts_with_user_message_if_any(store: Store) -> None:
    session = store.open("k", messages=weather())
    assert session.history(last=5) == WEATHER[2:]
    assert session.history(last=1) == WEATHER[5:]


def test_history_never_starts_with_tool_result_without_call(store: Store) -> None:
    session = store.open("k", messages=weather())
    assert session.history(last=2) == WEATHER[5:]


def test_history_omits_consolidated_messages(store: Store) -> None:
    session = store.open("k", messages=weather())
    session.update(last_consolidated=2)
    assert session.history(from_consolidated=True) == WEATHER[2:]
    assert session.history() == WEATHER
    session.update(last_consolidated=6)
    assert session.history(from_consolidated=True) == []


def test_last_consolidated_never_exceeds_the_number_of_messages(store: Store) -> None:
    session = store.open("k", messages=weather())
    for wrong in (7, -1):
        with pytest.raises(ValueError, match="last_consolidated"):
            session.update(last_consolidated=wrong)
    session.update(last_consolidated=6)
    session.truncate(after=3)
    assert session.info().last_consolidated == 3


def test_clear_resets_last_consolidated(store: Store) -> None:
    session = store.open("k", messages=weather())
    session.update(last_consolidated=2)
    session.clear()
    assert (session.info().last_consolidated, session.history()) == (0, [])


def test_reads_see_at_once_what_another_conversation_object_appended(store: Store) -> None:
    """Reads see the writes of other handles, because nothing is cached."""
    session, other = store.open("k"), store.open("k")
    other.append_message(message("x"))
    assert [m.content for m in session.messages()] == ["x"]
