"""`Store.work` runs the turns that sessions are owed, and `Store.owed` lists them."""

import os
import signal
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from support.factories import contents, message
from support.statements import watched
from support.working import answer, fail, work

from lango_store import (
    Conversation,
    InvalidCursor,
    InvalidState,
    LeaseLost,
    Message,
    RunningTurn,
    Store,
    ToolCall,
    create_engine,
)
from lango_store._operations.session.lists import cursor_after
from lango_store._rooms.turns_in_progress import claims
from lango_store._rooms.turns_in_progress.working import Worker
from lango_store.testing import Clock

AT_ONCE = timedelta(0)


def put(store: Store, key: str, text: str = "question") -> Conversation:
    """Put a message into the inbox of a session, which is created if necessary."""
    conversation = store.open(key)
    conversation.inbox.put(message(text))
    return conversation


def interrupt(conversation: Conversation, id: str, clock: Clock) -> None:
    """Begin a turn as a process that dies."""
    conversation.turn(id).__enter__().append(message("asked"))
    clock.move(minutes=2)


def reasons(store: Store) -> list[tuple[str, str, str | None]]:
    return [(each.key, each.reason, each.turn_id) for each in store.owed().items]


# Owed turns


def test_owed_lists_inboxes_interrupted_turns_and_answers_the_longest_due_first(
    either_store: Store, clock: Clock
) -> None:
    suspended = either_store.open("suspended").suspensions.create()
    put(either_store, "inbox")
    clock.move(seconds=1)
    interrupt(either_store.open("interrupted"), "t", clock)
    either_store.suspensions.answer(suspended.token or "", "yes")
    either_store.open("idle").save_turn([message()])
    assert reasons(either_store) == [
        ("inbox", "inbox", None),
        ("interrupted", "interrupted", "t"),
        ("suspended", "answer", None),
    ]


def test_owed_does_not_list_a_running_turn(either_store: Store) -> None:
    conversation = put(either_store, "k")
    with conversation.turn():
        assert either_store.owed().items == []
    assert reasons(either_store) == [("k", "inbox", None)]


def test_owed_lists_turns_page_by_page(either_store: Store, clock: Clock) -> None:
    for number in range(5):
        put(either_store, f"k{number}")
        clock.move(seconds=number % 2)
    keys, cursor = [], None
    while True:
        page = either_store.owed(limit=2, cursor=cursor)
        keys += [each.key for each in page.items]
        if (cursor := page.next) is None:
            break
    assert keys == [f"k{number}" for number in range(5)]
    with pytest.raises(InvalidCursor):
        either_store.owed(cursor="x")


def test_owed_and_work_take_filters(either_store: Store) -> None:
    for key, agent, user in (("a/1", "x", "ann"), ("a/2", "y", "ann"), ("b/1", "x", "ben")):
        put(either_store, key)
        either_store.conversation(key).update(agent_id=agent, user_id=user)
    listed = {
        "agent": either_store.owed(agent_id="x"),
        "user": either_store.owed(user_id="ann"),
        "prefix": either_store.owed(key_prefix="a/"),
        "all": either_store.owed(key_prefix="a/", user_id="ann", agent_id="x"),
    }
    keys = {name: [each.key for each in page.items] for name, page in listed.items()}
    assert keys == {"agent": ["a/1", "b/1"], "user": ["a/1", "a/2"], "prefix": ["a/1", "a/2"], "all": ["a/1"]}
    assert work(either_store, answer, key_prefix="a/", agent_id="x") == 1
    assert [each.key for each in either_store.owed().items] == ["a/2", "b/1"]


def test_expired_session_is_owed_nothing(either_store: Store, clock: Clock) -> None:
    either_store.create("k", ttl=timedelta(seconds=1))
    put(either_store, "k")
    clock.move(seconds=1)
    assert either_store.owed().items == []
    assert work(either_store, answer) == 0


def test_turn_that_took_nothing_from_the_inbox_leaves_it_owed(either_store: Store) -> None:
    conversation = put(either_store, "k")
    with conversation.turn() as turn:
        turn.append(message("other"))
    assert reasons(either_store) == [("k", "inbox", None)]


def test_turn_that_raised_is_owed_only_if_it_took_messages_from_the_inbox(either_store: Store) -> None:
    conversation = either_store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("t1") as turn:
        turn.append(message("asked"))
        raise ZeroDivisionError
    assert either_store.owed().items == []
    put(either_store, "k")
    with suppress(ZeroDivisionError), conversation.turn("t2") as turn:
        turn.take_inbox()
        raise ZeroDivisionError
    assert reasons(either_store) == [("k", "interrupted", "t2")]
    assert work(either_store, answer) == 1
    found = conversation.turns.find("t2")
    assert found is not None
    assert contents(found.messages) == ["question", "answer to asked, question"]


def test_dropping_the_last_message_of_the_inbox_leaves_nothing_owed(either_store: Store) -> None:
    conversation = either_store.open("k")
    conversation.inbox.put(message(id="a"))
    conversation.inbox.put(message(id="b"))
    conversation.inbox.delete("a")
    assert reasons(either_store) == [("k", "inbox", None)]
    conversation.inbox.delete("b")
    assert either_store.owed().items == []


def test_message_that_arrives_while_a_turn_ends_is_owed(store: Store) -> None:
    """The end of the turn waits for the transaction that stores the message."""
    conversation = store.open("k")
    turn = conversation.turn().begin()
    turn.append(message("asked"))
    if store.engine.dialect.name == "sqlite":
        conversation.inbox.put(message())
        turn.save()
    else:
        with store.transaction() as tx:
            tx.conversation("k").inbox.put(message())
            saving = threading.Thread(target=turn.save)
            saving.start()
            wait_for_lock(store)
        saving.join()
    assert reasons(store) == [("k", "inbox", None)]


def wait_for_lock(store: Store) -> None:
    """Wait until a backend waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.exec_driver_sql(query).scalar():
            pass


# Handlers


def test_work_runs_each_owed_turn_once_and_returns_their_number(either_store: Store) -> None:
    for number in range(3):
        put(either_store, f"k{number}")
        put(either_store, f"k{number}", "more")
    assert work(either_store, answer) == 3
    assert work(either_store, answer) == 0
    for number in range(3):
        conversation = either_store.conversation(f"k{number}")
        assert contents(conversation.messages()) == ["question", "more", "answer to question, more"]
        (turn,) = conversation.turns.list()
        assert (turn.first_seq, turn.last_seq) == (1, 3)
    assert either_store.owed().items == []


def test_handler_gets_a_conversation_whose_writes_need_the_lease(either_store: Store) -> None:
    conversation = put(either_store, "k")
    refused: list[type] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        own.values.set({"step": 1})
        conversation.turns.release()
        for write in (lambda: own.values.set({"step": 2}), own.clear, lambda: turn.append(message("late"))):
            try:
                write()
            except LeaseLost as error:
                refused.append(type(error))
        if len(refused) == 3:
            raise refused[0](own.key, 0)

    work(either_store, handle, attempts=1)
    assert len(refused) >= 3
    assert conversation.values.get() == {"step": 1}
    assert contents(conversation.messages()) == ["question"]


def test_handler_continues_a_turn_of_a_process_that_died(either_store: Store, clock: Clock) -> None:
    conversation = put(either_store, "k")
    lost = conversation.turn("t").__enter__()
    lost.take_inbox()
    lost.write("ans")
    lost.flush()
    assert work(either_store, answer) == 0
    clock.move(minutes=2)
    seen: list[tuple[str, list[object]]] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        seen.append((turn.id, contents(turn.messages)))
        answer(own, turn)

    assert work(either_store, handle) == 1
    assert seen == [("t", ["question"])]
    found = conversation.turns.find("t")
    assert found is not None
    assert contents(found.messages) == ["question", "answer to question"]
    assert conversation.drafts.list() == []
    with pytest.raises(LeaseLost):
        lost.append(message("late"))


def test_answered_suspension_is_continued_by_one_turn(either_store: Store) -> None:
    conversation = either_store.open("k")
    asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")]))
    suspension = conversation.suspensions.create([(asking.seq, 0)])
    assert work(either_store, answer) == 0
    either_store.suspensions.answer(suspension.token or "", "yes")

    def handle(own: Conversation, turn: RunningTurn) -> None:
        (answered,) = own.suspensions.list()
        turn.append(Message.tool(answered.answer, tool_call_id="c"))

    assert work(either_store, handle) == 1
    assert contents(conversation.messages()) == [None, "yes"]
    assert either_store.owed().items == []


def test_answer_that_arrives_during_a_turn_is_owed_another_turn(either_store: Store) -> None:
    conversation = either_store.open("k")
    first, second = conversation.suspensions.create(), conversation.suspensions.create()
    either_store.suspensions.answer(first.token or "", 1)
    with conversation.turn():
        either_store.suspensions.answer(second.token or "", 2)
    assert reasons(either_store) == [("k", "answer", None)]
    with suppress(ZeroDivisionError), conversation.turn():
        raise ZeroDivisionError
    assert reasons(either_store) == [("k", "answer", None)]
    with conversation.turn():
        pass
    assert either_store.owed().items == []


def test_turn_that_save_turn_has_stored_is_not_run_again(either_store: Store, clock: Clock) -> None:
    conversation = put(either_store, "k")
    lost = conversation.turn("t").__enter__()
    lost.take_inbox()
    clock.move(minutes=2)
    conversation.save_turn([message("answer", role="assistant")], id="t")
    assert work(either_store, fail) == 0
    assert either_store.owed().items == []


# Failures


def test_failed_turn_is_tried_again_after_growing_pauses_and_then_given_up(either_store: Store, clock: Clock) -> None:
    conversation = put(either_store, "k")
    tried: list[str] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        tried.append(turn.id)
        fail(own, turn)

    for attempt, pause in ((1, 5), (2, 20), (3, 80)):
        assert work(either_store, handle, attempts=4) == 0
        (owed,) = either_store.owed().items
        assert (owed.attempts, owed.error, owed.given_up) == (attempt, "TimeoutError", False)
        assert owed.due_at == clock.time + timedelta(seconds=pause)
        clock.move(seconds=pause - 1)
        work(either_store, handle, attempts=4)
        assert len(tried) == attempt
        clock.move(seconds=1)
    work(either_store, handle, attempts=4)
    assert [each.given_up for each in either_store.owed().items] == [True]
    clock.move(days=10_000)
    work(either_store, handle, attempts=4)
    assert tried == [tried[0]] * 4
    (owed,) = either_store.owed().items
    assert (owed.attempts, owed.error, owed.given_up, owed.due_at) == (4, "TimeoutError", True, None)
    put(either_store, "k", "more")
    work(either_store, handle, attempts=4)
    assert len(tried) == 4  # a new message does not begin the turn again
    assert conversation.turns.retry()
    assert work(either_store, answer) == 1
    assert contents(conversation.messages()) == ["question", "more", "answer to question, more"]
    (turn,) = conversation.turns.list()
    assert turn.id == tried[0]
    assert not conversation.turns.retry()


def test_saved_turn_ends_the_count_of_attempts(either_store: Store, clock: Clock) -> None:
    put(either_store, "k")
    work(either_store, fail)
    clock.move(seconds=5)
    work(either_store, answer)
    put(either_store, "k")
    work(either_store, fail)
    (owed,) = either_store.owed().items
    assert (owed.attempts, owed.due_at) == (1, clock.time + timedelta(seconds=5))


def test_attempts_of_processes_that_died_count(store: Store, clock: Clock) -> None:
    """A turn that kills its process must not do so forever."""
    put(store, "k")

    def die(own: Conversation, turn: RunningTurn) -> None:
        with store.engine.begin() as connection:  # as if this process had never released the lease
            connection.execute(sa.text("UPDATE lango_session SET lease_token = 7"))
        raise ZeroDivisionError

    for _ in range(3):
        work(store, die, attempts=3)
        clock.move(seconds=30)
    (owed,) = store.owed().items
    assert (owed.attempts, owed.given_up, owed.error) == (3, False, None)
    assert work(store, die, attempts=3) == 0
    (owed,) = store.owed().items
    assert owed.given_up
    clock.move(days=1)
    assert work(store, answer, attempts=3) == 0


def test_turn_that_was_given_up_can_be_ended_by_hand(either_store: Store) -> None:
    conversation = put(either_store, "k")
    work(either_store, fail, attempts=1)
    (owed,) = either_store.owed().items
    with conversation.turn(owed.turn_id) as turn:
        assert contents(turn.messages) == ["question"]
        turn.append(Message.assistant("Sorry."))
    assert either_store.owed().items == []
    put(either_store, "k")
    assert work(either_store, answer) == 1


def test_failure_of_one_turn_does_not_stop_the_others(either_store: Store) -> None:
    for key in ("bad", "good"):
        put(either_store, key)
    assert work(either_store, lambda own, turn: (fail if own.key == "bad" else answer)(own, turn)) == 1
    assert [each.key for each in either_store.owed().items] == ["bad"]


def test_work_leaves_turns_that_were_given_up_and_ends(either_store: Store, clock: Clock) -> None:
    for key in ("a", "b"):
        put(either_store, key)
    work(either_store, fail, attempts=1)
    put(either_store, "c")
    clock.move(days=10_000)
    assert work(either_store, answer, attempts=5) == 1
    assert work(either_store, answer, attempts=5) == 0
    assert [(each.key, each.given_up) for each in either_store.owed().items] == [("a", True), ("b", True)]


def test_work_in_a_transaction_is_refused(store: Store) -> None:
    with store.transaction() as tx, pytest.raises(InvalidState):
        tx.work(answer, once=True)


def test_options_of_work_are_checked(store: Store) -> None:
    async def handle(own: Conversation, turn: RunningTurn) -> None:
        pass

    with pytest.raises(TypeError, match="coroutine"):
        store.work(handle, once=True)
    for options in ({"concurrency": 0}, {"attempts": 0}, {"lease": AT_ONCE}, {"backoff": timedelta(days=2)}):
        with pytest.raises(ValueError, match=next(iter(options))):
            work(store, answer, **options)
    with pytest.raises(TypeError, match="agent"):
        work(store, answer, agent="x")


# Statements


def test_poll_of_an_idle_worker_is_one_statement(store: Store) -> None:
    store.create("k")
    assert work(store, answer) == 0
    with watched(store.engine) as statements:
        assert work(store, answer) == 0
    assert len([each for each in statements if "lango_session" in each]) == 1


@pytest.mark.parametrize("which", [{}, {"agent_id": "a"}, {"key_prefix": "k"}], ids=["all", "agent", "prefix"])
def test_poll_and_list_use_the_index_of_owed_turns(url: str, which: dict[str, str]) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        for number in range(300):
            store.create(f"k{number:03}", agent_id="a")
        put(store, "k007")
        with engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE lango_session")
        with watched(engine) as statements:
            cursor = cursor_after("owed", datetime(2026, 1, 1, tzinfo=UTC), "k")
            store.owed(cursor=cursor, **which)  # type: ignore[arg-type]
            store.work(answer, once=True, **which)  # type: ignore[arg-type]
        plans = [plan(engine, each, which) for each in statements if "ORDER BY lango_session.owed_at" in each]
    engine.dispose()
    assert len(plans) >= 3  # the list, the poll, the claim
    for each in plans:
        assert "ix_lango_session_owed_at" in each
        assert "SORT" not in each.upper()
        assert "TEMP B-TREE" not in each


def plan(engine: sa.Engine, statement: str, which: dict[str, str]) -> str:
    """Return the plan of a statement."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
            return "\n".join(str(row[-1]) for row in rows)
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        values = {"now": moment, "limit": 21, "cursor_time": moment, "cursor_key": "k", "prefix_end": "l"} | which
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", values))


def test_sigterm_while_a_worker_asks_for_owed_turns_ends_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = claims.is_any_due

    def ask_and_terminate(*arguments: Any) -> bool:
        is_due = ask(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return is_due

    monkeypatch.setattr(claims, "is_any_due", ask_and_terminate)
    assert store.work(answer) == 0


def test_turn_that_fails_while_a_worker_asks_for_owed_turns_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "k")
    has_asked, has_failed = threading.Event(), threading.Event()
    ask, end = claims.is_any_due, Worker.end

    def ask_and_wait(*arguments: Any) -> bool:
        is_due = ask(*arguments)
        if not is_due:
            has_asked.set()
            assert has_failed.wait(30)
        return is_due

    def handle(conversation: Conversation, turn: RunningTurn) -> None:
        assert has_asked.wait(30)
        raise RuntimeError

    def end_and_tell(*arguments: Any) -> None:
        end(*arguments)
        has_failed.set()

    monkeypatch.setattr(claims, "is_any_due", ask_and_wait)
    monkeypatch.setattr(Worker, "end", end_and_tell)
    store.work(handle, concurrency=2, once=True, attempts=2, backoff=AT_ONCE, poll=timedelta(milliseconds=50))
    (owed,) = store.owed().items
    assert (owed.given_up, owed.attempts) == (True, 2)
