"""Scenarios of Shepherd's session module: tokens, eviction, tools, clear, last messages."""

import pytest
from support.awaiting import awaiting

from lango_store import AsyncStore, Message, MessageRole, Store, window
from lango_store.testing import Clock


def said(role: str, content: str, tokens: int | None = None) -> Message:
    return Message(role=MessageRole(role), content=content, tokens=tokens)


TALK = [said("system", "be kind", 9), said("user", "hello", 5), said("assistant", "hi", 3), said("user", "more", 4)]


def test_messages_and_session_have_token_counts(store: Store) -> None:
    session = store.open("s", messages=TALK)
    assert [m.tokens for m in session.messages()] == [9, 5, 3, 4]
    assert session.info().token_count == 21
    session.append_message(said("assistant", "sure", 10))
    assert session.info().token_count == 31
    session.pop_message()
    assert session.info().token_count == 21


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tokens_are_counted_if_not_provided(kind: str, url: str, clock: Clock) -> None:
    def count(message: Message) -> int:
        return len(str(message.content).split())

    def check(store: Store) -> None:
        session = store.open("s", messages=[said("user", "three short words"), said("user", "x", 7)])
        session.append_message(said("assistant", "two words"))
        session.save_turn([said("user", "one")])
        assert [m.tokens for m in session.messages()] == [3, 7, 2, 1]
        assert session.info().token_count == 13

    if kind == "sync":
        with Store(url, clock=clock, token_counter=count) as store:
            check(store)
    else:
        with awaiting(AsyncStore(url, clock=clock, token_counter=count)) as store:
            check(store)


def test_fit_drops_whole_turns_and_keeps_system_message(store: Store) -> None:
    session = store.open("s", messages=TALK)
    kept = window.fit(session.messages(), 13)
    assert [m.content for m in kept] == ["be kind", "more"]


def test_history_fits_token_budget(store: Store) -> None:
    session = store.open("s", messages=TALK)
    assert [m["content"] for m in session.history(max_tokens=11)] == ["be kind"]
    assert [m["content"] for m in session.history(max_tokens=21)] == ["be kind", "hello", "hi", "more"]


def test_history_with_max_tokens_needs_a_counter_for_uncounted_messages(store: Store) -> None:
    session = store.open("s", messages=[said("user", "hello")])
    with pytest.raises(ValueError, match=r"tokens.*token_counter"):
        session.history(max_tokens=10)


def test_session_stores_tool_definitions(store: Store) -> None:
    tools = [{"name": "ls", "description": "list files", "parameters": {"type": "object", "properties": {}}}]
    session = store.open("s", tools=tools)
    assert session.info().tools == tools
    session.update(tools=[])
    assert session.info().tools == []


def test_messages_contain_the_last_message_of_each_role(store: Store) -> None:
    session = store.open("s", messages=TALK)
    last = {each.role: each for each in session.messages()}
    last_user, last_assistant = last[MessageRole.USER], last[MessageRole.ASSISTANT]
    assert (last_user.content, last_user.tokens) == ("more", 4)
    assert (last_assistant.content, last_assistant.seq) == ("hi", 3)
    assert MessageRole.TOOL not in last


def test_clear_with_keep_system_keeps_system_messages(store: Store) -> None:
    session = store.open("s", messages=TALK)
    session.clear(keep_system=True)
    assert [m.content for m in session.messages()] == ["be kind"]
    assert session.info().token_count == 9


def test_completion_budget_depends_on_context_and_max_output() -> None:
    assert [window.completion_budget(context) for context in (8192, 16384, 32768)] == [1408, 2929, 6312]
    assert window.completion_budget(32768, 4096) == 4096
