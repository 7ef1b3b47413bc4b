"""A turn in progress while its session is changed: appends of others, removals, compactions, expiry and deletion."""

from contextlib import suppress
from datetime import timedelta

import pytest
from support.databases import MakeDatabase
from support.factories import contents, message, messages, seqs, summary
from support.session_checks import assert_sound
from support.turns import messages_of

from lango_store import (
    Conflict,
    Conversation,
    DamagedMessage,
    RunningTurn,
    SessionExpired,
    SessionNotFound,
    Store,
    Turn,
)
from lango_store.testing import Clock


def saved(turn: RunningTurn) -> Turn:
    assert turn.stored is not None
    return turn.stored


def reread(conversation: Conversation, turn: RunningTurn) -> Turn:
    """Return the turn as a second attempt reads it, with `replayed=False`."""
    with conversation.turn(turn.id) as again:
        assert again.stored is not None
        assert again.messages == again.stored.messages
        return again.stored.model_copy(update={"replayed": False})


def test_messages_of_other_writers_are_not_part_of_the_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        conversation.append_message(message("other 1"))
        turn.append(message("a"))
        other = conversation.save_turn([message("other 2"), message("other 3")], id="other")
        turn.append(message("b"))
        conversation.append_message(message("other 4"))
    stored = saved(turn)
    assert (seqs(stored.messages), stored.first_seq, stored.last_seq, stored.turn_no) == ([2, 5], 2, 5, 2)
    assert messages_of(conversation, stored) == stored.messages
    assert messages_of(conversation, other) == other.messages
    assert [each.turn_no for each in conversation.messages()] == [None, 2, 1, 1, 2, None]
    assert reread(conversation, turn) == stored
    assert conversation.save_turn([], id="t").messages == stored.messages


def test_replayed_turn_has_no_messages_of_an_interleaved_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("outer") as outer:
        outer.append(message("outer 1"))
        inner = conversation.save_turn([message("inner 1", id="i1"), message("inner 2")], id="inner")
        outer.append(message("outer 2"))
    assert conversation.save_turn([], id="inner").messages == inner.messages
    assert conversation.save_turn([], id="outer").messages == saved(outer).messages


@pytest.mark.parametrize(("after", "remaining"), [(4, ["a", "c"]), (3, ["a"]), (1, ["a"]), (0, [])])
def test_messages_truncated_during_a_turn_are_not_part_of_the_turn(
    store: Store, after: int, remaining: list[str]
) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("a"))
        conversation.append_message(message("other"))
        conversation.append_message(message("other"))
        turn.append(message("c"))
        turn.append(message("d"))
        conversation.truncate(after=after)
        turn.append(message("e"))
    assert contents(saved(turn).messages) == [*remaining, "e"]
    assert messages_of(conversation, saved(turn)) == saved(turn).messages
    assert reread(conversation, turn) == saved(turn)
    assert_sound(store)


def test_clearing_the_session_during_a_turn_leaves_an_empty_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append_messages(messages(3))
        conversation.clear()
    assert saved(turn).messages == []
    assert [each.id for each in conversation.turns.list()] == ["t"]
    assert_sound(store)


@pytest.mark.parametrize("method", ["update", "redact", "delete", "pop"])
def test_turn_is_saved_with_messages_as_they_were_edited_during_the_turn(store: Store, method: str) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append_messages([message("a"), message("b")])
        match method:
            case "update":
                conversation.edits.update(2, message("changed"))
            case "redact":
                conversation.edits.redact(2)
            case "delete":
                conversation.edits.delete(2)
            case _:
                conversation.pop_message()
        turn.append(message("c"))
    expected = {"update": ["a", "changed", "c"], "redact": ["a", "(redacted)", "c"]}.get(method, ["a", "c"])
    assert contents(saved(turn).messages) == contents(turn.messages) == contents(conversation.messages()) == expected
    assert all(each.turn_no == 1 for each in conversation.messages())
    assert_sound(store)


@pytest.mark.parametrize("method", ["delete", "pop", "truncate"])
def test_undo_after_a_turn_does_not_add_a_message_that_was_removed_during_the_turn(keeping: Store, method: str) -> None:
    conversation = keeping.open("k")
    with conversation.turn("t") as turn:
        turn.append_messages([message("a"), message("b")])
        match method:
            case "delete":
                conversation.edits.delete(2)
            case "pop":
                conversation.pop_message()
            case _:
                conversation.truncate(after=1)
    conversation.versions.undo()
    assert [(each.content, each.turn_no) for each in conversation.messages()] == [("a", 1), ("b", None)]
    assert messages_of(conversation, saved(turn)) == saved(turn).messages
    assert_sound(keeping)
    conversation.truncate(after=1)
    assert_sound(keeping)


@pytest.mark.parametrize("discard", [False, True])
def test_turn_is_saved_although_the_session_is_compacted_during_the_turn(store: Store, discard: bool) -> None:
    conversation = store.open("k", messages=[message("before")])
    with conversation.turn("t") as turn:
        turn.append_messages([message("a"), message("b")])
        conversation.compact(lambda window: summary("summary"), discard=discard)
        turn.append(message("c"))
    assert contents(conversation.messages()) == ["summary", "c"]
    assert contents(saved(turn).messages) == (["c"] if discard else ["a", "b", "c"])
    assert messages_of(conversation, saved(turn)) == saved(turn).messages
    assert reread(conversation, turn) == saved(turn)
    assert_sound(store)


def test_compaction_begun_during_a_turn_can_be_finished_after_the_turn(store: Store) -> None:
    conversation = store.open("k", messages=[message("before")])
    with conversation.turn("t") as turn:
        turn.append(message("a"))
        pending = conversation.turns.begin_compaction()
        assert pending is not None
        turn.append(message("b"))
    pending.finish(summary("summary"))
    assert contents(conversation.messages()) == ["summary", "b"]
    assert contents(messages_of(conversation, saved(turn))) == ["a", "b"]


def test_summary_stored_during_the_turn_is_not_part_of_the_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("a"))
        conversation.compact(lambda window: summary("summary"))
        turn.append(message("b"))
    stored = saved(turn)
    assert contents(stored.messages) == ["a", "b"]
    (compaction,) = conversation.turns.list_compactions()
    assert contents(compaction.summary) == ["summary"]
    assert contents(reread(conversation, turn).messages) == ["a", "b"]


@pytest.mark.parametrize("text", ["x'ff'", "CAST(x'ff' AS TEXT)"])
def test_turn_with_a_damaged_message_is_not_saved(make_sqlite: MakeDatabase, text: str) -> None:
    with Store(make_sqlite()) as store:
        turn = store.open("k").turn("t").begin()
        turn.append_messages([message("a"), message("b")])
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_message SET text = {text} WHERE seq = 2")
        with pytest.raises(DamagedMessage) as raised:
            turn.save()
        assert (raised.value.seq, raised.value.field) == (2, "text")
        conversation = store.conversation("k")
        assert (conversation.turns.list(), conversation.turns.in_progress() is None) == ([], False)
        conversation.edits.delete(2)
        assert contents(turn.save().messages) == ["a"]


def test_turn_in_progress_is_replayed_if_save_turn_saves_the_same_id_first(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("in progress"))
        turn.write("draft")
        first = conversation.save_turn([message("saved")], {"tokens": 1}, id="t")
        turn.usage = {"tokens": 2}
    assert saved(turn).replayed
    assert saved(turn) == first.model_copy(update={"replayed": True})
    assert (conversation.info().turn_count, conversation.total_usage()) == (1, {"tokens": 1})
    assert [each.turn_no for each in conversation.messages()] == [None, 1]
    assert (conversation.turns.in_progress(), conversation.drafts.list()) == (None, [])


def test_turn_that_another_attempt_has_saved_is_not_saved_again(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    old = conversation.turn("t").__enter__()
    old.append(message("question"))
    clock.move(minutes=2)
    with conversation.turn("t") as new:
        assert new.append(message("question")).replayed
        new.append(message("answer", role="assistant"))
    assert old.save() == saved(new).model_copy(update={"replayed": True})
    assert conversation.info().turn_count == 1


def test_append_of_an_old_attempt_raises_conflict_after_another_attempt_saved_the_turn(
    store: Store, clock: Clock
) -> None:
    conversation = store.open("k")
    old = conversation.turn("t").__enter__()
    clock.move(minutes=2)
    with conversation.turn("t") as new:
        new.append(message("answer", role="assistant"))
    conversation.append_message(message("later", id="later"))
    with pytest.raises(Conflict):
        old.append(message("later", id="later"))
    assert contents(messages_of(conversation, saved(new))) == ["answer"]


# The end of the session


def test_writes_of_a_turn_raise_session_not_found_after_the_session_is_deleted(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").__enter__()
    turn.write("draft")
    store.delete("k")
    for call in (lambda: turn.append(message()), turn.take_inbox, lambda: turn.__exit__(None, None, None)):
        with pytest.raises(SessionNotFound):
            call()
    assert not store.exists("k")


def test_turn_of_a_deleted_session_cannot_write_to_a_new_session_of_the_same_key(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t", flush=timedelta(hours=1)).__enter__()
    turn.append(message("a"))
    turn.write("draft")
    store.delete("k")
    store.create("k", messages=[message("new")])
    conversation.inbox.put(message("waiting"))
    before = conversation.info()
    turn.write("collected")
    for call in (lambda: turn.append(message()), turn.flush, turn.take_inbox, lambda: turn.__exit__(None, None, None)):
        with pytest.raises(Conflict):
            call()
    assert conversation.info() == before
    assert (conversation.turns.list(), conversation.drafts.list()) == ([], [])


def test_writes_of_a_turn_raise_session_expired_after_the_session_expires(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(minutes=1))
    turn = conversation.turn("t").__enter__()
    turn.write("draft")
    clock.move(minutes=1)
    turn.write("collected")
    for call in (lambda: turn.append(message()), turn.flush, turn.take_inbox):
        with pytest.raises(SessionExpired):
            call()
    with pytest.raises(SessionExpired):
        conversation.turns.in_progress()


def test_turn_continues_after_the_expired_session_is_touched(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(minutes=1))
    with conversation.turn("t") as turn:
        turn.append(message("a"))
        clock.move(minutes=1)
        with pytest.raises(SessionExpired):
            turn.append(message("b"))
        store.touch("k")
        turn.append(message("b"))
    assert contents(saved(turn).messages) == ["a", "b"]


def test_turn_that_ends_after_the_session_expired_is_not_saved(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k", ttl=timedelta(minutes=1))
    turn = conversation.turn("t").__enter__()
    turn.append(message("a"))
    clock.move(minutes=1)
    with pytest.raises(SessionExpired):
        turn.__exit__(None, None, None)
    either_store.touch("k")
    assert (conversation.turns.list(), conversation.turns.in_progress()) == ([], None)


def test_session_that_replaces_an_expired_session_has_no_turn_drafts_or_inbox(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(minutes=1))
    turn = conversation.turn("t", lease=timedelta(days=1)).__enter__()
    turn.write("draft")
    conversation.inbox.put(message("waiting"))
    clock.move(minutes=1)
    store.append_message("k", message("new"), create=True)
    assert (conversation.turns.in_progress(), conversation.drafts.list(), conversation.inbox.list()) == (None, [], [])
    with pytest.raises(Conflict):
        turn.append(message())
    assert contents(conversation.messages()) == ["new"]


def test_appends_and_end_of_turn_restart_the_ttl_of_the_session(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(minutes=1))
    with conversation.turn("t") as turn:
        for _ in range(5):
            clock.move(seconds=50)
            turn.append(message())
        clock.move(seconds=50)
    assert conversation.info().expires_at == clock.time + timedelta(minutes=1)


def test_fork_has_no_lease_no_drafts_and_an_empty_inbox(store: Store) -> None:
    conversation = store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("earlier") as turn:
        turn.append(message("of a failed turn"))
        turn.write("draft")
        raise ZeroDivisionError
    with conversation.turn("t") as turn:
        turn.append(message("a"))
        turn.write("draft")
        conversation.inbox.put(message("waiting"))
        fork = conversation.fork()
        assert (fork.turns.in_progress(), fork.drafts.list(), fork.inbox.list()) == (None, [], [])
        with fork.turn("t") as of_fork:
            of_fork.append(message("of the fork"))
        turn.append(message("b"))
    assert contents(saved(turn).messages) == ["a", "b"]
    assert contents(fork.messages()) == ["of a failed turn", "a", "of the fork"]
    assert contents(conversation.messages()) == ["of a failed turn", "a", "b"]
