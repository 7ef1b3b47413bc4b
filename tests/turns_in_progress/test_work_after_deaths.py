"""Workers whose process dies: each turn of the process runs alone next time, and only its own deaths count."""

from datetime import timedelta
from typing import Any

import pytest
from support.databases import not_on_a_cluster
from support.factories import contents, message
from support.working import answer, fail, work

from lango_store import Conversation, RunningTurn, Store
from lango_store._rooms.turns_in_progress.working import Worker
from lango_store.testing import Clock

LEASE = timedelta(seconds=30)
OPTIONS: dict[str, Any] = {"poll": timedelta(0), "backoff": timedelta(0)}


def put(store: Store, *keys: str) -> None:
    for key in keys:
        store.open(key).inbox.put(message("question"))


def open_worker(store: Store, **options: Any) -> Worker:
    """Return a worker whose steps the test makes, and which dies if the test makes no more."""
    defaults = {"concurrency": 8, "attempts": 5, "once": False} | OPTIONS
    return store._worker(LEASE, {}, **(defaults | options))


def claimed(worker: Worker) -> list[str]:
    return sorted(turn.key for turn in worker.step())


def die_with_turns(store: Store, clock: Clock, count: int, **options: Any) -> None:
    """Claim turns as a process that dies, and wait until their leases have ended."""
    assert len(claimed(open_worker(store, **options))) == count
    clock.move(seconds=31)


def counts(store: Store) -> dict[str, int]:
    return {each.key: each.attempts for each in store.owed().items}


def test_turns_of_a_process_that_died_run_one_at_a_time(either_store: Store, store: Store, clock: Clock) -> None:
    keys = ["a", "b", "c"]
    put(store, *keys)
    die_with_turns(store, clock, 3)
    running: list[list[str]] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        running.append([each.key for each in store.turns.list_in_progress().items if each.held])
        answer(own, turn)

    assert work(either_store, handle) == 3
    assert sorted(running) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("deaths", [1, 2])
def test_question_that_is_deleted_after_a_death_is_not_answered(store: Store, clock: Clock, deaths: int) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("question", id="q"))
    for _ in range(deaths):
        die_with_turns(store, clock, 1)
        conversation.inbox.delete("q")
    assert store.work(lambda conversation, turn: pytest.fail("nothing is asked"), once=True) == 0
    assert store.owed().items == []


def test_turn_that_kills_its_process_is_given_up_and_no_other(store: Store, clock: Clock) -> None:
    put(store, "bad", "a", "b", "c")
    deaths = 0
    while turns := (worker := open_worker(store, attempts=3)).step():
        while turns and "bad" not in [turn.key for turn in turns]:
            for turn in turns:
                worker.begin(turn)
                turn.append(message("answer", role="assistant"))
                worker.end(turn, None)
            turns = worker.step()
        deaths += bool(turns)
        clock.move(seconds=31)
    assert deaths == 4  # the first one was not alone
    (owed,) = store.owed().items
    assert (owed.key, owed.attempts, owed.given_up) == ("bad", 3, True)
    assert all(contents(store.conversation(key).messages()) == ["question", "answer"] for key in "abc")


def test_turn_that_dies_with_others_loses_no_attempt(either_store: Store, store: Store, clock: Clock) -> None:
    put(store, "a", "b")
    for _ in range(3):
        die_with_turns(store, clock, 2)
        assert counts(store) == {"a": 0, "b": 0}
        for turn in store.owed().items:
            store.conversation(turn.key).turns.release()  # so that they run together again
    assert work(either_store, answer, attempts=1) == 2


def test_turn_that_dies_alone_loses_an_attempt(store: Store, clock: Clock) -> None:
    put(store, "a")
    for attempt in (1, 2, 3):
        die_with_turns(store, clock, 1)
        assert counts(store) == {"a": attempt}


def test_attempt_with_a_single_handler_counts_although_others_are_due(store: Store, clock: Clock) -> None:
    put(store, "a", "b")
    die_with_turns(store, clock, 1, concurrency=1)
    assert sorted(counts(store).values()) == [0, 1]


def test_turn_that_gets_company_before_it_dies_loses_no_attempt(store: Store, clock: Clock) -> None:
    put(store, "a")
    worker = open_worker(store, concurrency=3)
    assert claimed(worker) == ["a"]
    put(store, "b")
    assert claimed(worker) == ["b"]
    put(store, "c")
    assert claimed(worker) == ["c"]
    clock.move(seconds=31)
    assert counts(store) == {"a": 0, "b": 0, "c": 0}


def test_turn_that_gets_company_keeps_the_attempts_that_it_has_lost(store: Store, clock: Clock) -> None:
    put(store, "a")
    work(store, fail, **OPTIONS, attempts=2)
    assert store.conversation("a").turns.retry()
    for _ in range(2):
        work(store, fail, backoff=timedelta(minutes=1), attempts=5)
        clock.move(minutes=4)
    worker = open_worker(store)
    assert claimed(worker) == ["a"]
    put(store, "b")
    assert claimed(worker) == ["b"]
    clock.move(seconds=31)
    assert counts(store) == {"a": 2, "b": 0}


def test_turn_that_fails_among_others_loses_an_attempt(either_store: Store) -> None:
    put(either_store, "a", "b")
    assert work(either_store, fail) == 0
    assert counts(either_store) == {"a": 1, "b": 1}


def test_turn_of_a_dead_process_waits_until_no_other_turn_runs(store: Store, clock: Clock) -> None:
    put(store, "dead")
    die_with_turns(store, clock, 1)
    put(store, "new")
    clock.move(seconds=1)
    assert store.conversation("dead").turns.retry()  # it is due last now
    busy = open_worker(store)
    assert claimed(busy) == ["new"]
    put(store, "newer")
    assert claimed(busy) == []  # or the turn of the dead process would never run
    (turn,) = busy.running
    busy.begin(turn)
    busy.end(turn, None)
    assert claimed(busy) == ["dead"]


def test_nothing_is_claimed_while_a_turn_runs_alone(store: Store, clock: Clock) -> None:
    put(store, "dead")
    die_with_turns(store, clock, 1)
    put(store, "new")
    worker = open_worker(store)
    (alone,) = worker.step()
    assert alone.key == "dead"
    assert claimed(worker) == []
    pause = worker.pause()
    assert pause is not None
    assert pause > 5  # until the lease is renewed
    assert claimed(open_worker(store)) == ["new"]
    put(store, "newer")
    worker.begin(alone)
    worker.end(alone, None)
    assert claimed(worker) == ["newer"]


def test_new_questions_are_answered_between_turns_that_run_alone(store: Store, clock: Clock) -> None:
    put(store, "dead-1", "dead-2")
    die_with_turns(store, clock, 2)
    put(store, "new-1", "new-2", "new-3")
    worker, order = open_worker(store, concurrency=2), []
    while turns := worker.step():
        order.append(sorted(turn.key[:-2] for turn in turns))
        for turn in turns:
            worker.begin(turn)
            worker.end(turn, None)
    assert order == [["dead"], ["new", "new"], ["dead"], ["new"]]


def test_turn_that_fails_alone_is_tried_again_among_others(store: Store, clock: Clock) -> None:
    put(store, "dead")
    die_with_turns(store, clock, 1)
    work(store, fail, backoff=timedelta(0), attempts=2)
    store.conversation("dead").turns.retry()
    put(store, "new")
    assert claimed(open_worker(store)) == ["dead", "new"]


def test_turn_of_a_killed_web_process_runs_alone_too(store: Store, clock: Clock) -> None:
    store.open("own").turn("t").begin()
    clock.move(minutes=2)
    put(store, "new")
    assert claimed(open_worker(store)) == ["own"]


# Faults at the end


@pytest.mark.parametrize("attempts", [23, 1_000, 10**9])
def test_pause_before_a_late_attempt_is_a_day(either_store: Store, store: Store, clock: Clock, attempts: int) -> None:
    put(store, "k")
    for backoff in (timedelta(milliseconds=1), timedelta(days=1)):
        store._context.transact(lambda connection, _: set_attempts(connection, "k", attempts))
        assert work(either_store, fail, attempts=10**10, backoff=backoff) == 0
        (owed,) = store.owed().items
        assert (owed.attempts, owed.due_at) == (attempts + 1, clock.time + timedelta(days=1))
        clock.move(days=1)


def set_attempts(connection: Any, key: str, attempts: int) -> None:
    connection.exec_driver_sql(f"UPDATE lango_session SET attempts = {attempts} WHERE key = '{key}'")


def test_fault_at_the_end_of_a_turn_leaves_it_owed_and_ends_no_worker(
    either_store: Store, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of the end")

    put(store, "k")
    with monkeypatch.context() as patch:
        patch.setattr(RunningTurn, "_abandon", raise_fault)
        assert work(either_store, fail, lease=LEASE) == 0
    assert "of the end" in caplog.text
    assert [each.held for each in store.turns.list_in_progress().items] == [True]
    clock.move(seconds=31)
    assert work(either_store, answer) == 1


def test_lease_is_not_renewed_after_a_fault_at_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "k")
    worker = open_worker(store)
    (turn,) = worker.step()
    worker.begin(turn)
    monkeypatch.setattr(turn, "save", raise_memory_error)
    monkeypatch.setattr(turn, "_abandon", raise_memory_error)
    worker.end(turn, None)
    assert worker.running == set()


def raise_memory_error(*_: object) -> None:
    raise MemoryError


# Sessions that cannot be claimed


def refuse_claims(store: Store, key: str, state: str) -> None:
    """Create a trigger of the host that refuses each lease of a session."""
    sqlite = f"""
        CREATE TRIGGER rule BEFORE UPDATE ON lango_session WHEN NEW.key = '{key}' AND NEW.lease_token IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'quota exceeded'); END"""
    function = f"""
        CREATE FUNCTION rule() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.key = '{key}' AND NEW.lease_token IS NOT NULL THEN
        RAISE EXCEPTION 'quota exceeded' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$"""
    trigger = "CREATE TRIGGER rule BEFORE UPDATE ON lango_session FOR EACH ROW EXECUTE FUNCTION rule()"
    with store.engine.begin() as connection:
        for statement in [sqlite] if store.engine.dialect.name == "sqlite" else [function, trigger]:
            connection.exec_driver_sql(statement)


def allow_claims(store: Store) -> None:
    of_table = "" if store.engine.dialect.name == "sqlite" else " ON lango_session"
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER rule{of_table}")


@not_on_a_cluster("Citus allows no triggers on distributed tables")
@pytest.mark.parametrize("state", ["P0001", "58030", "XX000", "42501"])
def test_session_whose_claim_fails_does_not_stop_the_others(
    either_store: Store, store: Store, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    put(store, "bad", "good")
    refuse_claims(store, "bad", state)
    assert work(either_store, answer) == 1
    assert contents(store.conversation("good").messages()) == ["question", "answer to question"]
    assert [each.key for each in store.owed().items] == ["bad"]
    assert [each for each in caplog.messages if "'bad'" in each and "quota exceeded" in each] == caplog.messages[:1]
    allow_claims(store)
    assert work(either_store, answer) == 1


@not_on_a_cluster("Citus allows no triggers on distributed tables")
def test_session_whose_claim_failed_is_tried_again_after_a_minute(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("lango_store._rooms.turns_in_progress.working.monotonic", lambda: now[0])
    put(store, "bad")
    refuse_claims(store, "bad", "P0001")
    worker = open_worker(store)
    assert claimed(worker) == []
    allow_claims(store)
    now[0] += 59
    assert claimed(worker) == []
    now[0] += 2
    assert claimed(worker) == ["bad"]


@not_on_a_cluster("Citus allows no triggers on distributed tables")
def test_work_once_tries_a_session_whose_claim_failed_only_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("lango_store._rooms.turns_in_progress.working.monotonic", lambda: now[0])
    put(store, "bad")
    refuse_claims(store, "bad", "P0001")
    worker = open_worker(store, once=True)
    assert claimed(worker) == []
    now[0] += 61  # other turns of this worker can take so long
    assert claimed(worker) == []
    assert worker.pause() is None
    assert len(caplog.messages) == 1


@not_on_a_cluster("Citus allows no triggers on distributed tables")
def test_more_refused_sessions_than_handlers_do_not_stop_the_others(store: Store) -> None:
    put(store, "bad-1", "bad-2", "bad-3", "good")
    for number in (1, 2, 3):
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_session SET attempts = {number} WHERE key = 'bad-{number}'")
    sqlite = """
        CREATE TRIGGER rule BEFORE UPDATE ON lango_session WHEN NEW.attempts > 1
        BEGIN SELECT RAISE(ABORT, 'quota exceeded'); END"""
    function = """
        CREATE FUNCTION rule() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.attempts > 1 THEN RAISE EXCEPTION 'quota exceeded'; END IF; RETURN NEW; END $$"""
    trigger = "CREATE TRIGGER rule BEFORE UPDATE ON lango_session FOR EACH ROW EXECUTE FUNCTION rule()"
    with store.engine.begin() as connection:
        for statement in [sqlite] if store.engine.dialect.name == "sqlite" else [function, trigger]:
            connection.exec_driver_sql(statement)
    assert work(store, answer, concurrency=1) == 1


def test_damaged_row_does_not_stop_the_claims_of_other_sessions(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        if store.engine.dialect.name != "sqlite":
            pytest.skip("PostgreSQL stores no text in a column of numbers")
        put(store, "bad", "good")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET attempts = 'x' WHERE key = 'bad'")
        assert work(store, answer) == 1
