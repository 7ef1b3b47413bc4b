"""Edits of several messages in one change: `update_all` and `delete_all`."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compacted import compacted_session
from support.databases import MakeDatabase
from support.factories import contents, message, messages
from support.payloads import LARGE
from support.session_checks import assert_sound

from lango_store import (
    Conflict,
    Conversation,
    InvalidMessage,
    Message,
    MessageNotFound,
    MessageRole,
    Store,
    ToolCall,
)
from lango_store._operations.session_tables import OF_MESSAGES

FLIPPED = {MessageRole.USER: MessageRole.RECORD, MessageRole.RECORD: MessageRole.USER}
SEQS = range(1, 9)


def flipped(log: list[Message], seqs: set[int]) -> list[Message]:
    """Return messages as records, and records as messages."""
    return [each.model_copy(update={"role": FLIPPED[each.role]}) for each in log if each.seq in seqs]


def log_of_eight(store: Store, key: str, last_consolidated: int) -> Conversation:
    log = messages(8)
    log[2], log[5] = (each.model_copy(update={"role": MessageRole.RECORD}) for each in (log[2], log[5]))
    conversation = store.open(key, messages=[each.model_copy(update={"tokens": 3}) for each in log])
    conversation.update(last_consolidated=last_consolidated)
    return conversation


def counters(conversation: Conversation) -> dict[str, Any]:
    return conversation.info().model_dump(
        exclude={"key", "last_seq", "revision", "created_at", "updated_at", "incarnation"}
    )


def shape(conversation: Conversation) -> list[tuple[Any, ...]]:
    return [(each.seq, each.role, each.content, each.id) for each in conversation.all_messages()]


@given(seqs=st.sets(st.sampled_from(SEQS), min_size=1), consolidated=st.integers(0, 6), kind=st.booleans())
def test_edit_of_many_equals_the_edits_of_each_message(
    make_sqlite: MakeDatabase, seqs: set[int], consolidated: int, kind: bool
) -> None:
    with Store(make_sqlite()) as store:
        one, many = (log_of_eight(store, key, consolidated) for key in ("one", "many"))
        if kind:
            for each in flipped(one.all_messages(), seqs):
                one.edits.update(each.seq, each)
            many.edits.update_all(flipped(many.all_messages(), seqs))
        else:
            for seq in seqs:
                one.edits.delete(seq)
            many.edits.delete_all([*seqs])
        assert shape(many) == shape(one)
        hides_and_shows = kind and {3, 6} & seqs and seqs - {3, 6}
        skipped = {"last_consolidated"} if hides_and_shows else set()  # then it depends on the order of the edits
        assert {name: each for name, each in counters(many).items() if name not in skipped} == {
            name: each for name, each in counters(one).items() if name not in skipped
        }
        assert_sound(store)


def as_records(chosen: list[Message]) -> list[Message]:
    return [each.model_copy(update={"role": MessageRole.RECORD}) for each in chosen]


EDITS: dict[str, Callable[[Conversation, int], object]] = {
    "update": lambda conversation, number: conversation.edits.update_all(
        as_records(conversation.all_messages(limit=number))
    ),
    "delete": lambda conversation, number: conversation.edits.delete_all([*range(1, number + 1)]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edit_of_many_is_one_change_that_undo_takes_back(url: str, edit: str) -> None:
    with Store(url, keep_removed=timedelta(days=1)) as store:
        conversation = store.open("k", messages=messages(60))
        before = conversation.get()
        EDITS[edit](conversation, 51)
        edited = shape(conversation)
        (change,) = conversation.versions.changes()
        assert (change.kind, change.after_seq, change.seq) == (edit, 1, 61)
        assert contents(conversation.messages()) == contents(before.messages[51:])
        undone = conversation.versions.undo()
        assert undone is not None
        assert undone.restored == 51
        assert conversation.get().messages == before.messages
        assert conversation.versions.redo() is not None
        assert shape(conversation) == edited
        assert conversation.get(as_of=60).messages == before.messages
        assert_sound(store)


CLEANED = len(OF_MESSAGES)
STATEMENTS = {
    ("update", False): 9,
    ("update", True): 10,
    ("delete", False): 7 + CLEANED,
    ("delete", True): 8 + CLEANED,
}


@pytest.mark.parametrize(("edit", "keeps"), STATEMENTS)
def test_number_of_statements_does_not_depend_on_the_number_of_messages(url: str, edit: str, keeps: bool) -> None:
    sent: list[str] = []
    with Store(
        url,
        keep_removed=timedelta(days=1) if keeps else None,
        on_statement=lambda statement, _: sent.append(statement),
    ) as store:
        for number in (2, 51):
            conversation = store.open(f"{number}", messages=messages(60))
            chosen = conversation.all_messages(limit=number)
            sent.clear()
            if edit == "update":
                conversation.edits.update_all(as_records(chosen))
            else:
                conversation.edits.delete_all([each.seq for each in chosen])
            asks_time = url.startswith("postgresql")
            assert len(sent) == STATEMENTS[edit, keeps] + asks_time, "\n".join(sent)


def test_update_all_stores_large_strings_as_payloads_and_returns_them(url: str) -> None:
    with Store(url, payload_threshold=100) as store:
        conversation = store.open("k", messages=messages(3))
        new = [each.model_copy(update={"content": LARGE}) for each in conversation.messages()[:2]]
        assert contents(conversation.edits.update_all(new)) == [LARGE, LARGE]
        assert contents(conversation.messages()) == [LARGE, LARGE, "message 2"]
        conversation.edits.delete_all([1, 2])
        assert contents(conversation.messages()) == ["message 2"]
        assert_sound(store)


def test_update_all_gives_each_message_its_own_values_and_keeps_ids_and_times(store: Store) -> None:
    conversation = store.open("k", messages=[message(text, id=text) for text in "abc"])
    before = conversation.all_messages()
    new = [each.model_copy(update={"content": f"new {each.content}", "id": None}) for each in reversed(before)]
    assert contents(conversation.edits.update_all(new)) == ["new a", "new b", "new c"]
    after = conversation.all_messages()
    assert [(each.id, each.created_at) for each in after] == [(each.id, each.created_at) for each in before]


def test_delete_all_of_the_messages_of_a_summary_restores_the_replaced_messages(store: Store) -> None:
    conversation = compacted_session(store)
    conversation.edits.delete_all([7, 8, 9])
    assert contents(conversation.messages()) == ["be kind", "message 0", "message 1", "message 2", "question"]
    assert conversation.turns.list_compactions() == []
    assert_sound(store)


def test_edit_of_many_is_refused_as_a_whole(store: Store) -> None:
    conversation = store.open("k")
    asking = conversation.append_message(
        message("?", role="assistant").model_copy(update={"tool_calls": [ToolCall(id="c", name="pay", arguments={})]})
    )
    conversation.append_messages(messages(2, id=None))
    conversation.calls.begin(asking.seq, 0)
    before, log = conversation.get(), conversation.all_messages()
    changed = [each.model_copy(update={"content": "new"}) for each in log[1:]]
    for new, error in (
        ([*changed, changed[0].model_copy(update={"seq": 99})], MessageNotFound),
        ([*changed, changed[0]], ValueError),
        ([*changed, log[0].model_copy(update={"tool_calls": []})], InvalidMessage),
        ([changed[0], changed[1].model_copy(update={"tokens": -1})], InvalidMessage),
        ([each.model_copy(update={"id": "same"}) for each in changed], InvalidMessage),
    ):
        with pytest.raises(error):
            conversation.edits.update_all(new)
    with pytest.raises(MessageNotFound):
        conversation.edits.delete_all([1, 2, 99])
    with pytest.raises(TypeError):
        conversation.edits.delete_all(["1"])  # type: ignore[list-item]
    for edit in (
        lambda: conversation.edits.update_all(changed, expect=before.revision - 1),
        lambda: conversation.edits.delete_all([1], expect=before.revision - 1),
    ):
        with pytest.raises(Conflict):
            edit()
    assert conversation.edits.update_all([]) == []
    conversation.edits.delete_all([])
    assert conversation.get() == before
    assert_sound(store)


def test_update_all_does_not_hide_messages_of_a_summary(store: Store) -> None:
    conversation = compacted_session(store)
    hidden = as_records(conversation.messages())
    with pytest.raises(InvalidMessage, match="empty window"):
        conversation.edits.update_all(hidden)
    conversation.edits.update_all(hidden[2:])
    assert contents(conversation.messages()) == ["summary", "of all"]
    assert_sound(store)
