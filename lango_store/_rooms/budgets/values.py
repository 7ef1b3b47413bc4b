"""The values of the room."""

from typing import Literal

from pydantic import AwareDatetime

from lango_store._values.value import Value


class BudgetState(Value):
    """The use of a budget in its current period.

    Attributes:
        scope: The scope of the budget.
        unit: `"tokens"`, or `"usd"` for dollars.
        period: The day or month in UTC, such as `"2026-11-21"` or `"2026-11"`; None for a budget without a period.
        limit: The limit when a turn of the scope last began or ended.
        spent: The usage of the turns of the scope.
        reserved: The reservations of turns in progress.
        left: The rest, at least 0.
        opens_at: The end of the period; None without one.
    """

    scope: str
    unit: Literal["tokens", "usd"]
    period: str | None = None
    limit: int | float
    spent: int | float
    reserved: int | float
    left: int | float
    opens_at: AwareDatetime | None = None
