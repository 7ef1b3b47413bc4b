"""Budgets of turns: a reservation when a turn begins, its usage when it is saved, and nothing when it has ended."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.factories import message
from support.statements import watched

from lango_store import Budget, BudgetExhausted, Conversation, InvalidKey, Message, RunningTurn, Store, TurnInProgress
from lango_store._rooms.turns_in_progress import running
from lango_store.testing import Clock

NOW = datetime(2026, 11, 30, 22, tzinfo=UTC)
MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)
LEASE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def evening(clock: Clock) -> None:
    clock.time = NOW


def budget(limit: float = 1000, reserve: float = 400, prices: Any = None) -> Budget:
    return Budget("user:ann", limit, per="day", reserve=reserve, prices=prices)


def spend(store: Store, key: str, tokens: int, limit: Budget, *, id: str | None = None) -> None:
    with store.open(key).turn(id, budget=limit) as turn:
        turn.append(message())
        turn.usage = {"input_tokens": tokens - 1, "output_tokens": 1}


def state(store: Store) -> tuple[float, float, float]:
    (found,) = store.budgets.list().items
    return found.spent, found.reserved, found.left


def test_turn_reserves_and_then_counts_its_usage(store: Store) -> None:
    with store.open("k").turn(budget=budget()) as turn:
        assert state(store) == (0, 400, 600)
        turn.usage = {"input_tokens": 100, "output_tokens": 50}
    assert state(store) == (150, 0, 850)
    spend(store, "other", 250, budget())
    assert state(store) == (400, 0, 600)


def test_turn_that_does_not_fit_raises_and_writes_nothing(store: Store) -> None:
    spend(store, "k", 700, budget())
    before = store.conversation("k").info()
    with pytest.raises(BudgetExhausted) as raised, store.conversation("k").turn(budget=budget()):
        raise AssertionError
    error = raised.value
    assert (error.scope, error.left, error.opens_at) == ("user:ann", 300, MIDNIGHT)
    assert "300 that are left of the budget of 'user:ann', it opens at 2026-12-01" in str(error)
    assert pickle.loads(pickle.dumps(error)).opens_at == MIDNIGHT
    assert store.conversation("k").info() == before
    assert store.conversation("k").turns.in_progress() is None
    assert state(store) == (700, 0, 300)
    spend(store, "k", 300, budget(reserve=300))
    assert state(store) == (1000, 0, 0)


def test_reservations_of_turns_in_progress_count(store: Store, clock: Clock) -> None:
    first = store.open("a").turn(lease=LEASE, budget=budget()).begin()
    second = store.open("b").turn(lease=LEASE * 2, budget=budget()).begin()
    with pytest.raises(BudgetExhausted) as raised:
        store.open("c").turn(budget=budget()).begin()
    assert (raised.value.left, raised.value.opens_at) == (200, NOW + LEASE)
    first.usage = {"total_tokens": 400, "input_tokens": 100}
    first.save()
    third = store.open("c").turn(budget=budget()).begin()
    second.abandon()
    third.abandon()
    assert state(store) == (100, 0, 900)


def test_reservation_ends_with_the_lease(store: Store, clock: Clock) -> None:
    store.open("a").turn("t", lease=LEASE, budget=budget(reserve=1000)).begin()
    with pytest.raises(BudgetExhausted):
        store.open("b").turn(budget=budget()).begin()
    clock.move(seconds=60)
    assert state(store) == (0, 0, 1000)
    spend(store, "b", 10, budget())
    spend(store, "a", 10, budget(), id="t")
    assert state(store) == (20, 0, 980)
    assert rows(store) == ["tokens_2026_11_30"]


def rows(store: Store) -> list[str]:
    with store.engine.connect() as connection:
        return [*connection.exec_driver_sql("SELECT name FROM lango_budget ORDER BY name").scalars()]


def test_lease_that_continues_keeps_its_reservation(store: Store, clock: Clock) -> None:
    turn = store.open("a").turn(lease=LEASE, budget=budget(reserve=1000)).begin()
    clock.move(seconds=60)
    turn.append(message())  # nothing else took the lease
    with pytest.raises(BudgetExhausted):
        spend(store, "b", 1, budget())
    turn.usage = {"input_tokens": 5}
    turn.save()
    assert state(store) == (5, 0, 995)


def test_turns_that_others_save_in_a_turn_count_once(store: Store, clock: Clock) -> None:
    """Adapters of frameworks save turns of their own; a later attempt must not count those of the failed one again."""
    for fails in (True, False):
        turn = store.open("a").turn("t", budget=budget()).begin()
        own = store.in_turn(turn).conversation("a")
        own.save_turn([message()], {"input_tokens": 10}, id=f"of framework {fails}")
        turn.usage = {"output_tokens": 1}
        turn.abandon() if fails else turn.save()
    assert state(store) == (21, 0, 979)
    assert sum(row.input_tokens + row.output_tokens for row in store.usage()) == 21


@pytest.mark.parametrize("keep", [False, True])
def test_turns_of_a_stopped_turn_count_although_they_are_set_aside(store: Store, keep: bool) -> None:
    conversation = store.open("k")
    conversation.append_message(message("question"))
    turn = conversation.turn(budget=budget()).begin()
    store.in_turn(turn).conversation("k").save_turn([Message.assistant("answer")], {"input_tokens": 700})
    conversation.inbox.put_messages([], replace_after=1, keep=keep)
    with conversation.turn(budget=budget(reserve=1)):
        pass
    assert state(store)[0] == sum(row.input_tokens for row in store.usage())
    assert state(store)[0] == (700 if keep else 0)


def test_usage_of_before_the_turn_and_of_other_sessions_does_not_count(store: Store) -> None:
    store.open("a").save_turn([message()], {"input_tokens": 500})
    with store.conversation("a").turn(budget=budget()) as turn:
        store.open("b").save_turn([message()], {"input_tokens": 500})
        turn.usage = {"input_tokens": 7}
    assert state(store) == (7, 0, 993)


def test_usage_of_a_compaction_that_discards_counts_once(store: Store) -> None:
    spend(store, "a", 100, budget())
    with store.conversation("a").turn(budget=budget()) as turn:
        store.conversation("a").compact(lambda _: Message.assistant("summary"), discard=True)
        turn.usage = {"input_tokens": 7}
    assert state(store) == (107, 0, 893)


def test_new_period_begins_at_midnight_in_utc(store: Store, clock: Clock) -> None:
    spend(store, "a", 1000, budget())
    clock.time = MIDNIGHT - timedelta(microseconds=1)
    with pytest.raises(BudgetExhausted):
        spend(store, "a", 1, budget())
    clock.time = MIDNIGHT
    assert store.budgets.list().items == []
    spend(store, "a", 5, budget())
    (found,) = store.budgets.list().items
    assert (found.period, found.spent, found.opens_at) == ("2026-12-01", 5, MIDNIGHT + timedelta(days=1))
    clock.time = NOW
    assert [each.spent for each in store.budgets.list().items] == [1000, 5]
    with pytest.raises(BudgetExhausted):
        spend(store, "a", 1, budget())


def test_turn_counts_in_the_period_in_which_it_is_saved(store: Store, clock: Clock) -> None:
    turn = store.open("a").turn(budget=budget(), lease=timedelta(hours=5)).begin()
    clock.time = MIDNIGHT + timedelta(hours=1)
    with pytest.raises(BudgetExhausted):
        spend(store, "b", 1, budget(reserve=700))
    turn.usage = {"input_tokens": 9}
    turn.save()
    by_day = {row.day: row.input_tokens for row in store.usage(["day"])}
    assert by_day == {"2026-12-01": 9}
    assert [(each.period, each.spent) for each in store.budgets.list().items] == [("2026-12-01", 9)]


def test_periods_of_months_and_without_an_end(store: Store, clock: Clock) -> None:
    monthly, total = Budget("a", 10, per="month", reserve=1), Budget("b", 10, reserve=10)
    clock.time = datetime(2026, 12, 31, 23, tzinfo=UTC)
    spend(store, "k", 10, monthly)
    spend(store, "k", 10, total)
    for limit, opens_at in ((monthly, datetime(2027, 1, 1, tzinfo=UTC)), (total, None)):
        with pytest.raises(BudgetExhausted) as raised:
            spend(store, "k", 1, limit)
        assert raised.value.opens_at == opens_at
    assert [(each.scope, each.period, each.opens_at) for each in store.budgets.list().items] == [
        ("a", "2026-12", datetime(2027, 1, 1, tzinfo=UTC)),
        ("b", None, None),
    ]
    clock.move(days=1)
    spend(store, "k", 1, monthly)


def test_dollars_agree_with_the_usage(store: Store, clock: Clock) -> None:
    prices = {"large": {"input_tokens": 2.0, "output_tokens": 8.0}, "small": {"input_tokens": 0.1}}
    prices[""] = {"input_tokens": 1.0}  # of sessions without a model
    limit = budget(0.01, 0.005, prices=prices)
    session = store.open("k", model="small")
    for usage, model in (
        ({"input_tokens": 1001, "output_tokens": 3}, "large"),
        ({"input_tokens": 12, "output_tokens": 3}, None),
        ({"cost_usd": 0.001234}, "large"),
        (None, None),
    ):
        with session.turn(budget=limit) as turn:
            turn.usage, turn.metadata = usage, {"model": model} if model else None
    with store.open("without a model").turn(budget=limit) as turn:
        turn.usage = {"input_tokens": 1000}
    (row,) = store.usage(prices=prices)
    (found,) = store.budgets.list().items
    assert row.cost_usd is not None
    assert found.unit == "usd"
    assert abs(found.spent - row.cost_usd) < 0.000_003
    assert found.spent == 0.004261


def test_dollars_of_usage_without_a_price_are_those_of_the_reservation(store: Store) -> None:
    limit = budget(0.01, 0.002, prices={"large": {"input_tokens": 2.0}, "free": {}})
    session = store.open("k", model="large")
    for usage, model, spent in (
        ({"input_tokens": 5}, "unknown", 0.002),
        ({"promptTokenCount": 5}, "large", 0.004),
        ({"input_tokens": 5}, "free", 0.004),
        ({}, "unknown", 0.004),
        ({"cost_usd": 0.001}, "unknown", 0.005),
    ):
        with session.turn(budget=limit) as turn:
            turn.usage, turn.metadata = usage, {"model": model}
        assert state(store)[0] == spent


@pytest.mark.parametrize("prices", [None, {"large": {"input_tokens": 2.0, "output_tokens": -1.0}}])
def test_strange_usage_does_not_stop_the_scope(store: Store, prices: Any) -> None:
    session = store.open("k", model="large")
    usages: list[dict[str, Any]] = [
        {"input_tokens": 10**400},
        {"input_tokens": 1e308, "output_tokens": 1e308},
        {"input_tokens": -5},
        {"input_tokens": "7"},
        {"a": {}},
        {"cost_usd": 10**400},
    ]
    for usage in usages:
        with session.turn(budget=budget(prices=prices)) as turn:
            turn.usage = usage
        assert state(store)[0] in (0, 400, 10**6, 10**12)
        store.budgets.reset("user:ann")


def test_repeated_turn_counts_once(store: Store) -> None:
    spend(store, "k", 100, budget(), id="t")
    with store.conversation("k").turn("t", budget=budget()) as turn:
        assert turn.replayed
    assert state(store) == (100, 0, 900)


def test_stored_turn_is_replayed_although_the_budget_is_used_up(store: Store) -> None:
    spend(store, "k", 1000, budget(), id="t")
    with store.conversation("k").turn("t", budget=budget()) as turn:
        assert turn.replayed
    assert rows(store) == ["tokens_2026_11_30"]


def test_beginning_that_is_repeated_after_a_lost_connection_reserves_once(store: Store) -> None:
    limit = budget(reserve=600)
    turn = store.open("k").turn(budget=limit).begin()
    arguments = "k", turn.id, turn.lease, limit, None
    assert store._context.transact(running.begin_with, *arguments, is_new=True) == (None, [])
    assert state(store) == (0, 600, 400)


def test_usage_of_a_turn_that_has_died_counts_before_the_next_turn_begins(store: Store, clock: Clock) -> None:
    turn = store.open("a").turn(lease=LEASE, budget=budget()).begin()
    store.in_turn(turn).conversation("a").save_turn([message()], {"input_tokens": 700})
    clock.move(seconds=60)
    with pytest.raises(BudgetExhausted) as raised:
        spend(store, "a", 1, budget())
    assert raised.value.left == 300
    clock.time = MIDNIGHT
    spend(store, "a", 1, budget())
    clock.time = NOW
    assert [(each.period, each.spent) for each in store.budgets.list().items] == [
        ("2026-11-30", 700),
        ("2026-12-01", 1),
    ]


def test_stopped_turn_ends_its_reservation(store: Store) -> None:
    store.open("k").turn(budget=budget(reserve=1000)).begin()
    store.conversation("k").turns.stop()
    assert state(store) == (0, 0, 1000)
    spend(store, "k", 1, budget())
    assert rows(store) == ["tokens_2026_11_30"]


def test_reservation_of_a_deleted_session_ends(store: Store) -> None:
    store.open("k").turn(budget=budget(reserve=1000)).begin()
    store.delete("k")
    assert state(store) == (0, 0, 1000)
    spend(store, "k", 1, budget())
    assert state(store) == (1, 0, 999)


def test_turn_in_progress_is_reported_before_the_budget(store: Store) -> None:
    store.open("k").turn(budget=budget(reserve=1000)).begin()
    with pytest.raises(TurnInProgress):
        store.conversation("k").turn(budget=budget(reserve=1000)).begin()


@pytest.mark.parametrize(
    ("scope", "limit", "options"),
    [
        ("a", 0, {"reserve": 1}),
        ("a", 5, {"reserve": 6}),
        ("a", 5, {"reserve": 0}),
        ("a", float("inf"), {"reserve": 1}),
        ("a", float("nan"), {"reserve": 1}),
        ("a", True, {"reserve": 1}),
        ("a", 10**13, {"reserve": 1}),
        ("a", 5, {"reserve": 1, "per": "week"}),
    ],
)
def test_invalid_budgets_are_refused(scope: str, limit: float, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Budget(scope, limit, **options)


@pytest.mark.parametrize(
    "prices", [{"m": {"input_tokens": "2"}}, {"m": {"input_tokens": float("nan")}}, {"m": 2}, {"input_tokens": None}]
)
def test_prices_that_are_not_numbers_are_refused(prices: Any) -> None:
    with pytest.raises(ValueError, match=r"prices of .* are not numbers by the name of a usage field"):
        budget(1, 1, prices=prices)


def test_invalid_scope_is_refused() -> None:
    with pytest.raises(InvalidKey):
        Budget("", 5, reserve=1)


# List and reset


def test_list_has_pages_and_a_filter(store: Store) -> None:
    for name in ("b", "a", "c"):
        for limit in (Budget(name, 5, reserve=5, per="month"), Budget(name, 5, reserve=5, prices={})):
            store.open("k").turn(budget=limit).begin().save()
    found, cursor = [], None
    while True:
        page = store.budgets.list(limit=4, cursor=cursor)
        found += [(each.scope, each.unit) for each in page.items]
        if (cursor := page.next) is None:
            break
    assert found == [(name, unit) for name in "abc" for unit in ("tokens", "usd")]
    assert {each.scope for each in store.budgets.list("b").items} == {"b"}
    with pytest.raises(ValueError):
        store.budgets.list(limit=0)


def test_reset_forgets_what_was_used_and_keeps_reservations(store: Store) -> None:
    assert store.budgets.reset("user:ann") is False
    spend(store, "k", 500, budget())
    turn = store.conversation("k").turn(budget=budget()).begin()
    assert store.budgets.reset("user:ann") is True
    with pytest.raises(BudgetExhausted):
        spend(store, "other", 1, budget(reserve=700))
    assert store.budgets.list().items == []
    turn.usage = {"input_tokens": 3}
    turn.save()
    assert state(store) == (3, 0, 997)


def test_rows_of_periods_that_ended_long_ago_are_deleted(store: Store, clock: Clock) -> None:
    for days in (0, 1, 30, 1):
        clock.move(days=days)
        spend(store, "k", 1, budget())
        spend(store, "k", 1, Budget("total", 5, reserve=1))
    assert rows(store) == ["tokens_2026_12_01", "tokens_2026_12_31", "tokens_2027_01_01", "tokens_total"]


# Workers


def handle(own: Conversation, turn: RunningTurn) -> None:
    turn.append(Message.assistant("answer"))
    turn.usage = {"input_tokens": 400}


def test_owed_turn_waits_until_the_budget_opens(store: Store, clock: Clock) -> None:
    for key in ("a", "b", "c"):
        store.open(key, user_id="ann").inbox.put(message("question"))
    assert store.work(handle, once=True, concurrency=1, budget=budget()) == 2
    (owed,) = store.owed().items
    assert (owed.due_at, owed.attempts, owed.error) == (MIDNIGHT, 0, "BudgetExhausted: user:ann")
    clock.time = MIDNIGHT - timedelta(seconds=1)
    assert store.work(handle, once=True, attempts=1, budget=budget()) == 0
    clock.time = MIDNIGHT
    assert store.work(handle, once=True, attempts=1, budget=budget()) == 1
    assert store.owed().items == []
    assert [each.spent for each in store.budgets.list().items] == [400]


def test_waiting_turn_is_tried_once_a_day_and_after_a_reset(store: Store, clock: Clock) -> None:
    total = Budget("team", 400, reserve=400)
    store.open("k").inbox.put(message())
    spend(store, "other", 400, total)
    store.work(handle, once=True, budget=total)
    assert [each.due_at for each in store.owed().items] == [NOW + timedelta(days=1)]
    clock.move(hours=1)
    store.conversation("k").inbox.put(message("another"))
    assert store.work(handle, once=True, budget=total) == 0
    store.budgets.reset("another team")
    assert [each.due_at for each in store.owed().items] == [NOW + timedelta(days=1)]
    assert store.work(handle, once=True, budget=total) == 0
    assert store.budgets.reset("team")
    assert store.work(handle, once=True, budget=total) == 1
    assert len(store.conversation("k").messages()) == 3


@pytest.mark.parametrize("of_user", [False, True])
def test_turn_that_is_refused_during_a_reset_is_due(store: Store, of_user: bool) -> None:
    total = Budget("team", 400, reserve=400)
    store.open("k", user_id="ann").inbox.put(message())
    spend(store, "other", 400, total)
    options = {"concurrency": 1, "poll": timedelta(0), "attempts": 5, "backoff": timedelta(hours=1), "once": True}
    worker = (store.for_user("ann") if of_user else store)._worker(LEASE, {}, **options)
    (turn,) = worker.step()
    turn._limit = total
    with pytest.raises(BudgetExhausted) as refused:
        worker.begin(turn)
    store.budgets.reset("team")
    worker.end(turn, refused.value)
    assert [each.due_at for each in store.owed().items] == [NOW]


def test_turn_that_others_reservations_refuse_is_tried_again_soon(store: Store, clock: Clock) -> None:
    store.open("k").inbox.put(message())
    running = store.open("other").turn(budget=budget(reserve=1000)).begin()
    store.work(handle, once=True, budget=budget(), backoff=timedelta(seconds=5))
    assert [each.due_at for each in store.owed().items] == [NOW + timedelta(seconds=5)]
    running.abandon()
    clock.move(seconds=5)
    assert store.work(handle, once=True, budget=budget()) == 1


def test_question_that_is_deleted_while_it_waits_leaves_no_turn(store: Store, clock: Clock) -> None:
    spend(store, "other", 1000, budget())
    conversation = store.open("k")
    conversation.inbox.put(message("question", id="q"))
    assert store.work(handle, once=True, budget=budget()) == 0
    assert [(each.reason, each.turn_id) for each in store.owed().items] == [("inbox", None)]
    assert conversation.inbox.delete("q")
    assert store.owed().items == []
    clock.move(days=1)
    assert store.work(handle, once=True, budget=budget()) == 0
    assert conversation.all_messages() == []


@pytest.mark.parametrize("in_", [None, timedelta(0)])
def test_question_that_is_deleted_before_its_turn_is_refused_leaves_no_fault(
    store: Store, clock: Clock, in_: timedelta | None
) -> None:
    spend(store, "other", 1000, budget())
    conversation = store.open("k")
    conversation.inbox.put(message("question", id="q"), in_=in_)
    options = {"concurrency": 1, "poll": timedelta(0), "attempts": 5, "backoff": timedelta(0), "once": True}
    worker = store._worker(LEASE, {}, **options)
    (turn,) = worker.step()
    turn._limit = budget()
    conversation.inbox.delete("q")
    with pytest.raises(BudgetExhausted) as refused:
        worker.begin(turn)
    worker.end(turn, refused.value)
    assert not [each for each in store.maintenance.examine() if each.name == "empty inbox"]
    clock.time = MIDNIGHT
    assert store.work(handle, once=True, budget=budget()) == 0
    assert (store.owed().items, conversation.all_messages()) == ([], [])


def test_message_for_later_that_waits_is_listed_and_answered(store: Store, clock: Clock) -> None:
    spend(store, "other", 1000, budget())
    conversation = store.open("k")
    conversation.inbox.put(message("reminder"), in_=timedelta(minutes=5))
    clock.move(minutes=5)
    assert store.work(handle, once=True, budget=budget()) == 0
    assert [each.due_at for each in store.owed().items] == [MIDNIGHT]
    conversation.inbox.put(message("tomorrow"), in_=timedelta(days=1))
    assert [each.due_at for each in store.owed().items] == [MIDNIGHT]
    clock.time = MIDNIGHT
    assert store.work(handle, once=True, budget=budget()) == 1
    assert [each.content for each in conversation.all_messages()] == ["reminder", "answer"]
    assert [each.due_at for each in store.owed(future=True).items] == [NOW + timedelta(days=1, minutes=5)]


def test_answered_question_that_waits_is_still_answered(store: Store, clock: Clock) -> None:
    spend(store, "other", 1000, budget())
    conversation = store.open("k")
    conversation.suspensions.answer(conversation.suspensions.create().id, "yes")
    for _ in range(2):
        assert store.work(handle, once=True, budget=budget()) == 0
        assert [each.reason for each in store.owed().items] == ["answer"]
        store.budgets.reset("another")
        conversation.turns.retry()
    clock.time = MIDNIGHT
    assert store.work(handle, once=True, budget=budget()) == 1


def test_budget_can_depend_on_the_conversation(store: Store) -> None:
    for user in ("ann", "bob", None):
        store.open(f"of {user}", user_id=user).inbox.put(message())

    def limit_of(conversation: Conversation) -> Budget | None:
        user = conversation.info().user_id
        return user and Budget(f"user:{user}", 500 if user == "ann" else 5, reserve=5)  # type: ignore[return-value]

    assert store.work(handle, once=True, budget=limit_of) == 3
    assert [(each.scope, each.spent, each.left) for each in store.budgets.list().items] == [
        ("user:ann", 400, 100),
        ("user:bob", 400, 0),
    ]


def test_error_of_the_function_is_a_failed_attempt(store: Store) -> None:
    def limit_of(conversation: Conversation) -> Budget:
        raise ZeroDivisionError

    store.open("k").inbox.put(message())
    assert store.work(handle, once=True, budget=limit_of) == 0
    assert [(each.error, each.attempts) for each in store.owed().items] == [("ZeroDivisionError", 1)]


def test_budget_of_another_turn_in_the_handler_delays_the_turn(store: Store) -> None:
    def handle_with_helper(own: Conversation, turn: RunningTurn) -> None:
        with store.open("helper").turn(budget=budget(reserve=1000)):
            pass

    spend(store, "other", 1, budget())
    store.open("k").inbox.put(message())
    assert store.work(handle_with_helper, once=True) == 0
    assert [(each.due_at, each.attempts) for each in store.owed().items] == [(MIDNIGHT, 0)]


def test_turn_without_a_budget_runs_no_statement_of_budgets(store: Store) -> None:
    with watched(store.engine) as statements, store.open("k").turn() as turn:
        turn.append(message())
    assert not [each for each in statements if "lango_budget" in each]
