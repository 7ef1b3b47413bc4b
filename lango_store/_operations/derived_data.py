"""Data that a room derives from messages, such as an index.

It can be dropped and created again, so no migration creates its tables, and no backup has them.
"""

from typing import Any, Final

import sqlalchemy as sa


class DerivedData:
    """Derived data, for migrations and removals. Its tables may exist or not.

    A room adds an object of a subclass to `DERIVED`.

    Attributes:
        name: The name in errors.
        tables: The names of the tables.
        triggers: The names of the triggers on the tables of the store.
    """

    name: str
    tables: frozenset[str]
    triggers: frozenset[str]

    def fault(self, connection: sa.Connection) -> str | None:
        """Return why the data cannot be used, with a remedy; None if it can be used, or does not exist."""

    def obstacle(self, connection: sa.Connection) -> str | None:
        """Return why the tables of the store cannot be distributed over a cluster, with a remedy; None if they can."""

    def is_outdated(self, connection: sa.Connection) -> bool:
        """Return True if `upgrade` would change the tables or the triggers, and this connection may do it."""
        return False

    def upgrade(self, connection: sa.Connection) -> None:
        """Change the tables and triggers that another release created as this one needs them."""

    def drop(self, connection: sa.Connection) -> None:
        """Drop the tables and triggers, even if they are damaged."""

    def clean(self, context: Any) -> None:
        """Remove what belongs to messages that the calls of a `Context` have removed or redacted."""


DERIVED: Final[list[DerivedData]] = []
"""The derived data of all rooms."""


def clean(context: Any) -> None:
    """Remove what belongs to removed or redacted messages from all derived data."""
    for each in DERIVED:
        each.clean(context)
