"""The base classes of conversations and of groups of methods, and the properties that return groups."""

import copy
from collections.abc import Callable
from typing import Self, TypeVar, cast

from lango_store._connections.context import Context

R = TypeVar("R")


class SessionPart:
    """An object whose methods work on one session. It holds only the session's key."""

    __slots__ = ("_context", "key")

    def __init__(self, context: Context, key: str) -> None:
        self._context = context
        self.key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"


class StorePart:
    """An object whose methods work on all sessions of a store."""

    def __init__(self, context: Context) -> None:
        self._context = context


class StoreFacade:
    """The part of `Store` that the rooms need."""

    _context: Context

    def _bound(self, context: Context) -> Self:
        """Return a copy of the store with another context."""
        store = copy.copy(self)
        store._context = context
        return store


def session_group(kind: Callable[[Context, str], R]) -> R:
    """Create a property of a conversation that returns a group of methods."""
    return cast(R, property(lambda part: kind(part._context, part.key)))


def store_group(kind: Callable[[Context], R]) -> R:
    """Create a property of a store that returns a group of methods."""
    return cast(R, property(lambda store: kind(store._context)))
