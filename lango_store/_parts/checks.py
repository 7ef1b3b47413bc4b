"""The checks of `doctor`. A room adds its checks to `RoomsOfMaintenance` in `_rooms/composition.py`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from lango_store._operations.binds import SESSION, of_session

Fault = tuple[str, str, str]
"""The subject, the detail and the remedy of a finding."""


class Check(NamedTuple):
    """A check, with the repair of a fault if there is only one correct repair. It needs all tables of the store.

    Attributes:
        name: The name of its findings.
        find: A function that yields the faults.
        repair: A function that repairs the faults of one subject.
    """

    name: str
    find: Callable[[sa.Connection], Iterator[Fault]]
    repair: Callable[[sa.Connection, str], Any] | None = None


def shown(key: Any) -> str:
    """Return a stored key as text, also if it is damaged."""
    return key if isinstance(key, str) else repr(key)


def lock(connection: sa.Connection, key: str) -> None:
    """Lock a session, live or expired, for a repair."""
    connection.execute(sa.select(SESSION.c.key).where(of_session(SESSION, key)).with_for_update())
