"""Eight workers that share a budget, while some are killed: they never pass the limit, and use all of it.

On a busy machine, a worker may pause for longer than its lease, and then continue a turn although another one has
its reservation.

LANGO_STORE_BUDGET_ROUNDS sets how often the budget is used up and reset.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Final

import pytest
from support.budget_worker import BUDGET, LEASE, LIMIT, RESERVE
from support.counting_model import counting_model
from support.factories import message
from support.paths import TESTS
from support.polling import until
from support.processes import Program

from lango_store import Store

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_BUDGET_ROUNDS", "3"))
WORKERS: Final = 8
SESSIONS: Final = 10
SOURCE: Final = (TESTS / "support" / "budget_worker.py").read_text()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with the clock of the database, which the processes use too."""
    with Store(url) as store:
        yield store


def tokens(store: Store) -> int:
    return sum(row.input_tokens for row in store.usage())


def is_counted(store: Store, before: int) -> bool:
    """Return whether the budget agrees with the tokens since the last reset."""
    return store.budgets.list().items[0].spent == tokens(store) - before


@pytest.mark.timeout(60 + 60 * ROUNDS)
def test_killed_workers_never_pass_the_limit_and_use_all_of_it(url: str, store: Store) -> None:
    choose = random.Random(0)
    conversations = [store.open(f"k{number}") for number in range(SESSIONS)]
    kills, highest, most = 0, 0.0, 0.0

    def start(number: int) -> Program:
        return Program(SOURCE, url, model.url, ("sync", "async")[number % 2])

    with counting_model() as model:
        workers = [start(number) for number in range(WORKERS)]
        for _ in range(ROUNDS):
            before, has_killed = tokens(store), time.monotonic()
            is_used_up = False
            while not is_used_up:
                for each in conversations:
                    if not each.inbox.list():
                        each.inbox.put(message("question"))
                for state in store.budgets.list().items:
                    most = max(most, state.spent + state.reserved)
                    highest = max(highest, state.reserved)
                    is_used_up = state.spent + RESERVE > LIMIT and not state.reserved
                if time.monotonic() > has_killed + 0.3:
                    has_killed, number = time.monotonic(), choose.randrange(WORKERS)
                    workers[number].send_signal(signal.SIGKILL)
                    workers[number].communicate()
                    workers[number], kills = start(number), kills + 1
            until(partial(is_counted, store, before))
            with pytest.raises(Exception, match="the budget of 'team'"):
                store.open("another").turn(budget=BUDGET).begin()
            store.budgets.reset(BUDGET.scope)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            assert worker.communicate()[1] == ""
        turns = sum(row.turns for row in store.usage())
        calls = model.calls.total()
    saved = [turn for each in conversations for turn in each.turns.list()]
    late = sum(each.created_at - datetime.fromisoformat(each.metadata["began"]) > LEASE for each in saved)
    print(f"{ROUNDS} rounds, {turns} turns, {calls} calls, {kills} kills, {highest} reserved at most, {late} late")
    assert most <= LIMIT + RESERVE * late
    assert turns <= calls <= turns + 2 * kills
    assert highest > RESERVE
