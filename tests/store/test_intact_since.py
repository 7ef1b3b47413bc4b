"""Appends with `intact_since`: they need a session of which no message was changed or removed."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.factories import message, messages

from lango_store import Conflict, Conversation, SessionInfo, SessionNotFound, Store
from lango_store.testing import Clock

APPENDS: dict[str, Callable[[Conversation, SessionInfo], object]] = {
    "one message": lambda k, info: k.append_messages([message("new")], intact_since=info),
    "several messages": lambda k, info: k.append_messages(messages(3), intact_since=info),
    "no messages": lambda k, info: k.append_messages([], intact_since=info),
    "with ids": lambda k, info: k.append_messages([message(id="new")], intact_since=info),
    "with a stored id": lambda k, info: k.append_messages([message(id="a"), message(id="new")], intact_since=info),
    "with a payload": lambda k, info: k.append_messages([message("x" * 100_000)], intact_since=info),
    "with create": lambda k, info: k.append_messages(messages(2), intact_since=info, create=True),
    "with replace_after": lambda k, info: k.append_messages(messages(2), intact_since=info, replace_after=1),
    "turn": lambda k, info: k.save_turn(messages(2), {"tokens": 1}, intact_since=info),
    "turn with ids": lambda k, info: k.save_turn([message(id="new")], {"tokens": 1}, intact_since=info, create=True),
    "turn without messages": lambda k, info: k.save_turn([], {"tokens": 1}, id="t", intact_since=info),
}
CHANGES: dict[str, Callable[[Store], object]] = {
    "edits.update": lambda store: store.conversation("k").edits.update(2, message("other")),
    "edits.delete": lambda store: store.conversation("k").edits.delete(2),
    "edits.redact": lambda store: store.conversation("k").edits.redact(2),
    "pop_message": lambda store: store.conversation("k").pop_message(),
    "truncate": lambda store: store.conversation("k").truncate(after=3),
    "clear": lambda store: store.conversation("k").clear(),
    "compact": lambda store: store.conversation("k").compact(lambda window: message("summary"), discard=True),
    "delete and create": lambda store: (store.delete("k"), store.create("k", messages=messages(5))),
}

each_append = pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS.keys())


def filled(store: Store) -> Conversation:
    return store.open("k", messages=[message(id="a"), *messages(4)])


@each_append
def test_append_with_intact_since_is_stored_after_other_appends(
    store: Store, append: Callable[[Conversation, SessionInfo], object]
) -> None:
    conversation = filled(store)
    info = conversation.info()
    conversation.append_messages([message(role="record"), *messages(2)])
    conversation.save_turn(messages(2), {"tokens": 1})
    conversation.update(title="new")
    append(conversation, info)
    append(conversation, conversation.info())


@each_append
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_append_with_intact_since_raises_conflict_after_a_change_of_messages(
    store: Store, append: Callable[[Conversation, SessionInfo], object], change: Callable[[Store], object]
) -> None:
    info = filled(store).info()
    change(store)
    conversation = store.conversation("k")
    before = conversation.all_messages(), conversation.turns.list(), conversation.info()
    with pytest.raises(Conflict, match="changed or removed since `intact_since`"):
        append(conversation, info)
    assert (conversation.all_messages(), conversation.turns.list(), conversation.info()) == before


def test_append_with_intact_since_in_a_turn_compares_both_conditions(store: Store) -> None:
    conversation = filled(store)
    info = conversation.info()
    with conversation.turn() as turn:
        held = store.in_turn(turn).conversation("k")
        held.append_messages(messages(1), intact_since=info)
        conversation.edits.delete(2)
        with pytest.raises(Conflict, match="intact_since"):
            held.append_messages(messages(1), intact_since=info)
    assert conversation.info().message_count == 5


def test_append_with_intact_since_and_create_does_not_create_a_session(store: Store) -> None:
    info = filled(store).info()
    store.delete("k")
    with pytest.raises(Conflict, match="intact_since"):
        store.conversation("k").append_messages(messages(1), intact_since=info, create=True)
    with pytest.raises(SessionNotFound):
        store.conversation("k").append_messages(messages(1), intact_since=info)
    assert not store.exists("k")


def test_append_with_intact_since_and_create_does_not_replace_an_expired_session(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        conversation = store.open("k", ttl=timedelta(minutes=1))
        info = conversation.info()
        clock.move(minutes=2)
        with pytest.raises(Conflict, match="intact_since"):
            conversation.append_messages(messages(1), intact_since=info, create=True)
        assert not store.exists("k")


def test_append_with_intact_since_of_another_type_raises_type_error(store: Store) -> None:
    with pytest.raises(TypeError, match="intact_since is int"):
        filled(store).append_messages(messages(1), intact_since=5)  # type: ignore[arg-type]
