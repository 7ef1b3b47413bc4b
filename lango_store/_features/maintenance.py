"""Maintenance of the tables: `Store.maintenance`."""

from collections.abc import Callable

from lango_store._parts.groups import StorePart
from lango_store._rows.payloads import threshold_of
from lango_store._services import maintenance
from lango_store._values.model import UNSET, Unset
from lango_store._values.reports import Finding
from lango_store.errors import quoted


class Maintenance(StorePart):
    """Maintenance of the tables of a store: `Store.maintenance`. `Store.expire` purges sessions."""

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
        return maintenance.move_payloads(self._context, threshold_of(threshold), on_batch)

    def examine(
        self,
        *,
        repair: bool = False,
        delete_unreadable: bool = False,
        on_check: Callable[[str], None] | None = None,
    ) -> list[Finding]:
        """Check the store for damage, and optionally repair it.

        The checks include the schema, indexes, settings of the database, counters, summaries, orphaned rows and values.

        This reads every row, which takes minutes for millions of messages. The command `lango-store doctor` calls this
        method.

        Args:
            repair: Repair the damage that can be repaired without guessing. False by default.
            delete_unreadable: With `repair`, also delete the rows that cannot be read, except those of sessions. Make a
                backup before. False by default.
            on_check: A function that is called with the name of each check before it starts.

        Returns:
            The findings; an empty list if the store is in order. `repaired` is True for repaired findings.
        """
        return maintenance.examine(self._context, repair=repair, delete_unreadable=delete_unreadable, on_check=on_check)
