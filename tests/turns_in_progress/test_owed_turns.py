"""The turns that a session stays owed when turns fail, other turns run, clocks are wrong, or it is copied."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.factories import contents, message
from support.statements import watched
from support.working import answer, fail, work

from lango_store import Conversation, Message, RunningTurn, Store, ToolCall
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy
from lango_store.testing import Clock


def put(store: Store, key: str = "k", text: str = "question", id: str | None = None) -> Conversation:
    conversation = store.open(key)
    conversation.inbox.put(message(text, id=id))
    return conversation


def owed(store: Store) -> list[tuple[str, str | None, int, str | None]]:
    return [(each.reason, each.turn_id, each.attempts, each.error) for each in store.owed().items]


def interrupt(conversation: Conversation, id: str, *, takes: bool = True) -> None:
    """Run an attempt of a turn that ends with an exception."""
    with suppress(ZeroDivisionError), conversation.turn(id) as turn:
        if takes:
            turn.take_inbox()
        raise ZeroDivisionError


def spoil(store: Store, statement: str) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql(statement)


# A turn that took a question


def test_interrupted_turn_stays_owed_if_its_second_attempt_raises_or_is_released(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    interrupt(conversation, "t", takes=False)
    assert owed(either_store) == [("interrupted", "t", 0, None)]
    conversation.turn("t").__enter__()
    conversation.turns.release()
    assert owed(either_store) == [("interrupted", "t", 0, None)]


@pytest.mark.parametrize("ends", ["saved", "raises", "released"])
def test_turn_that_took_a_question_stays_owed_after_another_turn(either_store: Store, ends: str) -> None:
    conversation = put(either_store)
    work(either_store, fail)
    ((_, failed, _, _),) = owed(either_store)
    other = conversation.turn("other").__enter__()
    other.append(message("something else"))
    if ends == "saved":
        other.__exit__(None, None, None)
    elif ends == "raises":
        other.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    else:
        conversation.turns.release()
    assert owed(either_store) == [("interrupted", failed, 0, None)]
    assert work(either_store, answer) == 1
    found = conversation.turns.find(str(failed))
    assert found is not None
    assert contents(found.messages)[0] == "question"
    assert owed(either_store) == []


def test_each_of_several_turns_that_took_a_question_is_continued(either_store: Store) -> None:
    conversation = either_store.open("k")
    for id in ("first", "second"):
        put(either_store, text=f"question of {id}")
        interrupt(conversation, id)
    with conversation.turn("third"):
        pass
    seen: list[tuple[str, list[object]]] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        seen.append((turn.id, contents(turn.messages)))

    assert work(either_store, handle) == 2
    assert seen == [("first", ["question of first"]), ("second", ["question of second"])]
    assert owed(either_store) == []


@pytest.mark.parametrize("ends", ["saved", "raises", "killed"])
def test_turn_that_was_given_up_stays_given_up_after_another_turn(either_store: Store, clock: Clock, ends: str) -> None:
    conversation = put(either_store)
    work(either_store, fail, attempts=1)
    (failed,) = either_store.owed().items
    other = conversation.turn("other").__enter__()
    if ends == "saved":
        other.__exit__(None, None, None)
    elif ends == "raises":
        other.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    else:
        clock.move(minutes=2)
        assert work(either_store, answer) == 1
    assert [(each.turn_id, each.given_up) for each in either_store.owed().items] == [(failed.turn_id, True)]
    assert work(either_store, answer) == 0
    with conversation.turn("a third one"):
        pass
    assert [(each.turn_id, each.given_up) for each in either_store.owed().items] == [(failed.turn_id, True)]
    assert conversation.turns.retry()
    assert work(either_store, answer) == 1
    assert owed(either_store) == []


def test_turn_that_took_a_question_after_another_was_given_up_is_run(either_store: Store) -> None:
    conversation = put(either_store)
    work(either_store, fail, attempts=1)
    (failed,) = either_store.owed().items
    put(either_store)
    interrupt(conversation, "other")
    assert [(each.turn_id, each.given_up) for each in either_store.owed().items] == [("other", False)]
    assert work(either_store, answer) == 1
    assert [(each.turn_id, each.given_up) for each in either_store.owed().items] == [(failed.turn_id, True)]


def test_retry_of_a_session_tries_all_its_given_up_turns_again(either_store: Store) -> None:
    conversation = put(either_store)
    work(either_store, fail, attempts=1)
    put(either_store)
    interrupt(conversation, "other")
    work(either_store, fail, attempts=1)
    assert [(each.turn_id, each.given_up) for each in either_store.owed().items] == [("other", True)]
    assert conversation.turns.retry()
    assert work(either_store, answer) == 2
    assert owed(either_store) == []


def test_turn_that_only_appended_is_not_owed_after_another_turn(either_store: Store) -> None:
    conversation = either_store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("appends") as turn:
        turn.append(message("a draft"))
        raise ZeroDivisionError
    put(either_store)
    interrupt(conversation, "takes")
    with conversation.turn("other"):
        pass
    assert owed(either_store) == [("interrupted", "takes", 0, None)]
    assert work(either_store, answer) == 1
    assert owed(either_store) == []


def test_turn_whose_question_was_deleted_is_not_owed_after_another_turn(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    other = conversation.turn("other").__enter__()
    conversation.truncate(after=0)
    other.__exit__(None, None, None)
    assert owed(either_store) == []


def test_turn_that_save_turn_stored_is_not_owed_after_another_turn(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    other = conversation.turn("other").__enter__()
    conversation.save_turn([message("answer", role="assistant")], id="t")
    other.__exit__(None, None, None)
    assert owed(either_store) == []


def test_attempts_of_a_failed_turn_do_not_count_for_another_turn(either_store: Store, clock: Clock) -> None:
    conversation = put(either_store)
    work(either_store, fail, attempts=2)
    conversation.turn("other").__enter__()
    clock.move(minutes=2)
    assert owed(either_store) == [("interrupted", "other", 0, None)]
    attempts: list[int] = []
    work(either_store, lambda own, turn: attempts.append(turn.attempt), attempts=1)
    assert attempts == [1, 1]


def test_released_turn_that_leaves_nothing_owed_leaves_no_attempts_for_the_next_question(
    either_store: Store, clock: Clock
) -> None:
    conversation = either_store.open("k")
    conversation.turn("t").__enter__()
    clock.move(minutes=2)
    work(either_store, fail)
    interrupt(conversation, "t")
    assert owed(either_store) == []
    put(either_store)
    assert owed(either_store) == [("inbox", None, 0, None)]


def test_saved_turn_leaves_no_error_for_the_next_question(either_store: Store, clock: Clock) -> None:
    put(either_store)
    work(either_store, fail)
    clock.move(seconds=5)
    work(either_store, answer)
    put(either_store)
    assert owed(either_store) == [("inbox", None, 0, None)]


def test_answered_suspension_is_owed_after_two_killed_attempts(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k")
    either_store.suspensions.answer(conversation.suspensions.create().token or "", "yes")
    for id in ("t1", "t2"):
        conversation.turn(id).__enter__()
        clock.move(minutes=2)
    conversation.turns.release()
    assert owed(either_store) == [("answer", None, 0, None)]


def test_interrupted_turn_stays_owed_if_the_last_message_of_the_inbox_is_dropped(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    put(either_store, id="second")
    conversation.inbox.delete("second")
    assert owed(either_store) == [("interrupted", "t", 0, None)]


def test_lease_of_a_claimed_turn_that_is_already_stored_is_released(either_store: Store, clock: Clock) -> None:
    conversation = put(either_store)
    conversation.turn("t").__enter__().take_inbox()
    clock.move(minutes=2)
    conversation.save_turn([message("answer", role="assistant")], id="t")
    assert work(either_store, fail) == 0
    assert conversation.turns.in_progress() is None
    assert owed(either_store) == []


# Sessions that wait for nothing


def test_turn_whose_questions_were_removed_is_not_continued(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    conversation.truncate(after=0)
    assert work(either_store, fail) == 0
    assert (owed(either_store), conversation.all_messages()) == ([], [])
    put(either_store)
    assert work(either_store, answer) == 1


def test_turn_whose_question_is_in_a_summary_is_continued(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    conversation.compact(lambda window: [message("summary of the question")], discard=True)
    assert conversation.all_messages()[0].content == "summary of the question"
    assert work(either_store, answer) == 1
    assert (owed(either_store), conversation.turns.list()[-1].id) == ([], "t")


def test_turn_whose_question_is_set_aside_does_not_answer_another_one(either_store: Store) -> None:
    conversation = either_store.open("k")
    conversation.append_messages([message("question"), Message.assistant("answer")])
    conversation.inbox.put_messages([message("edited question")], replace_after=0, keep=True)
    interrupt(conversation, "t")
    conversation.switch(1)
    assert work(either_store, fail) == 0
    assert owed(either_store) == []
    assert contents(conversation.all_messages()) == ["question", "answer"]
    (aside,) = (each.id for each in conversation.alternatives() if not each.is_shown)
    conversation.switch(aside)
    assert contents(conversation.all_messages()) == ["edited question"]


@pytest.mark.parametrize("has_failed", [False, True])
def test_other_answer_is_not_owed_after_a_switch(either_store: Store, has_failed: bool) -> None:
    conversation = either_store.open("k")
    conversation.append_messages([message("question"), Message.assistant("one")])
    conversation.inbox.put_messages([], replace_after=1, keep=True)
    if has_failed:
        work(either_store, fail)
    assert [each.reason for each in either_store.owed().items] == ["interrupted" if has_failed else "answer"]
    conversation.switch(2)
    assert owed(either_store) == []
    conversation.inbox.put_messages([], replace_after=1, keep=True)
    conversation.inbox.put(message("other"))
    conversation.switch(2)
    assert owed(either_store) == [("inbox", None, 0, None)]
    assert work(either_store, answer) == 1
    assert contents(conversation.all_messages()) == ["question", "one", "other", "answer to other"]


def test_handler_is_not_called_for_an_inbox_without_rows(either_store: Store) -> None:
    conversation = put(either_store)
    spoil(either_store, "DELETE FROM lango_inbox")
    assert work(either_store, fail) == 0
    assert owed(either_store) == []
    assert (conversation.turns.list(), conversation.turns.in_progress()) == ([], None)
    put(either_store)
    assert owed(either_store) == [("inbox", None, 0, None)]
    assert work(either_store, answer) == 1


def test_handler_is_not_called_for_a_question_that_a_saved_turn_has_stored(either_store: Store) -> None:
    conversation = put(either_store, id="q")
    conversation.save_turn([message("question", id="q"), Message.assistant("answer")], id="t")
    assert work(either_store, answer) == 0
    assert (owed(either_store), conversation.inbox.list()) == ([], [])
    assert contents(conversation.messages()) == ["question", "answer"]


def test_interrupted_turn_of_a_session_with_an_inbox_without_rows_is_continued_once(either_store: Store) -> None:
    conversation = put(either_store)
    interrupt(conversation, "t")
    put(either_store)
    spoil(either_store, "DELETE FROM lango_inbox")
    assert work(either_store, answer) == 1
    assert owed(either_store) == []


def test_examine_finds_and_repairs_an_inbox_without_rows(store: Store) -> None:
    put(store)
    put(store, "other")
    spoil(store, "DELETE FROM lango_inbox WHERE session_key = 'k'")
    assert [(each.name, each.subject) for each in store.maintenance.examine() if each.name != "settings"] == [
        ("empty inbox", "k")
    ]
    store.maintenance.examine(repair=True)
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
    assert [each.key for each in store.owed().items] == ["other"]


def test_turn_that_a_previous_release_ended_after_the_upgrade_is_not_run(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k")
    turn = conversation.turn("t").__enter__()
    spoil(either_store, "UPDATE lango_session SET waiting = NULL")  # as revision 0110 leaves a running turn
    turn.append(message())
    # The previous release does not know `owed_at`.
    spoil(either_store, "UPDATE lango_session SET lease_token = NULL, lease_turn = NULL, lease_until = NULL")
    clock.move(minutes=2)
    assert work(either_store, fail) == 0
    assert owed(either_store) == []
    assert len(conversation.messages()) == 1
    assert conversation.turns.list() == []


# Wrong clocks


def test_question_of_a_process_whose_clock_is_ahead_is_answered_at_once(either_store: Store, clock: Clock) -> None:
    clock.move(hours=5)
    put(either_store)
    clock.move(hours=-5)
    put(either_store, text="second")
    assert work(either_store, answer) == 1
    assert owed(either_store) == []


def test_clock_that_is_set_back_delays_the_next_attempt_by_a_day_at_most(either_store: Store, clock: Clock) -> None:
    put(either_store)
    work(either_store, fail)
    clock.move(days=-2)
    assert work(either_store, answer) == 1


def test_clock_that_is_set_back_does_not_run_a_turn_that_was_given_up(either_store: Store, clock: Clock) -> None:
    put(either_store)
    work(either_store, fail, attempts=1)
    clock.move(days=-2)
    assert work(either_store, answer) == 0


# The inbox


def test_put_with_an_id_reads_no_other_message_of_the_inbox(store: Store) -> None:
    conversation = store.open("k")
    for number in range(3):
        put(store, id=f"m{number}")
    with watched(store.engine) as statements:
        stored = conversation.inbox.put(message("other", id="m1"))
    assert (stored.content, stored.replayed) == ("question", True)
    (read,) = [each for each in statements if "FROM lango_inbox" in each and each.lstrip().startswith("SELECT")]
    assert "lango_inbox.id = " in read


# Copies


def duplicate(store: Store, how: str, make_database: MakeDatabase, folder: Path, clock: Clock) -> Store:
    """Return a store with a copy of the session `k`."""
    if how == "archive":
        clock.move(days=1)
        store.expire(older_than=timedelta(hours=1), archive=str(folder / "cold.db"))
        store.restore("k", str(folder / "cold.db"))
        return store
    target = Store(make_database(), clock=clock)
    if how == "backup":
        export(store, folder / "b.jsonl", "backup", everything=True)
        import_path(target, folder / "b.jsonl")
    else:
        copy(store, target)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("how", ["backup", "copy", "archive"])
@pytest.mark.parametrize("is_running", [False, True], ids=["failed", "running"])
def test_copy_of_an_owed_session_continues_its_turn(
    store: Store, make_database: MakeDatabase, tmp_path: Path, clock: Clock, how: str, is_running: bool
) -> None:
    put(store)
    paid: list[int] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")]))
        with turn.call(asking, 0) as effect:
            if not effect.replayed:
                paid.append(40)
                effect.output = "paid"
        if len(paid) and turn.id not in seen:
            seen.append(turn.id)
            raise ZeroDivisionError
        seen.append(turn.id)

    seen: list[str] = []
    work(store, handle)
    if is_running:
        store.conversation("k").turn(seen[0]).__enter__()
    target = duplicate(store, how, make_database, tmp_path, clock)
    assert target.conversation("k").turns.in_progress() is None
    assert [each.turn_id for each in target.owed().items] == seen
    clock.move(minutes=2)
    assert work(target, handle) == 1
    assert (paid, seen) == ([40], [seen[0]] * 2)
    found = target.conversation("k").turns.find(seen[0])
    assert found is not None
    assert [each.role.value for each in found.messages] == ["user", "assistant", "tool"]
    if target is not store:
        target.close()
