"""Changes of a session that `undo` takes back, and `redo` makes again."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.factories import contents, message, messages, seqs, summary
from support.payloads import LARGE, bodies
from support.session_checks import assert_sound

from lango_store import AsyncStore, Conversation, Message, Store, ToolCall
from lango_store.testing import Clock


def shown(conversation: Conversation) -> tuple[Any, ...]:
    """Return the state that undo has to restore."""
    session = conversation.get(records=True)
    changing = {"last_seq", "revision", "updated_at"}
    return session.model_dump(exclude=changing), conversation.all_messages(), conversation.turns.list()


def assert_taken_back(store: Store, conversation: Conversation, before: tuple[Any, ...], kind: str) -> None:
    """Undo the last change, make it again and undo it again."""
    after = shown(conversation)
    assert after != before
    for _ in range(2):
        undone = conversation.versions.undo()
        assert undone is not None
        assert (undone.seq, shown(conversation)) == (conversation.info().last_seq, before)
        redone = conversation.versions.redo()
        assert redone is not None
        assert (redone.change.kind, shown(conversation)) == ("undo", after)
    assert conversation.versions.changes()[0].kind == kind
    assert [each.kind for each in conversation.versions.changes()[1:]] == ["undo", "redo"] * 2
    assert conversation.versions.undo() is not None
    assert shown(conversation) == before
    assert_sound(store)


def session_of_two_turns(store: Store) -> Conversation:
    """Store a system message, two turns with two messages each, and a record."""
    conversation = store.open("k")
    conversation.append_message(message("be kind", role="system", tokens=2))
    conversation.save_turn([message("a", id="a", tokens=3), message("b", role="assistant")], {"tokens": 1}, id="t1")
    conversation.save_turn([message("c", sent="sent"), message(LARGE, role="assistant")], {"tokens": 1}, id="t2")
    conversation.append_message(message("cost", role="record"))
    conversation.update(last_consolidated=4)
    return conversation


# Each kind of change


CHANGES: dict[str, tuple[str, Callable[[Conversation], object], list[Any]]] = {
    "truncate": ("truncate", lambda c: c.truncate(after=2), ["be kind", "a"]),
    "replace_after": (
        "truncate",
        lambda c: c.append_messages([message("b2", role="assistant"), message("c2")], replace_after=2),
        ["be kind", "a", "b2", "c2"],
    ),
    "clear": ("clear", lambda c: c.clear(), []),
    "pop": ("pop", lambda c: c.pop_message(), ["be kind", "a", "b", "c", "cost"]),
    "pop of a record": ("pop", lambda c: c.pop_message(records=True), ["be kind", "a", "b", "c", LARGE]),
    "delete": ("delete", lambda c: c.edits.delete("a"), ["be kind", "b", "c", LARGE, "cost"]),
    "update": (
        "update",
        lambda c: c.edits.update(5, message("short", id="new", tokens=9)),
        ["be kind", "a", "b", "c", "short", "cost"],
    ),
    "update to a record": (
        "update",
        lambda c: c.edits.update(2, message("a record", role="record")),
        ["be kind", "a record", "b", "c", LARGE, "cost"],
    ),
    "compact": ("compact", lambda c: c.compact(lambda _: summary()), ["summary"]),
    "discard": ("discard", lambda c: c.compact(lambda _: summary(), discard=True), ["summary"]),
}


@pytest.mark.parametrize(("kind", "change", "remaining"), CHANGES.values(), ids=CHANGES)
def test_undo_takes_back_a_change(
    keeping: Store, kind: str, change: Callable[[Conversation], object], remaining: list[Any]
) -> None:
    conversation = session_of_two_turns(keeping)
    before = shown(conversation)
    change(conversation)
    assert contents(conversation.messages(records=True)) == remaining
    assert_taken_back(keeping, conversation, before, kind)


def test_undo_takes_back_a_clear_that_keeps_system_messages(keeping: Store) -> None:
    conversation = session_of_two_turns(keeping)
    conversation.save_turn([message("in a turn", role="system")])
    before = shown(conversation)
    assert conversation.clear(keep_system=True) == 4
    assert [each.turn_no for each in conversation.messages()] == [None, None]
    assert_taken_back(keeping, conversation, before, "clear")


@pytest.mark.slow
def test_undo_takes_back_a_pop_that_deletes_a_turn(keeping: Store) -> None:
    conversation = keeping.open("k")
    conversation.save_turn([message("only")], {"tokens": 1}, id="t")
    before = shown(conversation)
    conversation.pop_message()
    assert conversation.turns.list() == []
    assert_taken_back(keeping, conversation, before, "pop")


def test_undo_of_a_discarding_compaction_restores_the_summary_that_it_discarded(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(2))
    conversation.compact(lambda _: summary("first"), discard=True)
    before = shown(conversation)
    conversation.compact(lambda _: summary("second"), discard=True)
    after = shown(conversation)
    conversation.versions.undo()
    assert shown(conversation) == before
    conversation.versions.redo()
    assert shown(conversation) == after
    assert_sound(keeping)


def test_undo_takes_back_the_deletion_of_the_only_message_of_a_summary(keeping: Store) -> None:
    conversation = session_of_two_turns(keeping)
    compaction = conversation.compact(lambda _: summary())
    assert compaction is not None
    before = shown(conversation)
    conversation.edits.delete(compaction.summary[0].seq)
    assert conversation.turns.list_compactions() == []
    undone = conversation.versions.undo()
    assert undone is not None
    assert shown(conversation) == before
    assert_sound(keeping)


# Several changes


def test_repeated_undo_takes_back_changes_in_reverse_order(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message(text) for text in "abcd"])
    for seq in (4, 2, 3):
        conversation.edits.delete(seq)
    states = []
    while (undone := conversation.versions.undo()) is not None:
        states.append((undone.change.seq, undone.restored, undone.removed, contents(conversation.messages())))
    assert states == [(7, 1, 0, ["a", "c"]), (6, 1, 0, ["a", "b", "c"]), (5, 1, 0, ["a", "b", "c", "d"])]
    assert seqs(conversation.messages()) == [1, 2, 3, 4]
    kinds = [(each.kind, each.after_seq) for each in conversation.versions.changes()]
    assert kinds == [("delete", 4), ("delete", 2), ("delete", 3), ("undo", 7), ("undo", 6), ("undo", 5)]
    for remaining in (["a", "b", "c"], ["a", "c"], ["a"]):
        conversation.versions.redo()
        assert contents(conversation.messages()) == remaining
    assert conversation.versions.redo() is None
    assert [each.kind for each in conversation.versions.changes()[6:]] == ["redo"] * 3


def test_undo_and_redo_without_changes_return_none(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(2))
    assert (conversation.versions.undo(), conversation.versions.redo()) == (None, None)
    assert (conversation.versions.changes(), conversation.info().last_seq) == ([], 2)


def test_undo_keeps_messages_appended_after_the_change(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("q1"), message("a1")])
    conversation.truncate(after=1)
    conversation.save_turn([message("q2"), message("a2")])
    undone = conversation.versions.undo()
    assert undone is not None
    assert (undone.restored, undone.removed) == (1, 0)
    assert contents(conversation.messages()) == ["q1", "a1", "q2", "a2"]
    assert conversation.versions.redo() is not None
    assert contents(conversation.messages()) == ["q1", "q2", "a2"]
    assert_sound(keeping)


def test_undo_of_a_compaction_keeps_messages_appended_after_the_compaction(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("q1"), message("a1")])
    conversation.compact(lambda _: summary())
    conversation.append_message(message("q2"))
    conversation.versions.undo()
    assert contents(conversation.messages()) == ["q1", "a1", "q2"]
    conversation.versions.redo()
    assert contents(conversation.messages()) == ["summary", "q2"]


def test_redo_returns_none_after_another_change(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b")])
    conversation.truncate(after=1)
    conversation.versions.undo()
    conversation.edits.update(1, message("A"))
    assert conversation.versions.redo() is None
    assert contents(conversation.messages()) == ["A", "b"]


def test_redo_keeps_messages_appended_after_the_undo(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b")])
    conversation.truncate(after=1)
    conversation.versions.undo()
    conversation.append_message(message("c"))
    assert conversation.versions.redo() is not None
    assert contents(conversation.messages()) == ["a", "c"]


def test_message_appended_after_an_undo_gets_a_higher_seq_than_the_undo(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(5))
    conversation.truncate(after=0)
    assert conversation.info().last_seq == 6
    undone = conversation.versions.undo()
    assert undone is not None
    assert (undone.seq, undone.restored) == (12, 5)  # one seq for each restored message, and one for the undo
    assert conversation.append_message(message()).seq == 13


def test_undo_restores_large_strings(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message(LARGE)])
    conversation.edits.update(1, message("y" * 70_000))
    assert bodies(keeping) == [LARGE, "y" * 70_000]
    conversation.versions.undo()
    assert contents(conversation.messages()) == [LARGE]
    conversation.versions.redo()
    assert contents(conversation.messages()) == ["y" * 70_000]


# Other ways to call it


def test_undo_in_a_transaction_is_rolled_back_with_the_transaction(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(2))

    def change_and_fail() -> None:
        with keeping.transaction() as tx:
            tx.conversation("k").truncate(after=0)
            assert tx.conversation("k").versions.undo() is not None
            assert len(tx.conversation("k").messages()) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert (len(conversation.messages()), conversation.versions.changes()) == (2, [])


def test_undo_takes_back_a_replace_after_that_stored_no_new_messages(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(3))
    assert conversation.append_messages([], replace_after=1) == []
    (change,) = conversation.versions.changes()
    assert change.added_upto is None
    assert conversation.versions.undo() is not None
    assert len(conversation.messages()) == 3


@pytest.mark.slow
def test_undo_redo_and_earlier_logs_work_with_async_store(url: str, clock: Clock) -> None:
    async def main() -> None:
        async with AsyncStore(url, clock=clock, keep_removed=timedelta(days=1)) as store:
            conversation = await store.open("k", messages=messages(3))
            await conversation.truncate(after=1)
            undone = await conversation.versions.undo()
            assert undone is not None
            assert undone.restored == 2
            assert len(await conversation.messages()) == 3
            assert await conversation.versions.redo() is not None
            assert len((await conversation.get(as_of=3)).messages) == 3
            assert seqs((await conversation.versions.diff(3, 4)).removed) == [2, 3]
            assert len(await (await conversation.fork(as_of=3)).messages()) == 3
            assert [each.kind for each in await conversation.versions.changes()] == ["truncate", "undo", "redo"]

    asyncio.run(main())


def test_redo_restores_a_message_without_the_call_that_the_undo_deleted(keeping: Store) -> None:
    conversation = session_of_two_turns(keeping)
    (asking,) = conversation.append_messages(
        [Message.assistant(tool_calls=[ToolCall(id="c", name="pay")])], replace_after=5
    )
    conversation.calls.begin(asking.seq, 0)
    conversation.suspensions.create([(asking.seq, 0)])
    assert conversation.versions.undo() is not None
    assert (conversation.calls.list(), conversation.suspensions.list()) == ([], [])
    assert conversation.versions.redo() is not None
    assert (conversation.calls.list(), conversation.suspensions.list()) == ([], [])
    assert conversation.messages()[-1].tool_calls == asking.tool_calls
    assert_sound(keeping)
