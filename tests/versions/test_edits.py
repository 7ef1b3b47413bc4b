"""Edits of one message: update, delete and redact."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.factories import message, messages
from support.session_checks import assert_sound
from support.turns import messages_of

from lango_store import (
    Conflict,
    Conversation,
    DamagedMessage,
    InvalidMessage,
    InvalidValue,
    Message,
    MessageNotFound,
    MessageRole,
    SessionExpired,
    SessionNotFound,
    Store,
    ToolCall,
)
from lango_store.testing import Clock

EDITS: dict[str, Callable[[Conversation, int | str], object]] = {
    "update": lambda c, seq_or_id: c.edits.update(seq_or_id, message("new", tokens=5)),
    "delete": lambda c, seq_or_id: c.edits.delete(seq_or_id),
    "redact": lambda c, seq_or_id: c.edits.redact(seq_or_id, reason="a password"),
}
each_edit = pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())


def session_of_three(store: Store) -> Conversation:
    first, last = message("one", id="a", tokens=1), message("three", tokens=3)
    conversation = store.open("k", ttl=timedelta(days=1), messages=[first])
    conversation.save_turn([message("two", id="b", tokens=2), last], {"input_tokens": 7})
    return conversation


# Stored result of an edit


@pytest.mark.parametrize("seq_or_id", [2, "b"])
def test_update_message_preserves_seq_turn_id_and_created_at(store: Store, clock: Clock, seq_or_id: int | str) -> None:
    conversation = session_of_three(store)
    before = store.conversation("k").all_messages()
    clock.move(minutes=1)
    new = message("better", role="assistant", tokens=20, extra={"edited": True})
    stored = store.conversation("k").edits.update(seq_or_id, new)
    assert stored == new.model_copy(update={"seq": 2, "turn_no": 1, "id": "b", "created_at": before[1].created_at})
    assert store.conversation("k").all_messages() == conversation.messages() == [before[0], stored, before[2]]
    info = store.conversation("k").info()
    assert (info.message_count, info.token_count, info.updated_at) == (3, 24, clock.time)
    assert_sound(store)


def test_update_message_stores_a_new_id_and_created_at(store: Store, clock: Clock) -> None:
    session_of_three(store)
    earlier = clock.time - timedelta(days=3)
    stored = store.conversation("k").edits.update(2, message("x", id="c", created_at=earlier))
    assert (stored.id, stored.created_at) == ("c", earlier)
    assert store.conversation("k").find_message("c") == stored
    assert store.conversation("k").find_message("b") is None
    assert store.append_message("k", message("b again", id="b")).replayed is False
    assert store.conversation("k").edits.update("c", stored) == stored
    assert_sound(store)


def test_update_message_refuses_the_id_of_another_message(store: Store) -> None:
    session_of_three(store)
    before = store.get("k")
    with pytest.raises(InvalidMessage, match="'a' is the id of another message"):
        store.conversation("k").edits.update(2, message("x", id="a"))
    assert store.get("k") == before


@pytest.mark.parametrize("seq_or_id", [2, "b"])
def test_delete_message_keeps_its_turn_and_usage(store: Store, seq_or_id: int | str) -> None:
    conversation = session_of_three(store)
    before = conversation.turns.list()
    store.conversation("k").edits.delete(seq_or_id)
    assert (
        [m.content for m in store.conversation("k").all_messages()]
        == [m.content for m in store.conversation("k").messages()]
        == ["one", "three"]
    )
    info = store.conversation("k").info()
    assert (info.message_count, info.token_count, info.turn_count) == (2, 4, 1)
    store.conversation("k").edits.delete(3)
    assert conversation.turns.list() == before
    assert messages_of(conversation, before[0]) == []
    assert conversation.total_usage() == {"input_tokens": 7}
    assert store.append_message("k", message("b again", id="b")).replayed is False
    assert_sound(store)


@pytest.mark.parametrize("seq_or_id", [2, "b"])
def test_redact_message_removes_content_and_keeps_seq_role_and_times(
    store: Store, clock: Clock, seq_or_id: int | str
) -> None:
    call = ToolCall(id="c", name="login", arguments={"password": "hunter2"})
    original = message(
        "hunter2",
        role="assistant",
        id="b",
        author="me",
        tokens=9,
        tool_calls=[call],
        extra={"p": "hunter2"},
        model="m",
        provider="p",
        request="of the prompt with the password",
    )
    store.create("k", messages=[message("one", tokens=1), original, message("three")])
    before = store.conversation("k").all_messages()
    clock.move(minutes=1)
    redacted = store.conversation("k").edits.redact(seq_or_id, reason="a password")
    assert redacted == before[1].model_copy(
        update={
            "content": "(redacted)",
            "tool_calls": [],
            "tokens": 0,
            "extra": {"redacted": "a password"},
            "request": None,
        }
    )
    assert (
        store.conversation("k").all_messages() == store.conversation("k").messages() == [before[0], redacted, before[2]]
    )
    assert store.conversation("k").info().token_count == 1
    assert store.append_message("k", original).replayed
    assert_sound(store)


@pytest.mark.parametrize("role", [role for role in MessageRole if role is not MessageRole.RECORD])
def test_redacted_message_has_a_content_that_providers_accept(store: Store, role: MessageRole) -> None:
    calls = [ToolCall(id="call_0", name="pay", output={"paid": 40})] if role.canonical is MessageRole.TOOL else []
    secret = message("secret", role=role, tool_call_id="call_0" if calls else None, tool_calls=calls)
    asking = Message.assistant(tool_calls=[ToolCall(id="call_0", name="pay")])
    conversation = store.open("k", messages=[message("start"), asking, secret])
    assert conversation.edits.redact(3).content == "(redacted)"
    prompt = conversation.history()
    assert [each["content"] for each in prompt if each["role"] == role.canonical][-1] == "(redacted)"
    assert None not in [each["content"] for each in prompt if not each.get("tool_calls")]


def test_redacted_record_has_no_content(store: Store) -> None:
    conversation = store.open("k", messages=[Message(role="record", content={"secret": 1})])
    assert conversation.edits.redact(1).content is None


def test_redact_message_needs_no_reason_and_can_be_repeated(store: Store) -> None:
    session_of_three(store)
    assert store.conversation("k").edits.redact(2).extra == {}
    assert store.conversation("k").edits.redact(2, reason="now with one").extra == {"redacted": "now with one"}
    assert store.conversation("k").info().token_count == 4


def test_redact_message_adds_no_token_count(store: Store) -> None:
    store.create("k", messages=[message("a password")])
    assert store.conversation("k").edits.redact(1).tokens is None
    assert store.conversation("k").messages()[0].tokens is None


@each_edit
@pytest.mark.parametrize("seq_or_id", [0, -1, 4, 2**70, "c"])
def test_edit_of_a_missing_message_raises_message_not_found(
    store: Store, edit: Callable[[Conversation, int | str], object], seq_or_id: int | str
) -> None:
    conversation = session_of_three(store)
    store.create("other", messages=[*messages(3), message("four", id="c")])
    before = store.get("k")
    with pytest.raises(MessageNotFound, match="all_messages") as raised:
        edit(conversation, seq_or_id)
    assert (raised.value.key, raised.value.seq_or_id) == ("k", seq_or_id)
    assert store.get("k") == before


@each_edit
@pytest.mark.parametrize("seq_or_id", [True, 1.5, None, b"b", "", "\0"])
def test_edit_refuses_an_invalid_seq_or_id(
    store: Store, edit: Callable[[Conversation, int | str], object], seq_or_id: int | str
) -> None:
    conversation = session_of_three(store)
    with pytest.raises((TypeError, InvalidValue), match=r"seq_or_id|id"):
        edit(conversation, seq_or_id)


@each_edit
def test_edit_is_refused_if_the_session_is_expired_or_missing(
    store: Store, clock: Clock, edit: Callable[[Conversation, int | str], object]
) -> None:
    conversation = session_of_three(store)
    clock.move(days=2)
    with pytest.raises(SessionExpired):
        edit(conversation, 1)
    store.delete("k")
    with pytest.raises(SessionNotFound) as raised:
        edit(conversation, 1)
    assert raised.type is SessionNotFound


# Edits of consolidated messages and summaries, and cuts


@pytest.mark.parametrize(("seq", "consolidated"), [(1, 1), (2, 1), (3, 2)])
def test_delete_message_lowers_last_consolidated(store: Store, seq: int, consolidated: int) -> None:
    conversation = store.open("k", messages=messages(4))
    conversation.update(last_consolidated=2)
    remaining = [m.seq for m in conversation.all_messages()[2:] if m.seq != seq]
    conversation.edits.delete(seq)
    assert conversation.info().last_consolidated == consolidated
    assert [m.seq for m in conversation.all_messages()[consolidated:]] == remaining


def test_edits_apply_to_a_summary_and_to_summarized_messages(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    conversation.compact(lambda window: [message("summary"), message("second part")])
    conversation.append_message(message("question"))
    first, second = conversation.turns.list_compactions()[0].summary
    conversation.edits.redact(1)
    conversation.edits.delete(2)
    assert [m.content for m in conversation.messages()] == ["summary", "second part", "question"]
    conversation.edits.update(first.seq, message("better"))
    conversation.edits.delete(second.seq)
    assert [m.content for m in conversation.messages()] == ["better", "question"]
    conversation.edits.delete(first.seq)
    assert [m.content for m in conversation.get().messages] == ["(redacted)", "message 2", "question"]
    assert conversation.turns.list_compactions() == []
    assert_sound(store)


REMOVE_LAST: dict[str, Callable[[Conversation], object]] = {
    "pop": lambda c: c.pop_message(),
    "delete": lambda c: c.edits.delete(c.messages()[-1].seq),
}


@pytest.mark.slow
@pytest.mark.parametrize("remove", REMOVE_LAST.values(), ids=REMOVE_LAST)
def test_removing_all_messages_of_a_summary_undoes_the_compaction(
    store: Store, remove: Callable[[Conversation], object]
) -> None:
    conversation = store.open("k", messages=messages(3))
    note = Message(role=MessageRole.RECORD, content="note")
    conversation.compact(lambda window: [message("first"), message("second"), note])
    conversation.edits.delete(conversation.messages()[0].seq)
    assert [m.content for m in conversation.messages()] == ["second"]
    remove(conversation)
    assert [m.content for m in conversation.messages()] == ["message 0", "message 1", "message 2"]
    assert (conversation.turns.list_compactions(), conversation.turns.list()) == ([], [])
    assert conversation.all_messages()[-1].turn_no is None
    assert_sound(store)


@pytest.mark.parametrize("remove", REMOVE_LAST.values(), ids=REMOVE_LAST)
def test_usage_is_kept_after_the_summary_of_a_discarding_compaction_is_removed(
    store: Store, remove: Callable[[Conversation], object]
) -> None:
    conversation = store.open("k")
    conversation.save_turn(messages(2), {"tokens": 5})
    conversation.compact(lambda window: [message("first"), message("second")], discard=True)
    remove(conversation)
    remove(conversation)
    assert conversation.messages() == []
    assert conversation.total_usage() == {"tokens": 5}
    (compaction,) = conversation.turns.list_compactions()
    assert (compaction.summary, compaction.discarded) == ([], True)
    conversation.append_message(message("next"))
    assert [m.content for m in conversation.messages()] == ["next"]
    assert_sound(store)


def test_window_begins_after_the_discarded_messages_if_the_summary_is_removed(store: Store) -> None:
    conversation = store.open("k", messages=[message("a"), message({"note": 1}, role="record"), message("b")])
    conversation.compact(lambda window: [message("summary")], discard=True)
    conversation.pop_message()
    conversation.edits.update(2, message("edited"))
    conversation.append_message(message("next"))
    assert [each.content for each in conversation.messages()] == ["next"]
    assert [each.content for each in conversation.all_messages()] == ["edited", "next"]
    (turn,) = conversation.turns.list()
    assert turn.last_seq == turn.first_seq - 1
    assert messages_of(conversation, turn) == []
    assert_sound(store)


def test_update_message_refuses_to_change_a_summary_into_a_record(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message())
    conversation.compact(lambda window: [message("summary")])
    with pytest.raises(InvalidMessage, match="delete the message"):
        conversation.edits.update(conversation.messages()[0].seq, message({"note": 1}, role="record"))
    assert [each.content for each in conversation.messages()] == ["summary"]


def test_redacted_summary_has_placeholder_content(store: Store, clock: Clock, tmp_path: Path) -> None:
    conversation = store.open("k", ttl=timedelta(days=1), messages=messages(2))
    conversation.compact(lambda window: [message("a password", role="user", tokens=9)])
    (summary,) = conversation.messages()
    redacted = conversation.edits.redact(summary.seq, reason="secret")
    assert (redacted.content, redacted.tokens, redacted.extra) == ("(redacted)", 0, {"redacted": "secret"})
    assert conversation.history() == [{"role": "user", "content": "(redacted)"}]
    conversation.edits.update(summary.seq, message("a password", role="user"))
    clock.move(days=2)
    cold = tmp_path / "cold.db"
    store.expire(archive=cold)
    assert conversation.edits.redact(summary.seq, archive=cold).content == "(redacted)"
    store.restore("k", cold)
    assert conversation.history() == [{"role": "user", "content": "(redacted)"}]


def test_pop_message_shortens_a_turn_whose_last_message_was_deleted(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn(messages(3), {"tokens": 1})
    conversation.edits.delete(3)
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.seq == 2
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns.list()] == [(1, 1)]
    conversation.pop_message()
    assert conversation.turns.list() == []
    assert_sound(store)


def test_pop_message_keeps_a_turn_with_wrong_last_seq(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn(messages(3))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_turn SET last_seq = 1")
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.seq == 3
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns.list()] == [(1, 1)]


@each_edit
def test_compact_raises_conflict_if_a_message_is_edited_meanwhile(
    store: Store, edit: Callable[[Conversation, int | str], object]
) -> None:
    conversation = session_of_three(store)

    def summarize(window: list[Message]) -> list[Message]:
        edit(conversation, 2)
        return [message("it was about a password")]

    with pytest.raises(Conflict):
        conversation.compact(summarize)
    assert conversation.turns.list_compactions() == []


# Transactions, damaged messages, forks and archives


@each_edit
def test_edit_is_rolled_back_with_the_callers_transaction(
    store: Store, edit: Callable[[Conversation, int | str], object]
) -> None:
    session_of_three(store)
    before = store.get("k")
    with store.engine.connect() as connection:
        own = store.using(connection).conversation("k")
        edit(own, "b")
        with pytest.raises(MessageNotFound):
            edit(own, "unknown")
        with pytest.raises(InvalidMessage):
            own.edits.update(3, message("x", id="a"))
        assert own.get() != before
        connection.rollback()
    assert store.get("k") == before


def test_damaged_message_can_be_deleted_redacted_or_updated(store: Store) -> None:
    store.create("k", messages=messages(3))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET tool_calls = '[1]'")
    with pytest.raises(DamagedMessage):
        store.get("k")
    store.conversation("k").edits.delete(1)
    assert store.conversation("k").edits.redact(2).content == "(redacted)"
    assert store.conversation("k").edits.update(3, message("whole again")).content == "whole again"
    assert [m.content for m in store.conversation("k").messages()] == ["(redacted)", "whole again"]


@pytest.mark.slow
def test_edited_session_is_unchanged_by_fork_archive_and_restore(store: Store, clock: Clock, tmp_path: Path) -> None:
    conversation = session_of_three(store)
    conversation.compact(lambda window: [message("summary"), message("of all")])
    for seq_or_id in (2, 3, conversation.turns.list_compactions()[0].summary[0].seq):
        conversation.edits.delete(seq_or_id)
    conversation.edits.redact("a", reason="a password")
    before = conversation.all_messages(), conversation.messages(), conversation.turns.list()
    forked = conversation.fork("f")
    assert (forked.all_messages(), forked.messages(), forked.turns.list()) == before
    clock.move(days=2)
    store.expire(archive=tmp_path / "cold.db")
    store.restore("k", tmp_path / "cold.db")
    assert (conversation.all_messages(), conversation.messages(), conversation.turns.list()) == before
    assert_sound(store)
