"""Answers side by side: what `keep=True` sets aside, `alternatives`, `switch` and `drop_alternative`."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.commands import run
from support.factories import contents, message
from support.payloads import LARGE, bodies
from support.session_checks import assert_sound

from lango_store import (
    CallInProgress,
    CallNotFound,
    CallUnknown,
    Conflict,
    Conversation,
    InvalidCut,
    InvalidMessage,
    LeaseLost,
    Message,
    MessageNotFound,
    NotKept,
    SessionNotFound,
    Store,
    SuspensionNotFound,
    ToolCall,
    TurnInProgress,
)
from lango_store._rooms.alternatives import checks
from lango_store.web import application


def answer(content: str, **fields: object) -> Message:
    return message(content, role="assistant", **fields)


def asked(store: Store, key: str = "k") -> Conversation:
    """Store a question with the answers a1, a2 and a3, of which the last is shown."""
    conversation = store.open(key)
    conversation.save_turn([message("q", id="q"), answer("a1", id="a1")], {"tokens": 1}, id="t1")
    conversation.append_messages([answer("a2", id="a2")], replace_after=1, keep=True)
    conversation.append_messages([answer("a3", id="a3")], replace_after=1, keep=True)
    return conversation


def branches(conversation: Conversation) -> list[tuple[int, int, bool]]:
    return [(each.after_seq, each.id, each.is_shown) for each in conversation.alternatives()]


def test_replaced_messages_are_alternatives(store: Store) -> None:
    conversation = asked(store)
    assert contents(conversation.messages()) == ["q", "a3"]
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True)]
    first, _, shown = conversation.alternatives()
    assert (first.first.text, first.first.role, first.message_count, first.alternatives) == ("a1", "assistant", 1, 0)
    assert (shown.last.text, shown.message_count, shown.set_aside_at) == ("a3", None, None)
    assert [each.kind for each in conversation.versions.changes()] == ["switch", "switch"]
    assert_sound(store)


def test_keep_needs_replace_after(store: Store) -> None:
    conversation = store.open("k")
    with pytest.raises(TypeError, match="replace_after"):
        conversation.append_messages([message()], keep=True)
    conversation.append_messages([message("q")], replace_after=0, keep=True)
    assert conversation.alternatives() == []
    assert store.stats().alternatives == 0


def test_switch_restores_messages_with_their_seqs_ids_and_turns(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message("q"))
    conversation.save_turn([answer("a", id="a", tokens=3), message("cost", role="record")], {"tokens": 1}, id="t")
    before = conversation.all_messages(), conversation.turns.list()
    conversation.append_messages([answer("b", tokens=5)], replace_after=1, keep=True)
    assert conversation.turns.list() == []
    assert conversation.info().token_count == 5
    assert conversation.switch(2) is True
    assert (conversation.all_messages(), conversation.turns.list()) == before
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.turn_count) == (2, 1, 3, 1)
    assert branches(conversation) == [(1, 2, True), (1, 5, False)]
    assert conversation.versions.changes()[-1].after_seq == 1
    assert_sound(store)


def test_switch_is_idempotent_and_checks_the_revision(store: Store) -> None:
    conversation = asked(store)
    revision = conversation.info().revision
    with pytest.raises(Conflict):
        conversation.switch(2, expect=revision - 1)
    assert conversation.switch(2, expect=revision) is True
    assert conversation.switch(2, expect=revision) is False
    assert conversation.switch(1) is False
    with pytest.raises(MessageNotFound):
        conversation.switch(99)
    assert len(conversation.versions.changes()) == 3


def test_alternatives_within_an_alternative_are_counted_and_move_with_it(store: Store) -> None:
    conversation = asked(store)
    conversation.append_messages([message("q2"), answer("b1")])
    conversation.append_messages([answer("b2")], replace_after=7, keep=True)
    conversation.append_messages([answer("b3")], replace_after=7, keep=True)
    inner = [(7, 8, False), (7, 10, False), (7, 12, True)]
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True), *inner]
    conversation.switch(4)
    assert branches(conversation) == [(1, 2, False), (1, 4, True), (1, 6, False)]
    assert conversation.alternatives()[-1].alternatives == 2
    assert contents(conversation.get(alternative=8).messages) == ["q", "a3", "q2", "b1"]
    conversation.switch(8)  # leads over the alternative 6
    assert contents(conversation.messages()) == ["q", "a3", "q2", "b1"]
    inner = [(7, 8, True), (7, 10, False), (7, 12, False)]
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True), *inner]
    assert_sound(store)


def test_alternative_can_be_read(store: Store) -> None:
    conversation = asked(store)
    read = {each.id: conversation.get(alternative=each.id) for each in conversation.alternatives()}
    assert [contents(each.messages) for each in read.values()] == [["q", "a1"], ["q", "a2"], ["q", "a3"]]
    for id, session in read.items():
        conversation.switch(id)
        ignored = {"last_seq", "revision", "updated_at"}
        assert conversation.get().model_dump(exclude=ignored) == session.model_dump(exclude=ignored)
    with pytest.raises(MessageNotFound):
        conversation.get(alternative=99)
    with pytest.raises(TypeError):
        conversation.get(alternative=2, as_of=1)


def test_first_message_can_be_replaced(store: Store) -> None:
    conversation = asked(store)
    conversation.append_messages([message("other")], replace_after=0, keep=True)
    assert branches(conversation) == [(0, 1, False), (0, 8, True)]
    assert conversation.alternatives()[0].alternatives == 2
    conversation.switch(2)
    assert contents(conversation.messages()) == ["q", "a1"]


def test_dropped_alternative_takes_those_within_with_it(store: Store) -> None:
    conversation = asked(store)
    conversation.append_messages([answer(LARGE)], replace_after=6, keep=True)
    conversation.append_messages([answer("b")], replace_after=6, keep=True)
    conversation.switch(2)
    assert store.stats().alternatives == 3
    assert len(bodies(store)) == 1
    assert conversation.drop_alternative(6) is True
    assert conversation.drop_alternative(6) is False
    assert conversation.drop_alternative(2) is False  # it is shown
    assert branches(conversation) == [(1, 2, True), (1, 4, False)]
    assert (store.stats().alternatives, store.stats().alternative_messages, bodies(store)) == (1, 1, [])
    assert_sound(store)


def test_switch_is_refused_while_a_turn_is_in_progress(store: Store) -> None:
    conversation = asked(store)
    with conversation.turn(), pytest.raises(TurnInProgress):
        conversation.switch(2)
    assert conversation.switch(2) is True


# Ids


def test_id_of_a_message_that_is_set_aside_is_known(store: Store) -> None:
    conversation = asked(store)
    repeated = conversation.append_message(answer("again", id="a1"))
    assert (repeated.replayed, repeated.seq, repeated.content) == (True, 2, "a1")
    again = conversation.append_messages([answer("a1", id="a1")], replace_after=1, keep=True)
    assert again[0].replayed
    assert contents(conversation.messages()) == ["q", "a3"]
    again = conversation.append_messages([answer("a1", id="a1")], replace_after=1)
    assert again[0].replayed
    assert contents(conversation.messages()) == ["q", "a3"]
    with pytest.raises(InvalidMessage):
        conversation.append_messages([answer("a1", id="a1"), answer("new")], replace_after=1)
    with pytest.raises(InvalidMessage):
        conversation.append_messages([answer("a1", id="a1"), answer("new", id="new")], replace_after=1, keep=True)
    assert conversation.save_turn([], id="t1").replayed
    saved = conversation.save_turn([message("q", id="q"), answer("a1", id="a1")], {"tokens": 9})
    assert (saved.replayed, saved.id) == (True, "t1")
    assert contents(saved.messages) == ["q"]  # the log has the turn, without the answer
    conversation.append_messages([message("n1", id="n1"), answer("a1", id="a1")])
    assert contents(conversation.messages()) == ["q", "a3", "n1"]
    conversation.drop_alternative(2)
    assert conversation.append_message(answer("again", id="a1")).replayed is False


def test_turn_that_is_set_aside_is_replayed(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("q"))
        turn.append(answer("a"))
    conversation.append_messages([message("other")], replace_after=0, keep=True)
    with conversation.turn("t") as turn:
        assert turn.replayed
        assert contents(turn.messages) == ["q", "a"]
    assert conversation.turns.in_progress() is None
    with conversation.turn("t2") as turn:
        turn.append(answer("b"))
    assert contents(conversation.messages()) == ["other", "b"]
    assert_sound(store)


def test_edited_id_of_an_alternative_refuses_the_switch(store: Store) -> None:
    conversation = asked(store)
    conversation.edits.update("q", message("q", id="a2"))
    with pytest.raises(Conflict):
        conversation.switch(4)
    assert contents(conversation.messages()) == ["q", "a3"]
    assert len(conversation.alternatives()) == 3
    assert conversation.switch(2) is True


# Turns and usage


def test_usage_of_turns_that_are_set_aside_counts_once(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message("q"))
    for number in range(3):
        conversation.append_messages([], replace_after=1, keep=True)
        conversation.save_turn([answer(f"a{number}")], {"tokens": 10**number}, id=f"t{number}")
    for id in (2, 4, None):
        assert conversation.total_usage() == {"tokens": 111}
        assert [(each.turns, each.usage["tokens"]) for each in store.usage()] == [(3, 111)]
        if id is not None:
            conversation.switch(id)
    conversation.drop_alternative(2)
    assert conversation.total_usage() == {"tokens": 110}


def test_turn_across_a_branching_point_is_as_long_as_its_messages(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("q"), answer("a1"), answer("a2")], {"tokens": 7}, id="t")
    before = conversation.turns.list()
    conversation.append_messages([answer("b")], replace_after=2, keep=True)
    assert [(each.first_seq, each.last_seq) for each in conversation.turns.list()] == [(1, 2)]
    conversation.switch(3)
    assert conversation.turns.list() == before
    assert conversation.total_usage() == {"tokens": 7}
    conversation.switch(5)
    assert [(each.first_seq, each.last_seq) for each in conversation.turns.list()] == [(1, 2)]
    assert_sound(store)


def test_turn_without_messages_stays_in_the_log(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message("q", id="q"))
    conversation.save_turn([message("q", id="q")], {"tokens": 7})
    conversation.append_messages([answer("a")], replace_after=1, keep=True)
    assert conversation.total_usage() == {"tokens": 7}
    assert conversation.alternatives() == []


def test_turn_replaces_an_answer_and_keeps_it(either_store: Store) -> None:
    conversation = asked(either_store)
    with conversation.turn("t2", replace_after=1, keep=True) as turn:
        assert contents(conversation.messages()) == ["q"]
        turn.append(answer("a4"))
        with pytest.raises(TurnInProgress), conversation.turn(replace_after=0, keep=True):
            pass
    with conversation.turn("t2", replace_after=1, keep=True) as turn:
        assert turn.replayed
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, False), (1, 8, True)]
    conversation.switch(6)
    with conversation.turn("t2", replace_after=1, keep=True) as turn:
        assert turn.replayed
        assert contents(turn.messages) == ["a4"]
    assert contents(conversation.messages()) == ["q", "a3"]
    with conversation.turn("t3", replace_after=1) as turn:
        turn.append(answer("a5"))
    assert [each.id for each in conversation.alternatives()] == [2, 4, 8, 12]
    with pytest.raises(TypeError):
        conversation.turn(keep=True)


def test_next_attempt_of_a_turn_keeps_what_the_first_one_has_written(store: Store) -> None:
    conversation = asked(store)
    for number in range(3):
        with suppress(OSError), conversation.turn("t2", replace_after=1, keep=True) as turn:
            if number == 2:
                turn.append(answer("part 2"))
                continue
            if number == 1:
                turn.append(answer("part 1"))
            raise OSError
    assert contents(conversation.messages()) == ["q", "part 1", "part 2"]
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, False), (1, 8, True)]


def test_inbox_replaces_a_question_and_keeps_it(store: Store) -> None:
    conversation = asked(store)
    with conversation.turn("t2") as turn:
        turn.append(message("q2", id="q2"))
        for _ in range(2):
            put = conversation.inbox.put_messages([message("q3", id="q3")], replace_after=6, keep=True)
        assert (put[0].content, put[0].replayed) == ("q3", False)
        with pytest.raises(LeaseLost):
            turn.append(answer("late"))
        turn.abandon()
    assert branches(conversation)[-1][0] == 6
    with conversation.turn("t4") as turn:
        turn.take_inbox()
        turn.append(answer("b3"))
    repeated = conversation.inbox.put_messages([message("q3", id="q3")], replace_after=6, keep=True)
    assert repeated[0].replayed
    assert contents(conversation.messages()) == ["q", "a3", "q3", "b3"]
    with pytest.raises(InvalidMessage):
        conversation.inbox.put_messages([message("q2", id="q2"), message("q4", id="q4")], replace_after=6, keep=True)
    assert conversation.inbox.put_messages([], replace_after=repeated[0].seq, keep=True) == []
    assert contents(conversation.messages()) == ["q", "a3", "q3"]
    assert [each.key for each in store.owed().items] == ["k"]
    with pytest.raises(TypeError):
        conversation.inbox.put_messages([], keep=True)


def test_messages_that_wait_in_the_inbox_are_set_aside_with_the_answers_that_they_follow(store: Store) -> None:
    conversation = store.open("k", messages=[message("q", id="q"), answer("a")])
    conversation.inbox.put(message("later"), in_=timedelta(hours=1))
    conversation.inbox.put_messages([message("q2", id="q2"), message("q3")])
    for _ in range(2):
        conversation.inbox.put_messages([message("edited", id="q~")], replace_after=0, keep=True)
    assert contents(conversation.inbox.list()) == ["later", "edited"]
    assert conversation.all_messages() == []
    assert contents(conversation.get(alternative=1).messages) == ["q", "a", "q2", "q3"]
    assert conversation.inbox.put(message("q2", id="q2")).replayed
    with conversation.turn("t") as turn:
        assert contents(turn.take_inbox()) == ["edited"]
    assert conversation.switch(1)
    assert contents(conversation.messages()) == ["q", "a", "q2", "q3"]
    conversation.inbox.put(message("q4"))
    conversation.inbox.put_messages([], replace_after=3, keep=True)
    assert contents(conversation.inbox.list()) == ["later"]
    assert contents(conversation.messages()) == ["q", "a", "q2"]
    (aside,) = [each for each in conversation.alternatives() if each.after_seq == 3]
    assert contents(conversation.get(alternative=aside.id).messages) == ["q", "a", "q2", "q3", "q4"]


def test_messages_that_wait_after_the_end_of_the_log_are_set_aside(store: Store) -> None:
    conversation = store.open("k", messages=[message("q"), answer("a")])
    conversation.inbox.put(message("q2"))
    conversation.inbox.put_messages([message("q3")], replace_after=100, keep=True)
    assert contents(conversation.inbox.list()) == ["q3"]
    assert contents(conversation.messages()) == ["q", "a"]
    assert [(each.after_seq, each.first.text) for each in conversation.alternatives()] == [(2, "q2")]


# Changes of the log


def test_cut_below_a_branching_point_deletes_its_alternatives(store: Store) -> None:
    conversation = asked(store)
    conversation.append_messages([message("q2"), answer("b1")])
    conversation.append_messages([answer("b2")], replace_after=7, keep=True)
    conversation.truncate(after=6)
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True)]
    conversation.append_messages([answer("a4")], replace_after=1)
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 13, True)]
    conversation.truncate(after=0)
    assert conversation.alternatives() == []
    assert store.stats().alternatives == 0
    assert_sound(store)


def test_deleted_message_in_the_middle_keeps_the_alternatives(store: Store) -> None:
    conversation = asked(store)
    conversation.edits.delete(1)
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True)]
    conversation.switch(2)
    assert contents(conversation.messages()) == ["a1"]


def test_clear_deletes_all_alternatives(store: Store) -> None:
    conversation = asked(store)
    conversation.append_messages([message("other")], replace_after=0, keep=True)
    conversation.clear()
    assert conversation.alternatives() == []
    assert store.stats().alternatives == 0


def test_summary_belongs_to_its_branch(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_messages([message("q"), answer("a")])
    conversation.compact(lambda messages: message("summary", role="system"))
    conversation.append_messages([message("q2"), answer("b1")])
    conversation.append_messages([answer("b2")], replace_after=5, keep=True)
    conversation.compact(lambda messages: message("summary 2", role="system"))
    assert contents(conversation.messages()) == ["summary 2"]
    assert contents(conversation.get(alternative=6).messages) == ["summary", "q2", "b1"]
    conversation.switch(6)
    assert contents(conversation.messages()) == ["summary", "q2", "b1"]
    assert contents(conversation.get(alternative=8).messages) == ["summary 2"]
    conversation.switch(8)
    assert contents(conversation.messages()) == ["summary 2"]
    assert branches(conversation) == [(5, 6, False), (5, 8, True)]
    conversation.switch(6)
    conversation.append_messages([answer("c")], replace_after=2, keep=True)
    assert contents(conversation.messages()) == ["summary", "c"]
    assert_sound(store)


def test_compaction_that_discards_messages_deletes_their_alternatives(store: Store) -> None:
    conversation = asked(store)
    conversation.append_message(message("late"))
    conversation.compact(lambda messages: message("summary", role="system"), discard=True)
    assert conversation.alternatives() == []
    assert store.stats().alternatives == 0
    conversation.append_messages([message("q2"), answer("b1")])
    conversation.append_messages([answer("b2")], replace_after=conversation.messages()[-2].seq, keep=True)
    assert len(conversation.alternatives()) == 2
    with pytest.raises(InvalidCut):
        conversation.append_messages([answer("b2")], replace_after=2, keep=True)
    assert_sound(store)


def test_last_consolidated_counts_only_common_messages(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_messages([message("q"), answer("a1"), answer("a2")])
    conversation.append_messages([answer("b1"), answer("b2")], replace_after=1, keep=True)
    conversation.update(last_consolidated=3)
    conversation.switch(2)
    assert conversation.info().last_consolidated == 1


# Undo and earlier logs


def test_undo_does_not_go_back_beyond_a_switch(keeping: Store) -> None:
    conversation = asked(keeping)
    assert conversation.versions.undo() is None
    conversation.append_message(message("q2"))
    conversation.truncate(after=6)
    undone = conversation.versions.undo()
    assert undone is not None
    assert contents(conversation.messages()) == ["q", "a3", "q2"]
    conversation.switch(2)
    assert conversation.versions.redo() is None
    assert contents(conversation.messages()) == ["q", "a1"]
    assert_sound(keeping)


def test_earlier_log_is_that_before_and_after_each_switch(keeping: Store) -> None:
    conversation = asked(keeping)
    logs = {}
    for id in (2, 6, 4, 2, 6):
        logs[conversation.info().last_seq] = contents(conversation.messages())
        conversation.switch(id)
    logs |= {1: ["q"], 2: ["q", "a1"], 3: ["q", "a2"], 4: ["q", "a2"], 6: ["q", "a3"]}
    assert {seq: contents(conversation.get(as_of=seq).messages) for seq in logs} == logs
    with Store(keeping.engine) as other:
        other.conversation("k").switch(2)
        with pytest.raises(NotKept):
            conversation.get(as_of=2)


def test_earlier_log_is_right_after_the_copies_have_expired(url: str, store: Store) -> None:
    asked(store)
    with Store(url, keep_removed=timedelta(days=30)) as keeping:
        conversation = keeping.conversation("k")
        before = conversation.info().last_seq
        conversation.switch(2)
        after = conversation.info().last_seq
        conversation.switch(4)
        assert contents(conversation.get(as_of=before).messages) == ["q", "a3"]
        assert contents(conversation.get(as_of=after).messages) == ["q", "a1"]
        assert [each.id for each in conversation.get(as_of=after).messages] == ["q", "a1"]


def test_alternatives_do_not_expire(keeping: Store, clock: object) -> None:
    conversation = asked(keeping)
    clock.move(days=100)  # type: ignore[attr-defined]
    keeping.expire()
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True)]
    conversation.switch(2)
    assert contents(conversation.messages()) == ["q", "a1"]


# Both interfaces


def test_async_store_has_the_same_methods(either_store: Store) -> None:
    conversation = asked(either_store)
    assert branches(conversation) == [(1, 2, False), (1, 4, False), (1, 6, True)]
    assert conversation.switch(4) is True
    assert conversation.drop_alternative(2) is True
    assert contents(conversation.get(alternative=6).messages) == ["q", "a3"]


def paying(store: Store) -> tuple[Conversation, int]:
    """Store a question, and an answer that asks for a tool call; return the seq of the answer."""
    conversation = store.open("k")
    conversation.append_message(message("q", id="q"))
    asking = conversation.append_message(answer("", tool_calls=[ToolCall(id="c", name="pay", arguments={})]))
    return conversation, asking.seq


def replace_answer(conversation: Conversation) -> int:
    """Keep the answer, append another one in its place, and return the seq of the new one."""
    (stored,) = conversation.append_messages([answer("other")], replace_after=1, keep=True)
    return stored.seq


def test_call_without_a_result_is_unknown_after_a_switch_back(store: Store) -> None:
    conversation, asking = paying(store)
    with suppress(ValueError), conversation.turn() as turn, turn.call(asking, 0):
        raise ValueError
    replace_answer(conversation)
    assert conversation.calls.list() == []
    assert store.calls.list_unknown().items == []
    assert store.stats().unknown_calls == 0
    with pytest.raises(CallNotFound, match="set aside"):
        conversation.calls.resolve(asking, 0, output="paid")
    assert_sound(store)
    conversation.switch(asking)
    with pytest.raises(CallUnknown):
        conversation.calls.begin(asking, 0)
    assert [(each.seq, each.state) for each in store.calls.list_unknown().items] == [(asking, "unknown")]
    assert store.stats().unknown_calls == 1
    conversation.calls.resolve(asking, 0, output="paid")
    assert contents(conversation.messages())[-1] == "paid"


def test_finished_call_has_its_result_after_a_switch_back(store: Store) -> None:
    conversation, asking = paying(store)
    conversation.calls.finish(conversation.calls.begin(asking, 0), "paid")
    replace_answer(conversation)
    conversation.switch(asking)
    assert conversation.calls.begin(asking, 0).replayed
    assert [each.state for each in conversation.calls.list()] == ["finished"]


def test_result_of_a_call_that_is_set_aside_is_refused(store: Store) -> None:
    conversation, asking = paying(store)
    effect = conversation.calls.begin(asking, 0)
    replace_answer(conversation)
    with pytest.raises(Conflict, match="was removed"):
        conversation.calls.finish(effect, "paid")
    assert contents(conversation.messages()) == ["q", "other"]
    conversation.switch(asking)
    with pytest.raises(CallInProgress):
        conversation.calls.begin(asking, 0)


def test_call_that_waits_outside_is_unknown_after_a_switch_back(store: Store) -> None:
    conversation, asking = paying(store)
    with conversation.turn() as turn, turn.call(asking, 0) as effect:
        effect.wait({"job": 1}, until=timedelta(hours=1))
    replace_answer(conversation)
    with pytest.raises(SuspensionNotFound):
        store.calls.finish({"job": 1}, "paid")
    conversation.switch(asking)
    with pytest.raises(CallUnknown):
        conversation.calls.begin(asking, 0)


@pytest.mark.parametrize("is_switch", [True, False])
def test_result_that_waits_in_the_inbox_is_set_aside_with_its_call(store: Store, is_switch: bool) -> None:
    conversation, asking = paying(store)
    if is_switch:
        replace_answer(conversation)
        conversation.switch(asking)
    with conversation.turn() as turn, turn.call(asking, 0) as effect:
        effect.wait({"job": 1}, until=timedelta(hours=1))
    store.calls.finish({"job": 1}, "paid")
    if is_switch:
        (other,) = [each.id for each in conversation.alternatives() if not each.is_shown]
        conversation.switch(other)
    else:
        replace_answer(conversation)
    assert contents(conversation.messages()) == ["q", "other"]
    assert (conversation.inbox.list(), store.owed().items) == ([], [])
    assert_sound(store)
    conversation.switch(asking)
    assert contents(conversation.messages())[-1] == "paid"
    assert [each.state for each in conversation.calls.list()] == ["finished"]
    assert_sound(store)


def test_result_of_a_call_before_the_branch_stays_in_the_inbox(store: Store) -> None:
    conversation, asking = paying(store)
    with conversation.turn() as turn, turn.call(asking, 0) as effect:
        effect.wait({"job": 1}, until=timedelta(hours=1))
    conversation.append_message(answer("it takes a while"))
    store.calls.finish({"job": 1}, "paid")
    conversation.append_messages([answer("soon")], replace_after=asking, keep=True)
    assert contents(conversation.inbox.list()) == ["paid"]
    with conversation.turn() as turn:
        turn.take_inbox()
    assert contents(conversation.messages())[-1] == "paid"


def test_dropped_alternative_takes_its_calls_with_it(store: Store) -> None:
    conversation, asking = paying(store)
    with suppress(ValueError), conversation.turn() as turn, turn.call(asking, 0):
        raise ValueError
    replace_answer(conversation)
    assert conversation.drop_alternative(asking)
    assert_sound(store)


@pytest.mark.parametrize("id", [True, 1.5, "2", -1, 2**63])
def test_id_that_is_not_a_seq_is_refused(store: Store, id: object) -> None:
    conversation = asked(store)
    before = branches(conversation)
    methods: list[Callable[[object], object]] = [
        conversation.switch,  # type: ignore[list-item]
        conversation.drop_alternative,  # type: ignore[list-item]
        lambda each: conversation.get(alternative=each),  # type: ignore[arg-type]
    ]
    for method in methods:
        with pytest.raises(ValueError, match="is not a seq"):
            method(id)
    assert branches(conversation) == before


def test_commands_documents_and_pages_name_the_versions(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        conversation = store.open("k", messages=[Message.user("q"), Message.assistant("one")])
        conversation.append_messages([Message.assistant("two")], replace_after=1, keep=True)
        (shown,) = [each.id for each in conversation.alternatives() if each.is_shown]
    assert "version 2 of 2 · alternatives: 2" in run("sessions", "show", "k", "--url", url).stdout
    assert run("sessions", "show", "k", "--url", url, "--html", str(tmp_path / "k.html")).returncode == 0
    document = (tmp_path / "k.html").read_text("utf-8")
    assert "version 2 of 2 · alternatives: 2" in document.split(f'id="m{shown}"')[1]
    assert "version" not in document.split(f'id="m{shown}"')[0].split("</style>")[1]
    with Store(url) as store:
        token = "a token of some length"
        browser = TestClient(application(store, token), base_url="http://localhost")
        page = browser.get(f"/{token}/session?key=k").text
        assert "version 2 of 2 · alternatives: 2" in page
        assert 'href="session?key=k&amp;alternative=2"' in page
        other = browser.get(f"/{token}/session?key=k&alternative=2").text
        assert "one" in other
        assert "two" not in other
        assert browser.get(f"/{token}/session?key=k&alternative=9").status_code == 404


# Damage


COUNTS = {
    "UPDATE lango_session SET alternatives = NULL": "lango_session.alternatives is None, its rows say 3",
    "UPDATE lango_session SET alternatives = 9": "lango_session.alternatives is 9, its rows say 3",
    "UPDATE lango_alternative SET message_count = 7 WHERE first_seq = 2": "message_count is 7, its rows say 2",
}
LINKS = {
    "UPDATE lango_alternative SET within = 77 WHERE first_seq = 2": "that do not lead to the log: 1, such as 2",
    "UPDATE lango_alternative SET within = first_seq": "that do not lead to the log: 3, such as 1",
    "UPDATE lango_alternative SET last_seq = 88 WHERE first_seq = 2": "first or last message: 1, such as 88",
    "DELETE FROM lango_alternative_message WHERE seq = 1": "first or last message: 1, such as 1",
    "DELETE FROM lango_alternative WHERE first_seq = 2": "_message without their alternative: 2, such as 2",
    "UPDATE lango_alternative_turn SET alternative = 99": "_turn without their alternative: 1, such as 99",
    "UPDATE lango_message SET seq = 2 WHERE role = 'user'": "messages that are in the log and set aside: 1, such as 2",
}


def test_doctor_finds_damaged_alternatives_and_repairs_counts(store: Store) -> None:
    for key in ("k", "sound"):
        conversation = store.open(key, messages=[message("q")])
        conversation.save_turn([answer("a1"), message("q2")])
        conversation.append_messages([answer("a2")], replace_after=1, keep=True)
        other, _ = conversation.append_messages([message("other"), answer("a3")], replace_after=0, keep=True)
        conversation.append_messages([answer("a4")], replace_after=other.seq, keep=True)
    assert_sound(store)
    for statement, detail in (COUNTS | LINKS).items():
        key = "key" if "lango_session" in statement else "session_key"
        with store.engine.connect() as connection:  # rolls back
            connection.exec_driver_sql(f"{statement} {'AND' if 'WHERE' in statement else 'WHERE'} {key} = 'k'")
            found = [each for check in (checks.LINKS, checks.COUNTS) for each in check.find(connection)]
        assert {key for key, *_ in found} == {"k"}, statement
        assert any(detail in each for _, each, _ in found), found
    with store.engine.begin() as connection:
        for statement in COUNTS:
            connection.exec_driver_sql(statement)
    repaired = [each for each in store.maintenance.examine(repair=True) if each.name == "count of alternatives"]
    assert (len(repaired), {each.repaired for each in repaired}) == (4, {True})
    assert_sound(store)


# Search


def test_search_finds_messages_that_are_set_aside_without_an_index(store: Store) -> None:
    conversation = store.open("k", messages=[message("Weather in Oslo?"), answer("Rain in Oslo", model="m")])
    store.create("other", messages=[message("Oslo")])
    conversation.append_messages([answer("Sun in Oslo")], replace_after=1, keep=True)
    conversation.append_messages([Message(role="record", content="Oslo"), answer("Snow")], replace_after=1, keep=True)
    conversation.append_messages([message("Bergen?")], replace_after=0, keep=True)

    def search(words: str, **which: Any) -> list[tuple[int, int | None]]:
        page = conversation.search(words, alternatives=True, **which)
        assert {each.key for each in page.items} <= {"k"}
        return [(each.seq, each.alternative) for each in page.items]

    assert search("oslo") == [(4, 4), (2, 2), (1, 1)]
    assert search("oslo -rain") == [(4, 4), (1, 1)]
    assert search("oslo", model="m") == search("rain") == [(2, 2)]
    assert search("oslo", role="user") == [(1, 1)]
    assert search("bergen") == search("-oslo") == []
    (hit,) = conversation.search("rain", alternatives=True).items
    assert [hit.snippet[start:end] for start, end in hit.places] == ["Rain"]
    first = conversation.search("oslo", alternatives=True, limit=2)
    assert ([each.seq for each in first.items], first.newest) == ([4, 2], 4)
    last = conversation.search("oslo", alternatives=True, limit=2, cursor=first.next)
    assert ([each.seq for each in last.items], last.next) == ([1], None)
    conversation.switch(hit.alternative or 0)
    assert search("rain") == []
    assert search("bergen") == [(9, 9)]
    with pytest.raises(SessionNotFound):
        store.conversation("missing").search("oslo", alternatives=True)
    branched = store.open("z", user_id="ann", messages=[message("Oslo"), answer("Sun in Oslo")])
    branched.append_messages([message("Rome")], replace_after=0, keep=True)
    page = store.search("oslo", alternatives=True)
    assert [(each.key, each.seq, each.alternative) for each in page.items] == [
        ("z", 2, 1),
        ("z", 1, 1),
        ("k", 4, 4),
    ]
    (hit,) = store.search("sun", alternatives=True, user_id="ann").items
    assert (hit.key, hit.user_id) == ("z", "ann")
    (hit,) = store.for_user("ann").search("oslo", alternatives=True, role="user").items
    assert (hit.key, hit.seq) == ("z", 1)
    second = store.search("oslo", alternatives=True, limit=2, cursor="2")
    assert ([each.key for each in second.items], second.next) == (["k"], None)
