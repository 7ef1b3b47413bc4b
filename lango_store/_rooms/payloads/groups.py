"""The methods of the room."""

from collections.abc import Callable

from lango_store._connections.context import Context
from lango_store._rooms.payloads import moving
from lango_store._rows.payloads import threshold_of
from lango_store._values.model import UNSET, Unset
from lango_store.errors import quoted


class InMaintenance:
    """Adds the members of the room to `Maintenance`."""

    _context: Context

    def move_payloads(
        self, *, threshold: int | None | Unset = UNSET, on_batch: Callable[[int], None] | None = None
    ) -> int:
        """Move large strings of stored messages to payloads, as `Store(payload_threshold=…)` does for new messages.

        Messages are changed in batches, each in a separate transaction, and other processes can append between two
        batches. An interrupted call can be repeated.

        Args:
            threshold: The length in characters from which a string is moved, 1 or more. By default, it depends on the
                string, as with `payload_threshold`. None moves all payloads back into the rows of their messages, for
                a downgrade to a release without payloads.
            on_batch: A function that is called after each batch with the number of changed messages so far.

        Returns:
            The number of changed messages.

        Raises:
            ValueError: `threshold` is less than 1.
        """
        if threshold not in (None, UNSET) and (type(threshold) is not int or threshold < 1):
            raise ValueError(f"threshold={quoted(threshold)} is not positive: give a number of characters, or None")
        return moving.move_all(self._context, threshold_of(threshold), on_batch)
