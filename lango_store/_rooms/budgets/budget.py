"""The budget of a turn: reserve a part of it when the turn begins, and count the turn's usage when it is saved."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, cast

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import SESSION, TURN, column, number, of_session, text, time
from lango_store._operations.session_tables import with_aside
from lango_store._rooms.budgets.tables import BUDGET
from lango_store._rooms.turns_in_progress import leases
from lango_store._rooms.turns_in_progress.errors import BudgetExhausted
from lango_store._rooms.usage.report import Prices
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, decode_json, decode_time
from lango_store._values.usage import cost, numbers_by_path, tokens
from lango_store.errors import quoted

TOKENS, DOLLARS = "tokens", "usd"
"""The units, with which the names of rows begin."""
MILLION: Final = 1_000_000
_MOST: Final = 10**12  # of one turn, so that sums stay in the range of the column


class Reservation(NamedTuple):
    """The reservation of a turn: its session, the lease of the turn, and the last turn that was saved before."""

    scope: str
    name: str
    amount: int
    holder: str
    token: int
    after_turn: int


class Holder(NamedTuple):
    """The session of a reservation, with its lease."""

    key: str
    token: int | None
    until: Any
    is_held: bool | None
    last_turn_no: int
    model: str | None


_KEPT: Final = timedelta(days=31)
"""The time for which the rows of earlier periods are kept, in case the clock is set back."""


@dataclass(frozen=True)
class Budget:
    """A limit of what the turns of a scope may use, for `Conversation.turn` and `Store.work`.

    A turn begins only if `reserve` is left. Until it is saved, or its lease ends, other turns cannot use this part of
    the budget. When it is saved, the usage of all turns counts that its session has saved since it began.

    Attributes:
        scope: Who shares the budget, such as `"user:ann"`: text of 1 to 512 characters. A scope has one budget.
        limit: How much the turns of the scope may use: input and output tokens or, with `prices`, dollars.
        per: `"day"` or `"month"` in UTC; None (default) for a budget without a period.
        reserve: The most that one turn is expected to use. Turns that use more can pass the limit.
        prices: The prices of usage without a stored cost, as in `Store.usage`: `{}` if all usage has its cost. A turn
            with usage that has neither counts as its reservation. None (default) counts tokens.

    Raises:
        InvalidKey: `scope` cannot be a scope.
        ValueError: `per` is unknown, a number is not positive, `reserve` is more than `limit`, or a price is not a
            number.
    """

    scope: str
    limit: float
    per: Literal["day", "month"] | None = field(default=None, kw_only=True)
    reserve: float = field(kw_only=True)
    prices: Prices | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checked_key(self.scope, "scope")
        if self.per not in (None, "day", "month"):
            raise ValueError(f"per={quoted(self.per)}: give 'day', 'month' or None")
        for name, value in (("limit", self.limit), ("reserve", self.reserve)):
            if type(value) not in (int, float) or not (0 < value <= _MOST and self._encode(value)):
                raise ValueError(f"{name}={quoted(value)} is not a positive number of tokens or dollars")
        if self.reserve > self.limit:
            raise ValueError(f"reserve={self.reserve} is more than limit={self.limit}: no turn could begin")
        for model, prices in (self.prices or {}).items():  # otherwise no turn could be saved
            if not isinstance(prices, Mapping) or not all(map(_is_price, prices.values())):
                raise ValueError(f"prices of {quoted(model)} are not numbers by the name of a usage field")

    def _admit(self, connection: sa.Connection, now: datetime, key: str, token: int) -> None:
        """Reserve a part of the budget for a turn that has taken the lease of a session.

        First count what turns have used that ended without being saved, for example because their process died.

        Raises:
            BudgetExhausted: Too little is left.
        """
        spent = self._add(connection, now, now, 0)  # locks the budget: turns are admitted one by one
        if not spent:  # mostly the first turn of a period
            before = dialect_of(connection).time(now - _KEPT)
            _delete_earlier.run_many(connection, [{"scope": self.scope, "before": before}])
        rows = reservations(connection, [self.scope])
        states = holders(connection, now, [key, *(row.holder for row in rows)])
        reserved, ends = 0, []
        for row in rows:
            state = states.get(row.holder)
            if state is None or state.token != row.token:  # even a lease that has ended can continue
                self._count(connection, now, row, state)
                spent = self._add(connection, now, now, 0)
            elif state.is_held and row.token != token and row.name.startswith(self._unit):
                reserved += row.amount
                ends.append(decode_time(state.until))
        limit, wanted = self._encode(self.limit), self._encode(self.reserve)
        if spent + reserved + wanted > limit:
            ends_at = self._period(now)[1] if spent + wanted > limit else min(ends)
            pause = None if spent + wanted <= limit else ends_at - now if ends_at else timedelta.max
            raise BudgetExhausted(self.scope, decode(self._unit, max(limit - spent - reserved, 0)), ends_at, pause)
        bound = {"scope": self.scope, "name": self._reservation(token), "amount": wanted, "holder": key, "token": token}
        bound |= {"after_turn": states[key].last_turn_no, "updated_at": dialect_of(connection).time(now)}
        _reserve.run_many(connection, [bound])

    def _has_room(self, connection: sa.Connection, now: datetime, key: str) -> bool:
        """Return whether what was used leaves enough, for example after a reset."""
        return self._add(connection, now, now, 0) + self._encode(self.reserve) <= self._encode(self.limit)

    def _settle(self, connection: sa.Connection, now: datetime, key: str, token: int) -> None:
        """Count the usage of a turn that was saved, and end its reservation."""
        states = holders(connection, now, [key])
        for row in _find.run(connection, {"scope": self.scope, "name": self._reservation(token)}):
            self._count(connection, now, Reservation._make(row), states.get(key))

    def _count(self, connection: sa.Connection, now: datetime, row: Reservation, holder: Holder | None) -> None:
        """Delete the reservation of a turn that has ended, and count the usage of the turns that it has saved."""
        if not _end.run(connection, {"scope": row.scope, "name": row.name}):
            return
        turns = _turns.run(connection, {"key": row.holder, "after": row.after_turn})
        for usage, metadata, created_at in turns if row.name.startswith(self._unit) else ():
            facts = _decoded(metadata)
            if facts.get("discarded"):  # has the sum of the usage of other turns
                continue
            used = self._used(_decoded(usage), str(facts.get("model") or (holder and holder.model) or ""))
            amount = row.amount if used is None else self._encode(max(0, min(used, _MOST)))
            self._add(connection, now, decode_time(created_at), min(amount, _MOST))

    def _used(self, usage: Mapping[str, Any], model: str) -> float | None:
        """Return the tokens or dollars of a usage; None for dollars of usage that has neither a cost nor a price."""
        numbers = numbers_by_path(usage)
        if self.prices is None:
            return sum(tokens(numbers)[:2])
        prices = self.prices.get(model)
        if prices and numbers.keys().isdisjoint(prices):  # they may be of the usage of another provider
            prices = None
        try:
            return cost(numbers, prices) if numbers else 0
        except OverflowError:
            return _MOST

    def _add(self, connection: sa.Connection, now: datetime, moment: datetime, amount: int) -> int:
        """Add to what was used in the period of a moment, and return it. Locks the row of the period."""
        (name, ends_at), encode = self._period(moment), dialect_of(connection).time
        bound = {"scope": self.scope, "name": name, "amount": amount, "cap": self._encode(self.limit)}
        bound |= {"ends_at": None if ends_at is None else encode(ends_at), "updated_at": encode(now)}
        ((spent,),) = _add.run(connection, bound)
        return int(spent)

    @property
    def _unit(self) -> str:
        return TOKENS if self.prices is None else DOLLARS

    def _encode(self, amount: float) -> int:
        return round(amount if self.prices is None else amount * MILLION)

    def _reservation(self, token: int) -> str:
        return f"{self._unit}_lease_{token:016x}"

    def _period(self, moment: datetime) -> tuple[str, datetime | None]:
        """Return the name of the row of the period at a moment, and the end of the period."""
        day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.per == "day":
            return f"{self._unit}_{day:%Y_%m_%d}", day + timedelta(days=1)
        if self.per == "month":
            return f"{self._unit}_{day:%Y_%m}", (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        return f"{self._unit}_total", None


def _is_price(value: object) -> bool:
    return type(value) in (int, float) and isfinite(cast(float, value))


def decode(unit: str, amount: int) -> float:
    """Return an amount as a number of tokens or dollars."""
    return amount if unit == TOKENS else amount / MILLION


def _decoded(json: Any) -> dict[str, Any]:
    """Return a JSON object; {} for NULL, and for damaged JSON, which must not stop the turns of a scope."""
    try:
        value = {} if json is None else decode_json(json)
    except ValueError:
        return {}  # `doctor` reports it
    return value if isinstance(value, dict) else {}


# The rows of a scope

_OF_SCOPE: Final = (BUDGET.c.scope == column(BUDGET.c.scope), BUDGET.c.name == column(BUDGET.c.name))
_RESERVED: Final = [BUDGET.c[name] for name in Reservation._fields]


def _insert(dialect: Dialect, *names: str) -> Any:
    return dialect.insert(BUDGET).values({name: column(BUDGET.c[name]) for name in names})


def _build_add(dialect: Dialect) -> Any:
    insert = _insert(dialect, "scope", "name", "amount", "cap", "ends_at", "updated_at")
    changed = {"amount": BUDGET.c.amount + insert.excluded.amount}
    changed |= {name: insert.excluded[name] for name in ("cap", "updated_at")}
    return insert.on_conflict_do_update(index_elements=[*BUDGET.primary_key], set_=changed).returning(BUDGET.c.amount)


def _build_reserve(dialect: Dialect) -> Any:
    insert = _insert(dialect, "scope", "name", "amount", "holder", "token", "after_turn", "updated_at")
    return insert.on_conflict_do_nothing(index_elements=[*BUDGET.primary_key])  # a repeated call has it already


_add: Final = Statement(_build_add)
_reserve: Final = Statement(_build_reserve)
_delete_earlier: Final = Statement(sa.delete(BUDGET).where(_OF_SCOPE[0], BUDGET.c.ends_at < time("before")))
_find: Final = Statement(sa.select(*_RESERVED).where(*_OF_SCOPE))
_end: Final = Statement(sa.delete(BUDGET).where(*_OF_SCOPE).returning(BUDGET.c.name))
_reservations: Final = Statement(
    lambda dialect: sa.select(*_RESERVED).where(
        BUDGET.c.scope.in_(dialect.texts_of_list(text("scopes"))), BUDGET.c.token.is_not(None)
    )
)
_holders: Final = Statement(
    lambda dialect: sa.select(
        SESSION.c.key,
        SESSION.c.lease_token,
        as_stored(SESSION.c.lease_until),
        leases.HELD,
        SESSION.c.last_turn_no,
        SESSION.c.model,
    ).where(SESSION.c.key.in_(dialect.texts_of_list(text("keys"))))
)
_turns: Final = Statement(
    sa.union_all(
        *(
            sa.select(as_stored(turns.c.usage), as_stored(turns.c.metadata), as_stored(turns.c.created_at)).where(
                of_session(turns), turns.c.turn_no > number("after"), turns.c.copied_from.is_(None)
            )
            for turns in with_aside(TURN)
        )
    )
)


def reservations(connection: AnyConnection, scopes: Sequence[str]) -> list[Reservation]:
    """Return the reservations of scopes, including those of turns that have ended."""
    return [Reservation._make(row) for row in _reservations.run(connection, {"scopes": json.dumps([*scopes])})]


def holders(connection: AnyConnection, now: Moment, keys: Sequence[str]) -> dict[str, Holder]:
    """Return the leases of the sessions that have reservations, by key."""
    rows = _holders.run(connection, {"keys": json.dumps([*keys]), "now": dialect_of(connection).time(now)})
    return {holder.key: holder for holder in map(Holder._make, rows)}
