"""The methods of the room."""

from lango_store._parts.groups import StoreFacade, StorePart, store_group
from lango_store._rooms.budgets import states
from lango_store._rooms.budgets.tables import BUDGET
from lango_store._rooms.budgets.values import BudgetState
from lango_store._values.reports import Page


class StoreBudgets(StorePart):
    """The budgets of a store: `Store.budgets`."""

    def list(self, scope: str | None = None, *, limit: int = 50, cursor: str | None = None) -> Page[BudgetState]:
        """List the budgets of which something was used or reserved in their current period, sorted by scope.

        Args:
            scope: Only budgets of this scope. Defaults to all scopes.
            limit: The number of budgets per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.

        Raises:
            InvalidKey: `scope` cannot be a scope.
            InvalidCursor: The cursor was not returned by this method.
        """
        return self._context.on_primary().read_together(states.list_page, scope, BUDGET, limit, cursor)

    def reset(self, scope: str) -> bool:
        """Forget what was used of the budget of a scope. Turns that wait for the budget are then due.

        Turns in progress keep what they have reserved.

        Args:
            scope: The scope of the budget.

        Returns:
            True if something was used, otherwise False.
        """
        is_reset = self._context.transact(states.reset, scope, BUDGET)
        self._context.transact(states.wake, scope, BUDGET)  # separate, so that it waits for no lock of a session
        return is_reset


class InStore(StoreFacade):
    """Adds the members of the room to `Store`."""

    budgets = store_group(StoreBudgets)
    """The budgets of all scopes: list and reset what turns have used of them."""
