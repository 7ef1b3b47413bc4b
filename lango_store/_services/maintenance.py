"""Maintenance that reaches beyond one transaction: move payloads."""

from collections.abc import Callable

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._operations.log import payloads
from lango_store._operations.pace import Pace
from lango_store._rows.payloads import Threshold


def move_payloads(context: Context, threshold: Threshold | None, on_batch: Callable[[int], None] | None) -> int:
    """Move large strings of stored messages to payloads or, with the threshold None, back to the rows, in batches."""
    after, moved = ("", 0), 0
    pace = Pace(dialect_of(context.engine))
    while chosen := context.read_together(payloads.choose, after, pace.rows, threshold):
        with pace.batch():
            moved += context.transact(payloads.move_rows, chosen, threshold)
        after = chosen[-1]
        if on_batch is not None:
            on_batch(moved)
    return moved
