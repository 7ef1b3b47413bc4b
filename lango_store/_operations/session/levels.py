"""A slash in a session key separates levels, so all descendants of a session form one range of keys."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations.binds import SESSION, of_sessions
from lango_store._operations.paging import chunks
from lango_store._rows.encoding import checked_key, end_of_prefix
from lango_store.errors import InvalidKey, quoted

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
        # Not the key itself: SQLite would read all sessions in the order of its index.
        chosen = query.where(sa.or_(of_sessions(SESSION, part), *ranges)).order_by(sa.func.substr(SESSION.c.key, 1))
        rows |= {row[0]: row for row in connection.execute(chosen)}
    return list(rows.values())
