"""The methods of the room."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from lango_store._connections.context import Context
from lango_store._parts.checks import Check
from lango_store._rooms.examination import checks, examining
from lango_store._rooms.examination.values import Finding


class InMaintenance:
    """Adds the members of the room to `Maintenance`."""

    _context: Context
    _checks: ClassVar[Sequence[Check]] = ()

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
        wanted = [*checks.CHECKS, *self._checks]
        return examining.examine(
            self._context, wanted, repair=repair, delete_unreadable=delete_unreadable, on_check=on_check
        )
