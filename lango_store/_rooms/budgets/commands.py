"""`lango-store budgets`: list the budgets, and reset them."""

from typing import Annotated, Final

from lango_store._rooms.budgets.values import BudgetState
from lango_store.cli.options import CsvOption, JsonOption, UrlOption, example, open_store, option
from lango_store.cli.output import Columns, all_pages, print_items, printable, say
from lango_store.cli.root import app

COLUMNS: Final[Columns[BudgetState]] = {
    "scope": lambda budget: budget.scope,
    "period": lambda budget: budget.period,
    "unit": lambda budget: budget.unit,
    "limit": lambda budget: str(budget.limit),
    "spent": lambda budget: str(budget.spent),
    "reserved": lambda budget: str(budget.reserved),
    "left": lambda budget: str(budget.left),
    "opens (UTC)": lambda budget: budget.opens_at,
}


@app.command(epilog=example("budgets --url sqlite:///agent.db"))
def budgets(
    scope: Annotated[str | None, option("SCOPE", "Only the budget of this scope, such as user:ann.")] = None,
    reset: Annotated[str | None, option("SCOPE", "Forget what was used of the budget of this scope.")] = None,
    url: UrlOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List what is used and left of the budgets in their current period.

    With --reset, the whole budget of the scope is left again, and the turns
    that wait for it are due.

    In a pipe, each budget is one line of tab-separated fields without a
    header: scope, period, unit (`tokens` or `usd`), limit, spent, reserved,
    left, and end of the period. Control characters are escaped with a
    backslash.
    """
    with open_store(url) as store:
        if reset is not None:
            found = store.budgets.reset(reset)
            say(f"reset the budget of {printable(reset)}" if found else f"nothing was used by {printable(reset)}")
            return
        print_items(
            COLUMNS, all_pages(store.budgets.list, scope=scope), as_json=json_, as_csv=csv_, none="no budget is in use"
        )
