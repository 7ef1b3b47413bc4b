"""Random sequences of turns with budgets in several sessions, compared with a model made of plain lists."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.factories import message
from support.machines import limited, run_machine

from lango_store import Budget, BudgetExhausted, LeaseLost, RunningTurn, Store, TurnInProgress
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

LIMIT: Final = 100
LEASE: Final = timedelta(seconds=100)
START: Final = datetime(2026, 11, 30, 23, 55, tzinfo=UTC)
KEYS: Final = ("a", "b", "c")

keys, scopes = st.sampled_from(KEYS), st.sampled_from(["s", "s", "s", "other"])
amounts = st.sampled_from([1, 20, 40, 60, 100])


@dataclass(eq=False)
class Reserved:
    """The reservation of a turn, and the days and tokens that its session has saved since it began."""

    scope: str
    key: str
    amount: int
    turn: RunningTurn
    until: datetime
    used: list[tuple[str, int]] = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    """Turns in three sessions, whose processes save, fail and die while the clock moves."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__()
        self.store, self.clock, clock.time = store, clock, START
        store.erase(keys=KEYS, scopes=["s", "other"])
        for key in KEYS:
            store.create(key)
        self.reserved: list[Reserved] = []
        self.holders: dict[str, Reserved] = {}
        self.spent: dict[tuple[str, str], int] = {}
        self.usage = 0
        self.lost = 0

    @property
    def day(self) -> str:
        return f"{self.clock.time:%Y-%m-%d}"

    def is_held(self, key: str) -> bool:
        return key in self.holders and self.holders[key].until > self.clock.time

    def live(self, scope: str) -> int:
        held = [each for each in self.reserved if self.holders.get(each.key) is each and self.is_held(each.key)]
        return sum(each.amount for each in held if each.scope == scope)

    def ended(self, scope: str) -> list[Reserved]:
        return [each for each in self.reserved if each.scope == scope and self.holders.get(each.key) is not each]

    def count(self, each: Reserved) -> None:
        self.reserved.remove(each)
        for day, tokens in each.used:
            self.spent[each.scope, day] = self.spent.get((each.scope, day), 0) + tokens

    @rule(key=keys, scope=scopes, amount=amounts)
    def begin(self, key: str, scope: str, amount: int) -> None:
        limit = Budget(scope, LIMIT, per="day", reserve=amount)
        turn = self.store.conversation(key).turn(lease=LEASE, budget=limit)
        if self.is_held(key):
            with pytest.raises(TurnInProgress):
                turn.begin()
            return
        before = self.holders.pop(key, None)
        ended = self.ended(scope)
        pending = sum(tokens for each in ended for day, tokens in each.used if day == self.day)
        left = LIMIT - self.spent.get((scope, self.day), 0) - pending - self.live(scope)
        if amount > left:
            with pytest.raises(BudgetExhausted) as raised:
                turn.begin()
            assert (raised.value.scope, raised.value.left) == (scope, max(left, 0))
            if before is not None:
                self.holders[key] = before
            return
        turn.begin()
        for each in ended:
            self.count(each)
        self.spent.setdefault((scope, self.day), 0)
        self.holders[key] = Reserved(scope, key, amount, turn, self.clock.time + LEASE)
        self.reserved.append(self.holders[key])

    def use(self, key: str, tokens: int) -> None:
        self.usage += tokens
        waiting = [each for each in self.reserved if each.key == key]
        for each in waiting:
            each.used.append((self.day, tokens))
        self.lost += tokens * (1 - len(waiting))

    @rule(key=keys, tokens=st.sampled_from([0, 1, 20, 60]))
    def save(self, key: str, tokens: int) -> None:
        if (holder := self.holders.get(key)) is None:
            return
        holder.turn.usage = {"input_tokens": tokens}
        holder.turn.save()
        self.use(key, tokens)
        del self.holders[key]
        self.count(holder)

    @rule(key=keys, tokens=st.sampled_from([1, 7]))
    def save_turn_of_adapter(self, key: str, tokens: int) -> None:
        if (holder := self.holders.get(key)) is None:
            return
        self.store.in_turn(holder.turn).conversation(key).save_turn([message()], {"output_tokens": tokens})
        holder.until = self.clock.time + LEASE
        self.use(key, tokens)

    @rule(key=keys, how=st.sampled_from(["abandon", "release", "stop"]))
    def end(self, key: str, how: str) -> None:
        if (holder := self.holders.pop(key, None)) is None:
            return
        if how == "abandon":
            holder.turn.abandon()
            return
        getattr(self.store.conversation(key).turns, how)()
        with pytest.raises(LeaseLost):
            holder.turn.append(message())

    @rule(seconds=st.sampled_from([1, 50, 99.999, 100, 200, 400, -20, -300]))
    def wait(self, seconds: float) -> None:
        self.clock.move(seconds=seconds)

    @rule(scope=scopes)
    def reset(self, scope: str) -> None:
        known = [place for place in self.spent if place[0] == scope]
        assert self.store.budgets.reset(scope) == bool(known)
        for place in known:
            self.lost += self.spent.pop(place)

    @invariant()
    def budgets_match(self) -> None:
        found: dict[Any, Any] = {(each.scope, each.period): (each.spent, each.reserved) for each in self.listed()}
        assert found == {
            place: (spent, self.live(place[0])) for place, spent in self.spent.items() if place[1] >= self.day
        }

    def listed(self) -> list[Any]:
        return self.store.budgets.list().items

    @invariant()
    def all_usage_is_counted(self) -> None:
        """Each token of the usage is counted, waits for the next turn of the scope, or was reset."""
        waiting = sum(tokens for each in self.reserved for _, tokens in each.used)
        used = sum(row.input_tokens + row.output_tokens for row in self.store.usage())
        assert used == self.usage == sum(self.spent.values()) + waiting + self.lost


@limited
def test_random_budgets_give_the_same_results_as_a_model_of_lists(store: Store, clock: Clock) -> None:
    run_machine(lambda: Machine(store, clock), store)
