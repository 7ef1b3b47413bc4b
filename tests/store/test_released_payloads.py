"""Removals and edits delete exactly the payloads that no message refers to any more."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.factories import contents, message, summary
from support.payloads import bodies, large_message, listings
from support.session_checks import assert_sound

from lango_store import Conversation, InvalidMessage, MessageNotFound, Store, ToolCall

A, B, C, NEW = (letter * 65_536 for letter in "abcn")


def session_of_four(store: Store) -> Conversation:
    """Store four messages: with A, with A and B, with C in three fields, and with B."""
    return store.open("k", messages=[message(A, id="first"), message([A, B]), large_message(C), message(B)])


def delete_second_and_fourth(conversation: Conversation) -> None:
    conversation.edits.delete(2)
    conversation.edits.delete(4)


Edit = Callable[[Conversation], object]
EDITS: dict[str, tuple[Edit, list[str]]] = {
    "pop one of two references": (lambda k: k.pop_message(), [A, B, C]),
    "pop the only reference": (lambda k: [k.pop_message(), k.pop_message()], [A, B]),
    "truncate one": (lambda k: k.truncate(after=3), [A, B, C]),
    "truncate": (lambda k: k.truncate(after=1), [A]),
    "truncate all": (lambda k: k.truncate(after=0), []),
    "truncate none": (lambda k: k.truncate(after=4), [A, B, C]),
    "clear": (lambda k: k.clear(), []),
    "delete": (lambda k: k.edits.delete(3), [A, B]),
    "delete by id": (lambda k: k.edits.delete("first"), [A, B, C]),
    "delete two": (delete_second_and_fourth, [A, C]),
    "redact": (lambda k: k.edits.redact(3), [A, B]),
    "redact one of two references": (lambda k: k.edits.redact("first"), [A, B, C]),
    "update to a short string": (lambda k: k.edits.update(3, message("short")), [A, B]),
    "update to a new string": (lambda k: k.edits.update(3, message(NEW)), [A, B, NEW]),
    "update to a stored string": (lambda k: k.edits.update(3, message([A])), [A, B]),
    "update to the same string": (lambda k: k.edits.update(3, message({"c": C})), [A, B, C]),
    "replace": (lambda k: k.append_messages([message(NEW)], replace_after=2), [A, B, NEW]),
    "replace by the same string": (lambda k: k.append_messages([message([C])], replace_after=2), [A, B, C]),
    "replace all": (lambda k: k.append_messages([message("short")], replace_after=0), []),
    "compact": (lambda k: k.compact(lambda _: summary(NEW)), [A, B, C, NEW]),
    "discard": (lambda k: k.compact(lambda _: summary("short"), discard=True), []),
    "discard, with a long summary": (lambda k: k.compact(lambda _: summary(NEW), discard=True), [NEW]),
    "discard, with a summary of a stored string": (lambda k: k.compact(lambda _: summary(A), discard=True), [A]),
    "drop sent": (lambda k: k.edits.drop_sent(before=9), [A, B, C]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "remaining"), EDITS.values(), ids=list(EDITS))
def test_edit_deletes_payloads_that_no_message_contains_anymore(store: Store, edit: Edit, remaining: list[str]) -> None:
    conversation = session_of_four(store)
    store.create("other", messages=[message([A, B, C])])
    edit(conversation)
    assert bodies(store) == remaining
    assert bodies(store, "other") == [A, B, C]
    assert conversation.all_messages() == list(conversation.iter_messages())
    assert_sound(store)


def test_edits_return_messages_with_loaded_payloads(store: Store) -> None:
    conversation = session_of_four(store)
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.content == B
    updated = conversation.edits.update(1, message([NEW, C]))
    assert updated.content == [NEW, C]
    assert conversation.all_messages()[0] == updated
    (replaced,) = conversation.append_messages([message([C])], replace_after=1)
    assert contents(conversation.messages()) == [[NEW, C], replaced.content]
    compaction = conversation.compact(lambda _: summary(NEW))
    assert compaction is not None
    assert contents(compaction.summary) == contents(conversation.messages()) == [NEW]
    assert conversation.turns.list_compactions() == [compaction]


def test_removal_of_a_compaction_deletes_the_payloads_of_its_summary(store: Store) -> None:
    conversation = session_of_four(store)
    conversation.compact(lambda _: summary(NEW))
    conversation.pop_message()
    assert bodies(store) == [A, B, C]
    assert contents(conversation.messages()) == [A, [A, B], large_message(C).content, B]


@pytest.mark.parametrize("seq", [7, 0])
def test_refused_edit_changes_no_payload(store: Store, seq: int) -> None:
    conversation = session_of_four(store)
    for edit in (
        lambda: conversation.edits.update(seq, message(NEW)),
        lambda: conversation.edits.delete(seq),
        lambda: conversation.edits.redact(seq),
    ):
        with pytest.raises(MessageNotFound):
            edit()
    with pytest.raises(InvalidMessage, match="'first' is the id of another message"):
        conversation.edits.update(2, message(NEW, id="first"))
    assert bodies(store) == [A, B, C]


def test_update_cannot_change_arguments_of_a_begun_call(store: Store) -> None:
    conversation = store.open("k")
    call = ToolCall(id="c", name="f", arguments={"a": A})
    conversation.append_message(message(None, role="assistant", tool_calls=[call]))
    conversation.calls.begin(1, 0)
    same = message(B, role="assistant", tool_calls=[call])
    assert conversation.edits.update(1, same).tool_calls == [call]
    assert bodies(store) == [A, B]
    for text in (B, ""):
        other = call.model_copy(update={"arguments": {"a": text}})
        with pytest.raises(InvalidMessage, match="a call of the message was begun"):
            conversation.edits.update(1, message(B, role="assistant", tool_calls=[other]))
    assert bodies(store) == [A, B]


# Forks


@pytest.mark.slow
def test_fork_has_its_own_payloads(store: Store) -> None:
    conversation = session_of_four(store)
    fork = conversation.fork("fork")
    assert fork.messages() == conversation.messages()
    assert bodies(store, "fork") == [A, B, C]
    conversation.clear()
    assert (bodies(store), bodies(store, "fork")) == ([], [A, B, C])
    store.delete("k")
    assert contents(fork.messages()) == [A, [A, B], large_message(C).content, B]
    assert_sound(store)


@pytest.mark.slow
@pytest.mark.parametrize(("upto", "copied"), [(0, []), (1, [A]), (2, [A, B]), (3, [A, B, C]), (4, [A, B, C])])
def test_fork_upto_copies_only_payloads_of_its_messages(store: Store, upto: int, copied: list[str]) -> None:
    conversation = session_of_four(store)
    fork = conversation.fork("fork", upto=upto)
    assert bodies(store, "fork") == copied
    assert fork.messages() == conversation.messages()[:upto]
    assert bodies(store) == [A, B, C]
    assert_sound(store)


@pytest.mark.slow
def test_fork_without_the_summary_does_not_copy_payloads_of_the_summary(store: Store) -> None:
    conversation = session_of_four(store)
    conversation.compact(lambda _: summary(NEW))
    conversation.fork("before", upto=2)
    conversation.fork("after", upto=4)
    assert (bodies(store, "before"), bodies(store, "after")) == ([A, B], [A, B, C, NEW])
    assert_sound(store)


# Sessions


REMOVALS: dict[str, Callable[[Store], object]] = {
    "delete": lambda store: store.delete("k", descendants=True),
    "expire": lambda store: store.expire(older_than=timedelta(0), key_prefix="k"),
    "delete of a user": lambda store: store.delete_where(user_id="ann"),
}


@pytest.mark.slow
@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS.keys())
def test_removed_session_leaves_no_payload(store: Store, remove: Callable[[Store], object]) -> None:
    store.create("other", messages=[message(A)])
    for key in ("k", "k/child"):
        store.create(key, user_id="ann", messages=[message([A, B]), large_message(C)])
    remove(store)
    assert [bodies(store, key) for key in ("k", "k/child", "other")] == [[], [], [A]]
    assert store.stats().payload_bytes == 65_536
    assert_sound(store)


def test_new_session_with_the_key_of_a_deleted_one_has_no_payload(store: Store) -> None:
    session_of_four(store)
    store.delete("k")
    store.create("k", messages=[message("short")])
    assert (bodies(store), listings(store)) == ([], [None])


def test_rolled_back_transaction_changes_no_payload(store: Store) -> None:
    conversation = session_of_four(store)
    before = conversation.messages()
    with store.engine.connect() as connection:
        mine = store.using(connection)
        mine.append_message("k", message(NEW))
        mine.conversation("k").clear()
        connection.rollback()
    assert bodies(store) == [A, B, C]
    assert conversation.messages() == before
    assert_sound(store)
