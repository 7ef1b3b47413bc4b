"""Logs of a session as they were: `get(as_of=…)`, `diff` and `fork(as_of=…)`."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from support.factories import contents, message, messages, seqs, summary
from support.payloads import LARGE, bodies
from support.session_checks import assert_sound, unexplained

from lango_store import Conversation, NotKept, SessionExpired, Store
from lango_store.testing import Clock


def at(conversation: Conversation, as_of: int | datetime) -> list[Any]:
    """Return the contents of an earlier window."""
    return contents(conversation.get(as_of=as_of).messages)


# Windows


def test_every_earlier_window_can_be_read(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b"), message("c")])
    conversation.edits.update(2, message("B"))
    conversation.edits.delete(1)
    conversation.versions.undo()
    conversation.append_messages([message("d")], replace_after=2)
    conversation.compact(lambda _: summary())
    conversation.clear()
    windows = {seq: at(conversation, seq) for seq in range(conversation.info().last_seq + 2)}
    assert windows == {
        0: [],
        1: ["a"],
        2: ["a", "b"],
        3: ["a", "b", "c"],
        4: ["a", "B", "c"],
        5: ["B", "c"],
        6: ["B", "c"],  # one of the two seqs that the undo used up
        7: ["a", "B", "c"],
        8: ["a", "B", "d"],  # the cut of the replacement, whose new message has seq 9
        9: ["a", "B", "d"],
        10: ["summary"],  # the change of the compaction, whose summary has seq 11
        11: ["summary"],
        12: [],
        13: [],
    }


def test_get_as_of_returns_the_counters_of_the_earlier_log(keeping: Store) -> None:
    conversation = keeping.open("k", title="first")
    conversation.save_turn([message("a", tokens=2), message("b", tokens=3)], {"tokens": 5})
    conversation.append_message(message("r", role="record"))
    conversation.compact(lambda _: summary())
    conversation.update(title="second", last_consolidated=3)
    before = conversation.get()
    conversation.clear()
    earlier = conversation.get(as_of=before.last_seq)
    times = {"revision", "updated_at", "last_consolidated"}
    assert earlier.model_dump(exclude=times) == before.model_dump(exclude=times)
    first = conversation.get(as_of=3, records=True)
    assert (first.message_count, first.record_count, first.token_count, first.turn_count) == (2, 1, 5, 1)
    assert (first.last_seq, first.summary_turn, first.summarized_upto, first.title) == (3, None, 0, "second")
    assert contents(first.messages) == ["a", "b", "r"]
    assert keeping.get("k", as_of=3).messages == conversation.get(as_of=3).messages == first.messages[:2]


def test_get_as_of_loads_the_large_strings_of_an_earlier_window(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message([LARGE, "y" * 70_000])])
    conversation.edits.update(1, message(LARGE))
    conversation.clear()
    assert (at(conversation, 1), at(conversation, 2)) == ([[LARGE, "y" * 70_000]], [LARGE])


def test_get_as_of_works_without_keep_removed_if_nothing_was_removed(store: Store) -> None:
    conversation = store.open("k", messages=[message("a"), message("b")])
    assert (at(conversation, 1), at(conversation, 2), at(conversation, 9)) == (["a"], ["a", "b"], ["a", "b"])
    conversation.edits.redact(1)  # a redaction reaches earlier logs, too
    assert (at(conversation, 1), at(conversation, 2)) == (["(redacted)"], ["(redacted)", "b"])


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.5, "1", True])
def test_as_of_that_is_not_a_seq_is_refused(keeping: Store, wrong: Any) -> None:
    keeping.create("k")
    with pytest.raises(ValueError, match=r"as_of=.* is not a (seq|datetime)"):
        keeping.get("k", as_of=wrong)


def test_get_as_of_reads_an_expired_session_only_with_the_option_expired(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k", ttl=timedelta(hours=1), messages=[message("a")])
    conversation.clear()
    clock.move(hours=2)
    with pytest.raises(SessionExpired):
        conversation.get(as_of=1)
    assert contents(conversation.get(as_of=1, expired=True).messages) == ["a"]
    clock.move(days=30)
    with pytest.raises(NotKept):
        conversation.get(as_of=1, expired=True)


# Times


def test_get_as_of_a_time_returns_the_window_of_that_time(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k")
    began = clock()
    for text in ("a", "b", "c"):
        conversation.append_message(message(text))
        clock.move(minutes=1)
    conversation.truncate(after=1)
    clock.move(minutes=1)
    conversation.versions.undo()
    windows = [at(conversation, began + timedelta(seconds=60 * number - 1)) for number in range(6)]
    assert windows == [[], ["a"], ["a", "b"], ["a", "b", "c"], ["a"], ["a", "b", "c"]]
    minute = timedelta(minutes=1)
    assert at(conversation, began) == ["a"]  # a window at the time of a message includes the message
    assert at(conversation, (began + minute).astimezone(timezone(timedelta(hours=5)))) == ["a", "b"]
    assert conversation.get(as_of=began + 9 * minute).last_seq == conversation.info().last_seq


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("at_once", [1, 2])
def test_get_as_of_a_time_does_not_depend_on_the_time_that_a_program_gave_a_message(
    keeping: Store, clock: Clock, days: int, at_once: int
) -> None:
    conversation = keeping.open("k", messages=[message("a")])
    clock.move(minutes=1)
    time = clock() + timedelta(days=days)
    conversation.append_messages([message(text, created_at=time) for text in ("b", "c")[:at_once]])
    clock.move(minutes=1)
    conversation.append_message(message("d"))
    after = ["a", "b", "c"][: 1 + at_once]
    windows = [at(conversation, clock() - timedelta(seconds=seconds)) for seconds in (90, 30, 0)]
    assert windows == [["a"], after, [*after, "d"]]
    conversation.edits.delete(2)
    assert at(conversation, clock() - timedelta(seconds=90)) == ["a"]
    assert conversation.fork("f", as_of=clock() - timedelta(seconds=90)).info().message_count == 1


def test_get_as_of_a_time_returns_a_message_of_the_inbox_from_the_time_at_which_a_turn_took_it(
    keeping: Store, clock: Clock
) -> None:
    conversation = keeping.open("k")
    waiting = conversation.inbox.put(message("waiting"))
    clock.move(minutes=2)
    with conversation.turn() as turn:
        (taken,) = turn.take_inbox()
    assert taken.created_at == waiting.created_at
    assert at(conversation, clock() - timedelta(minutes=1)) == []
    assert at(conversation, clock()) == ["waiting"]
    assert contents(conversation.versions.diff(clock() - timedelta(minutes=1), clock()).added) == ["waiting"]


def test_edit_of_the_time_of_a_message_does_not_change_when_it_entered_the_log(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k")
    clock.move(minutes=1)
    conversation.append_message(message("a"))
    logged = clock()
    for days in (-1, 1):
        clock.move(minutes=1)
        conversation.edits.update(1, message("b", created_at=logged + timedelta(days=days)))
        windows = [at(conversation, logged + timedelta(seconds=seconds)) for seconds in (-1, 0)]
        assert windows == [[], ["a"]]


def test_as_of_a_time_without_time_zone_is_refused(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(1))
    naive = datetime(2026, 1, 1)
    for call in (conversation.get, conversation.fork):
        with pytest.raises(ValueError, match="time zone"):
            call(as_of=naive)
    with pytest.raises(ValueError, match="time zone"):
        conversation.versions.diff(1, naive)


# Differences


def test_diff_lists_added_removed_and_changed_messages(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b"), message("c")])
    conversation.edits.update(2, message("B"))
    conversation.edits.delete(1)
    conversation.append_message(message("d", role="record"))
    there = conversation.versions.diff(3, 6)
    assert (seqs(there.added), seqs(there.removed)) == ([6], [1])
    ((old, new),) = there.changed
    assert (old.content, new.content, old.seq, new.seq) == ("b", "B", 2, 2)
    back = conversation.versions.diff(6, 3)
    assert (back.added, back.removed, back.changed) == (there.removed, there.added, [(new, old)])
    same = conversation.versions.diff(6, 6)
    assert (same.added, same.removed, same.changed) == ([], [], [])


def test_diff_compares_the_logs_of_two_times(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b")])
    before = clock()
    clock.move(minutes=1)
    conversation.pop_message()
    assert contents(conversation.versions.diff(before, clock()).removed) == ["b"]


# Forks


@pytest.mark.slow
def test_fork_as_of_a_seq_copies_the_earlier_log(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a", id="a"), message([LARGE], id="b")])
    conversation.save_turn([message("c", tokens=4)], {"tokens": 1}, id="t")
    conversation.edits.update("b", message("short"))
    conversation.truncate(after=1)
    conversation.values.set({"step": 1})
    forked = conversation.fork("f", as_of=3)
    assert forked.all_messages() == conversation.versions.diff(0, 3).added
    assert contents(forked.messages()) == ["a", [LARGE], "c"]
    assert (forked.info().token_count, forked.info().turn_count, forked.turns.list()[0].id) == (4, 1, "t")
    assert (bodies(keeping, "f"), forked.values.get()) == ([LARGE], {"step": 1})
    assert forked.append_message(message("again", id="b")).replayed
    keeping.delete("k")
    assert contents(forked.messages()) == ["a", [LARGE], "c"]
    assert_explained(keeping, "f")


@pytest.mark.slow
def test_fork_as_of_a_seq_before_a_discarding_compaction_has_the_discarded_messages(keeping: Store) -> None:
    conversation = keeping.open("k")
    conversation.save_turn([message("a"), message(LARGE)], {"tokens": 1}, id="t")
    conversation.append_message(message("r", role="record"))
    conversation.compact(lambda _: summary(), discard=True)
    forked = conversation.fork("f", as_of=3)
    assert contents(forked.all_messages()) == ["a", LARGE, "r"]
    assert [each.id for each in forked.turns.list()] == ["t"]
    assert forked.info().summary_turn is None
    after = conversation.fork("g", as_of=conversation.info().last_seq)
    assert contents(after.messages()) == ["summary"]
    assert bodies(keeping, "g") == []
    for key in "fg":
        assert_explained(keeping, key)


@pytest.mark.slow
def test_fork_as_of_a_time_between_two_compactions_has_the_first_summary(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k", messages=[message("a")])
    conversation.compact(lambda _: summary("first"))
    between = clock()
    clock.move(minutes=1)
    conversation.append_message(message("b"))
    conversation.compact(lambda _: summary("second"), discard=True)
    forked = conversation.fork("f", as_of=between)
    assert contents(forked.messages()) == ["first"]
    assert contents(forked.all_messages()) == ["a", "first"]
    assert_explained(keeping, "f")


def assert_explained(store: Store, key: str) -> None:
    with store.engine.connect() as connection:
        assert unexplained(connection, key) == set()
    assert_sound(store)


def test_changes_of_the_original_cannot_be_taken_back_in_a_fork(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("b")])
    conversation.pop_message()
    forked = conversation.fork("f")
    assert [(each.kind, each.undo_until) for each in forked.versions.changes()] == [("pop", None)]
    with pytest.raises(NotKept):
        forked.versions.undo()
    forked.edits.delete(1)
    assert forked.versions.undo() is not None
    assert contents(forked.messages()) == ["a"]


def test_fork_with_as_of_and_upto_is_refused(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(2))
    with pytest.raises(TypeError, match="give one of them"):
        conversation.fork("f", as_of=1, upto=1)  # type: ignore[call-overload,unused-ignore]
    assert not keeping.exists("f")
