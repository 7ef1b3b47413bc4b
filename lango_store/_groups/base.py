"""The base class of conversations and of the groups of their methods."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import Moment
from lango_store._operations import sessions

P = ParamSpec("P")
R = TypeVar("R")


class SessionPart:
    """An object whose methods work on one session. It holds only the session's key."""

    __slots__ = ("_context", "key")

    def __init__(self, context: Context, key: str) -> None:
        self._context = context
        self.key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def _read_part(
        self, operation: Callable[Concatenate[sa.Connection, str, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run an operation that reads a part of the session; raise an error if the session is not live."""

        def read(connection: sa.Connection, now: Moment) -> R:
            sessions.row_of(connection, now, self.key)
            return operation(connection, self.key, *args, **options)

        return self._context.read_together(read)


class StorePart:
    """An object whose methods work on all sessions of a store."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context
