"""Changes that cannot be taken back, because the removed messages were never kept or are no longer kept."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.factories import contents, message, summary

from lango_store import Conversation, NotKept, Store
from lango_store.testing import Clock


def at(conversation: Conversation, as_of: int) -> list[Any]:
    """Return the contents of an earlier window."""
    return contents(conversation.get(as_of=as_of).messages)


def test_change_made_by_a_store_without_keep_removed_cannot_be_taken_back(store: Store) -> None:
    conversation = store.open("k", messages=[message("a"), message("b")])
    conversation.pop_message()
    assert [(each.kind, each.undo_until) for each in conversation.versions.changes()] == [("pop", None)]
    assert_not_kept(conversation, 3, as_of=2)
    assert at(conversation, 3) == ["a"]


def assert_not_kept(conversation: Conversation, seq: int, as_of: int) -> None:
    """Check that a change cannot be taken back, and that this writes nothing."""
    before = conversation.get(), conversation.versions.changes()
    calls: list[Callable[[], object]] = [
        conversation.versions.undo,
        lambda: conversation.get(as_of=as_of),
        lambda: conversation.versions.diff(as_of, seq),
        lambda: conversation.versions.diff(seq, as_of),
        lambda: conversation.fork("f", as_of=as_of),
    ]
    for call in calls:
        with pytest.raises(NotKept, match="open the store with keep_removed=") as refused:
            call()
        assert (refused.value.key, refused.value.seq) == ("k", seq)
    assert (conversation.get(), conversation.versions.changes()) == before


def test_undo_raises_not_kept_at_a_change_whose_messages_were_not_kept(keeping: Store, store: Store) -> None:
    conversation = keeping.open("k", messages=[message(text) for text in "abcd"])
    conversation.pop_message()
    store.conversation("k").pop_message()
    conversation.pop_message()
    assert contents(conversation.messages()) == ["a"]
    assert conversation.versions.undo() is not None
    assert_not_kept(conversation, 6, as_of=5)
    assert at(conversation, 6) == ["a", "b"]
    assert at(conversation, 7) == ["a"]


def test_store_without_keep_removed_can_undo_a_change_that_another_store_kept(
    keeping: Store, store: Store, clock: Clock
) -> None:
    keeping.create("k", messages=[message("a"), message("b")])
    keeping.conversation("k").pop_message()
    clock.move(days=1)
    conversation = store.conversation("k")
    assert at(conversation, 2) == ["a", "b"]
    assert conversation.versions.undo() is not None
    assert conversation.versions.redo() is not None
    assert conversation.versions.undo() is not None
    assert contents(conversation.messages()) == ["a", "b"]
    assert {each.undo_until for each in conversation.versions.changes()} == {clock() + timedelta(days=29)}


def test_removed_messages_are_kept_until_the_time_in_undo_until(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b")])
    conversation.pop_message()
    assert [each.undo_until for each in conversation.versions.changes()] == [clock() + timedelta(days=30)]
    clock.move(days=30, microseconds=-1)
    assert at(conversation, 2) == ["a", "b"]
    clock.move(microseconds=1)
    assert_not_kept(conversation, 3, as_of=2)


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(days=-1), 30, "30 days"])
def test_keep_removed_needs_a_positive_timedelta(url: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"keep_removed=.* give a timedelta of more than 0"):
        Store(url, keep_removed=wrong)


# Statements

CHANGES: list[Callable[[Conversation], object]] = [
    lambda k: k.edits.update(1, message("A")),
    lambda k: k.edits.delete(1),
    Conversation.pop_message,
    lambda k: k.truncate(after=2),
    Conversation.clear,
    lambda k: k.edits.drop_sent(before=9),
    lambda k: k.append_messages([message("new")], replace_after=2),
    lambda k: k.compact(lambda _: summary()),
    lambda k: k.compact(lambda _: summary(), discard=True),
    lambda k: k.edits.redact(1),
]
KEEPING = ("INSERT INTO lango_removed", "UPDATE lango_change")


def statements_of(url: str, keep_removed: timedelta | None, change: Callable[[Conversation], object]) -> list[str]:
    """Return the beginning of each statement that a change of a new session sends."""
    seen: list[str] = []
    with Store(url, on_statement=lambda text, _: seen.append(text), keep_removed=keep_removed) as store:
        conversation = store.open()
        conversation.save_turn([message(text, sent="sent") for text in "abc"])
        seen.clear()
        change(conversation)
    return [" ".join(text.split()[:3]) for text in seen]


@pytest.mark.parametrize("change", CHANGES)
def test_store_without_keep_removed_sends_no_statements_to_keep_rows(
    url: str, change: Callable[[Conversation], object]
) -> None:
    plain, keeping = (statements_of(url, each, change) for each in (None, timedelta(days=1)))
    assert plain == [each for each in keeping if not each.startswith(KEEPING)]
