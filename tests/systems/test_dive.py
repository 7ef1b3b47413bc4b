"""Scenarios of Dive's session design: turns, usage, forks, compaction, and opening of new sessions."""

import pytest

from lango_store import Conversation, Message, MessageRole, SessionExists, SessionNotFound, Store


def user(text: str) -> Message:
    return Message(role=MessageRole.USER, content=[{"type": "text", "text": text}])


def assistant(text: str) -> Message:
    return Message(role=MessageRole.ASSISTANT, content=[{"type": "text", "text": text}])


def texts(messages: list[Message]) -> list[str]:
    return [message.content[0]["text"] for message in messages]


def talk(session: Conversation) -> None:
    session.save_turn([user("Hello"), assistant("Hi")], {"input_tokens": 10, "output_tokens": 5})
    session.save_turn([user("How are you?"), assistant("Good!")], {"input_tokens": 20, "output_tokens": 15})


def test_open_creates_or_loads_session(store: Store) -> None:
    session = store.open("my-session")
    assert (session.messages(), session.info().turn_count) == ([], 0)
    talk(session)
    assert texts(store.open("my-session").messages()) == ["Hello", "Hi", "How are you?", "Good!"]


def test_saved_turn_is_visible_at_once_in_other_conversation_objects(store: Store) -> None:
    """An opened session is connected to its store: other handles see the turn at once."""
    session, other = store.open("s"), store.open("s")
    session.save_turn([user("Hello"), assistant("Hi")])
    assert texts(other.messages()) == ["Hello", "Hi"]


def test_save_turn_does_not_change_earlier_messages(store: Store) -> None:
    """Saving a turn does not rewrite earlier events."""
    session = store.open("s")
    talk(session)
    before = session.all_messages()
    session.save_turn([user("again")])
    assert session.all_messages()[:4] == before


def test_messages_are_reconstructed_from_all_events(store: Store) -> None:
    session = store.open("s")
    talk(session)
    assert session.info().turn_count == 2
    assert len(session.messages()) == 4


def test_total_usage_sums_all_turns(store: Store) -> None:
    session = store.open("s")
    talk(session)
    usage = {"input_tokens": 1, "cache": {"read": 7, "write": 2}, "service_tier": "standard"}
    session.save_turn([user("no more")], usage)
    session.save_turn([user("no usage")])
    assert session.total_usage() == {
        "input_tokens": 31,
        "output_tokens": 20,
        "cache": {"read": 7, "write": 2},
        "service_tier": "standard",
    }
    assert session.turns.list()[2].usage == usage


def test_turn_without_messages_is_counted(store: Store) -> None:
    session = store.open("s")
    session.save_turn([], {"input_tokens": 1})
    assert (session.info().turn_count, session.messages()) == (1, [])


def test_title_can_be_updated(store: Store) -> None:
    session = store.open("s")
    session.update(title="Greetings")
    assert session.info().title == "Greetings"


def test_fork_is_independent_of_origin(store: Store) -> None:
    original = store.open("original")
    talk(original)
    forked = original.fork("new-branch")
    forked.save_turn([user("only here")], {"input_tokens": 1})
    assert texts(forked.messages()) == ["Hello", "Hi", "How are you?", "Good!", "only here"]
    assert texts(original.messages()) == ["Hello", "Hi", "How are you?", "Good!"]
    assert forked.info().forked_from == "original"
    assert (forked.info().turn_count, original.info().turn_count) == (3, 2)
    assert forked.total_usage() == {"input_tokens": 31, "output_tokens": 20}


def test_fork_of_a_missing_session_or_to_an_existing_key_is_refused(store: Store) -> None:
    original = store.open("original")
    store.open("taken")
    with pytest.raises(SessionExists):
        original.fork("taken")
    store.delete("original")
    with pytest.raises(SessionNotFound):
        original.fork("new-branch")
    assert not store.exists("new-branch")


def test_compaction_puts_summary_first(store: Store) -> None:
    session = store.open("s")
    talk(session)
    seen: list[Message] = []

    def summarize(messages: list[Message]) -> list[Message]:
        seen.extend(messages)
        return [assistant(f"Summary of {len(messages)} messages")]

    session.compact(summarize)
    session.save_turn([user("after"), assistant("ok")])
    assert texts(seen) == ["Hello", "Hi", "How are you?", "Good!"]
    assert texts(session.messages()) == ["Summary of 4 messages", "after", "ok"]
    assert texts(store.open("s").messages()) == ["Summary of 4 messages", "after", "ok"]


def test_compaction_with_discard_replaces_all_events_with_one(store: Store) -> None:
    session = store.open("s")
    talk(session)
    session.compact(lambda messages: [assistant("Summary of 4 messages")], discard=True)
    assert session.info().turn_count == 1
    assert texts(session.all_messages()) == ["Summary of 4 messages"]


def test_compaction_keeps_replaced_messages_in_the_log(store: Store) -> None:
    session = store.open("s")
    talk(session)
    session.compact(lambda messages: [assistant("Summary of 4 messages")])
    assert session.info().turn_count == 3
    assert texts(session.all_messages()) == ["Hello", "Hi", "How are you?", "Good!", "Summary of 4 messages"]
    assert session.total_usage() == {"input_tokens": 30, "output_tokens": 20}
    (compaction,) = session.turns.list_compactions()
    assert texts(compaction.summary) == ["Summary of 4 messages"]
    assert compaction.replaced_messages == 4


def test_changing_a_loaded_message_does_not_change_the_store(store: Store) -> None:
    session = store.open("s")
    talk(session)
    for message in session.messages():
        message.content[0]["text"] = "changed"
    assert texts(session.messages()) == ["Hello", "Hi", "How are you?", "Good!"]


def test_sessions_are_listed_in_pages_and_deleted(store: Store) -> None:
    for number in range(5):
        store.open(f"session-{number}")
    first = store.list_sessions(limit=3)
    second = store.list_sessions(limit=3, cursor=first.next)
    keys = [info.key for info in (*first.items, *second.items)]
    assert sorted(keys) == [f"session-{number}" for number in range(5)]
    assert second.next is None
    assert store.delete("session-0")
    assert not store.delete("session-0")


def test_one_agent_can_have_many_sessions(store: Store) -> None:
    for name in ("ann", "bob"):
        store.open(name, agent_id="helper").save_turn([user(f"I am {name}")])
    assert texts(store.open("ann").messages()) == ["I am ann"]
    assert store.count(agent_id="helper") == 2
