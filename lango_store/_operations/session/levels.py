"""A slash in a session key separates levels, so all descendants of a session form one range of keys."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from lango_store._operations.binds import SESSION, of_sessions
from lango_store._operations.paging import chunks
from lango_store._rows.encoding import checked_key, end_of_prefix
from lango_store.errors import InvalidKey, quoted

T = TypeVar("T")

_RANGES: Final = 100  # per statement: SQLite refuses an expression with more than 1,000 terms


def child_key(key: str, name: str) -> str:
    """Return the key of a child session, or raise `InvalidKey`."""
    if "/" in checked_key(name, "name"):
        raise InvalidKey(f'name {quoted(name)}: contains "/", which separates levels: call child() for each level')
    return checked_key(f"{checked_key(key)}/{name}")


def below(key: str) -> str:
    """Return the key prefix that only the descendants of a session have."""
    return f"{key}/"


def families(connection: sa.Connection, query: sa.Select[Any], keys: Sequence[str]) -> list[sa.Row[Any]]:
    """Read sessions and their descendants, each once; the first column of the query must be the key."""
    rows: dict[str, sa.Row[Any]] = {}
    for part in chunks(keys, _RANGES):
        prefixes = map(below, part)
        ranges = [sa.and_(SESSION.c.key >= each, SESSION.c.key < end_of_prefix(each)) for each in prefixes]
        chosen = query.where(sa.or_(of_sessions(SESSION, part), *ranges)).order_by(SESSION.c.key)
        rows |= {row[0]: row for row in connection.execute(chosen)}
    return list(rows.values())


def first_families(keys: Iterable[str], limit: int | None) -> tuple[list[str], int]:
    """Return the first keys that form at most `limit` families, and the number of these families.

    A family is a session with its descendants among the keys: a descendant of an earlier key joins its family.
    """
    taken: dict[str, None] = {}
    count = 0
    for key in keys:
        levels = key.split("/")
        if not any("/".join(levels[:depth]) in taken for depth in range(1, len(levels))):
            if count == limit:
                break
            count += 1
        taken[key] = None
    return list(taken), count
