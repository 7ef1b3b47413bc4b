"""The methods of the room."""

from collections.abc import Sequence
from typing import ClassVar

from lango_store._connections.context import Context
from lango_store._rooms.stats import report
from lango_store._rooms.stats.report import CountWaiting
from lango_store._rooms.stats.values import Stats


class InStore:
    """Adds the members of the room to `Store`."""

    _context: Context
    _waiting: ClassVar[Sequence[CountWaiting]] = ()
    """Functions of other rooms that count work that waits."""

    def stats(self) -> Stats:
        """Return the numbers of sessions, messages and tokens, and the size of the tables.

        Expired sessions are included.
        """
        return self._context.read_together(
            lambda connection, _: report.sum_up(connection, self._context.now(connection), *self._waiting)
        )
