"""The state of all budgets: list it, and reset it."""

from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import NOW, SESSION, column, text
from lango_store._operations.rows import stored_time
from lango_store._operations.session import lists
from lango_store._rooms.budgets.budget import decode, holders, reservations
from lango_store._rooms.budgets.tables import BUDGET
from lango_store._rooms.budgets.values import BudgetState
from lango_store._rooms.turns_in_progress import owed, working
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.reports import Page

_IS_PERIOD: Final = BUDGET.c.token.is_(None)
_OF_SCOPE: Final = BUDGET.c.scope == column(BUDGET.c.scope)
_IS_CURRENT: Final = sa.or_(BUDGET.c.ends_at.is_(None), BUDGET.c.ends_at > NOW)
_COLUMNS: Final = (BUDGET.c.scope, BUDGET.c.name, BUDGET.c.amount, BUDGET.c.cap, as_stored(BUDGET.c.ends_at))
_POSITION: Final = sa.tuple_(BUDGET.c.scope, BUDGET.c.name)
_AFTER: Final = sa.tuple_(column(BUDGET.c.scope, "after_scope"), column(BUDGET.c.name, "after_name"))


@cache
def _page(*, of_scope: bool) -> Statement:
    query = sa.select(*_COLUMNS).where(_IS_PERIOD, _IS_CURRENT, _POSITION > _AFTER, *[_OF_SCOPE] * of_scope)
    return Statement(query.order_by(BUDGET.c.scope, BUDGET.c.name).limit(lists.LIMIT))


def list_page(
    connection: AnyConnection, now: Moment, owner: str | None, table: sa.Table, limit: int, cursor: str | None
) -> Page[BudgetState]:
    """Return a page of the budgets, or of those of a scope, in the order of scopes."""
    lists.check_limit(limit)
    if owner is not None:
        checked_key(owner, "scope")
    bound: dict[str, Any] = {"now": dialect_of(connection).time(now), "limit": limit + 1, "scope": owner}
    bound |= {"after_scope": "", "after_name": ""}
    if cursor is not None:
        bound["after_name"], _, bound["after_scope"] = lists.read_cursor(cursor, "budgets.list")
    rows = _page(of_scope=owner is not None).run(connection, bound)
    reserved = _reserved(connection, now, [row[0] for row in rows])
    more = None if len(rows) <= limit else lists.cursor_after(rows[limit - 1][1], owed.NEVER, rows[limit - 1][0])
    return Page[BudgetState](items=[_state(reserved, *row) for row in rows[:limit]], next=more)


def _reserved(connection: AnyConnection, now: Moment, scopes: list[str]) -> dict[tuple[str, str], int]:
    """Add up what turns in progress have reserved, by scope and unit."""
    found = reservations(connection, scopes)
    states = holders(connection, now, [each.holder for each in found])
    sums: dict[tuple[str, str], int] = {}
    for each in found:
        if (state := states.get(each.holder)) is not None and state.token == each.token and state.is_held:
            place = each.scope, each.name.partition("_")[0]
            sums[place] = sums.get(place, 0) + each.amount
    return sums


def _state(
    reserved: dict[tuple[str, str], int], scope: str, name: str, amount: int, cap: int | None, ends_at: Any
) -> BudgetState:
    cap = cap or 0
    unit, _, period = name.partition("_")
    taken = reserved.get((scope, unit), 0)
    amounts = {"limit": cap, "spent": amount, "reserved": taken, "left": max(cap - amount - taken, 0)}
    return BudgetState(
        scope=scope,
        unit=unit,
        period=None if ends_at is None else period.replace("_", "-"),
        opens_at=None if ends_at is None else stored_time(scope, "ends_at", ends_at),
        **{field: decode(unit, value) for field, value in amounts.items()},
    )


_reset: Final = Statement(sa.delete(BUDGET).where(_OF_SCOPE, _IS_PERIOD).returning(BUDGET.c.name))
_wake: Final = Statement(
    sa.update(SESSION)
    .where(SESSION.c.owed_at > NOW, SESSION.c.last_error == text("error"), owed.IS_ENDED)
    .values(owed_at=NOW)
)


def reset(connection: AnyConnection, _: Moment, owner: str, table: sa.Table) -> bool:
    """Forget what was used of the budget of a scope; return False if nothing was used."""
    return bool(_reset.run(connection, {"scope": checked_key(owner, "scope")}))


def wake(connection: AnyConnection, now: Moment, owner: str, table: sa.Table) -> None:
    """Make the turns due that wait for the budget of a scope."""
    _wake.run_many(connection, [{"now": dialect_of(connection).time(now), "error": working.waits_for(owner)}])
