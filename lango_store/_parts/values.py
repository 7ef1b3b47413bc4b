"""JSON by name: `Conversation.values` and `Store.shared_values`."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._operations.binds import VALUE
from lango_store._operations.session import values


class Values:
    """The values of a session (`Conversation.values`) or of a scope (`Store.shared_values`).

    The values of a session are deleted with it. Setting or deleting them changes the session's `revision`. It does not
    change `updated_at`, and does not restart the TTL. Shared values belong to no session.

    Attributes:
        key: The session's key; None for shared values.
    """

    def __init__(self, context: Context, owner: str, table: sa.Table = VALUE) -> None:
        self._context = context
        self._owner = owner
        self._table = table
        self.key = owner if table is VALUE else None

    def get(self, prefix: str | None = None) -> dict[str, Any]:
        """Read the values.

        Args:
            prefix: Only values whose name starts with this text. Defaults to all values.

        Returns:
            The values by name, in the order of their names. A new scope has none.
        """
        return self._context.read(values.read, self._owner, prefix, self._table)

    def set(self, named: dict[str, Any]) -> None:
        """Set values, all or none. Values with other names do not change.

        Args:
            named: JSON by name; None is a value too. A name has 1 to 512 characters, and at most 2,600 bytes in UTF-8
                together with the session key or the scope.

        Raises:
            InvalidKey: A name is invalid; nothing was written.
            InvalidValue: A value is not JSON; nothing was written.
        """
        encoded = values.encode_values(self._owner, named, self._table)
        self._context.write(values.write, self._owner, encoded, self._table)

    def delete(self, names: Sequence[str] | None = None) -> int:
        """Delete values.

        Args:
            names: The names of the values to delete. Defaults to all values.

        Returns:
            The number of deleted values.
        """
        return self._context.transact_once(values.delete, self._owner, names, self._table)
