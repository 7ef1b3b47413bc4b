"""Results of methods for many sessions: pages of lists, statistics, findings, purges."""

from collections.abc import Callable
from typing import Generic, TypeVar

from lango_store._values.value import Value

T = TypeVar("T")


class Page(Value, Generic[T]):
    """One page of a list, such as `Page[SessionInfo]`.

    Attributes:
        items: The items.
        next: The `cursor` to pass to the method for the next page; None on the last page.
    """

    items: list[T]
    next: str | None = None


class Progress(Value):
    """The progress of a long operation on one table.

    Attributes:
        table: The name of the table.
        rows: The number of rows that were processed.
        total: The approximate number of rows in total.
    """

    table: str
    rows: int
    total: int


OnProgress = Callable[[Progress], None]
"""A function that is called with the progress after each step."""
