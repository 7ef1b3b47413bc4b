"""The methods of the room as coroutines."""

from lango_store._parts.twins import AsyncPart, awaited, group
from lango_store._rooms.budgets.groups import StoreBudgets


class AsyncStoreBudgets(AsyncPart[StoreBudgets]):
    """The methods of `StoreBudgets` as coroutines."""

    list = awaited(StoreBudgets.list)
    reset = awaited(StoreBudgets.reset)


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    budgets = group("budgets", AsyncStoreBudgets)
