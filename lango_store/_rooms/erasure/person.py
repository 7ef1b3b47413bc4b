"""The rows of a person: the sessions with everything that belongs to them, shared values, and messages elsewhere."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

import sqlalchemy as sa

from lango_store._operations.binds import MESSAGE, SESSION, key_column, of_sessions
from lango_store._operations.paging import chunks
from lango_store._operations.rows import next_start
from lango_store._operations.session import levels
from lango_store._operations.session.sessions import NOT_ON_HOLD
from lango_store._operations.session_tables import SHARED
from lango_store._rooms.erasure.values import ErasureReceipt
from lango_store._rooms.expiry import archiving
from lango_store._rooms.turns_in_progress.tables import INBOX
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import MAX_KEY_LENGTH, decode_json, decode_time, end_of_prefix
from lango_store.errors import HOLD
from lango_store.tables import Base

_CHILDREN: Final = [each for each in Base.metadata.sorted_tables if "session_key" in each.c]
TABLES: Final = [SESSION, MESSAGE, *(each for each in _CHILDREN if each is not MESSAGE)]
"""All tables with rows of sessions. Foreign keys delete these rows together with the session."""

AUTHORS: Final = [
    (table, table.c[name])
    for table in TABLES
    for name in ("author", "changed_by", "answered_by", "shared_by")
    if name in table.c
]
"""The columns that name the author of a row."""
HOLDERS: Final = [table.c.holder for table in SHARED if "holder" in table.c]
"""The columns that name a session in rows of scopes, which no foreign key deletes."""
_OWN: Final = [*(key_column(table) for table in TABLES), *HOLDERS]
"""The columns that name the session of a row."""

_KEYS: Final = sa.select(SESSION.c.key)
_AT_ONCE: Final = 500
_PAGE: Final = 1_000

Found = tuple[sa.Table, dict[str, Any]]


@dataclass(frozen=True)
class Person:
    """The person whose rows are erased or exported. With `owner`, only sessions of that user are the person's."""

    user_id: str | None
    keys: Sequence[str] = ()
    scopes: Sequence[str] = ()
    authors: bool = False
    receipt: ErasureReceipt | None = None
    owner: str | None = None

    def in_archive(self) -> Self:
        """Return the person in an archive, which has no shared values."""
        return replace(self, scopes=())

    def conditions(self, connection: sa.Connection) -> list[sa.ColumnElement[bool]]:
        """Return conditions that match the sessions in this database, apart from descendants of other users."""
        found = [SESSION.c.user_id == self.user_id] if self.user_id is not None else []
        keys = [copy for key in self.keys for copy in _copies(connection, key)]
        if self.receipt is not None:
            keys += _digested(connection, self.receipt)
        found += [of_sessions(SESSION, part) for part in chunks(keys, _AT_ONCE)]
        return found if self.owner is None else [each & (SESSION.c.user_id == self.owner) for each in found]

    def sessions(self, connection: sa.Connection) -> list[str]:
        """Return the keys of the sessions and their descendants, each once."""
        found: dict[str, None] = {}
        for condition in self.conditions(connection):
            keys = connection.execute(_KEYS.where(condition).order_by(SESSION.c.key)).scalars().all()
            found |= dict.fromkeys(families(connection, keys) if self.owner is None else keys)
        return list(found)

    def elsewhere(self, connection: sa.Connection, own: Sequence[str]) -> list[str]:
        """Return the keys of all other sessions in which the person wrote something."""
        if not self.authors or self.user_id is None:
            return []
        found = {row["session_key"] for row in _waiting(connection, self.user_id)}
        for table, column in AUTHORS:
            found |= {*connection.execute(sa.select(table.c.session_key).where(column == self.user_id)).scalars()}
        return sorted(found.difference(own))


def families(connection: sa.Connection, keys: Sequence[str]) -> list[str]:
    """Return the keys of sessions and their descendants."""
    return [key for (key,) in levels.families(connection, _KEYS, keys)]


def _copies(connection: sa.Connection, key: str) -> list[str]:
    """Return a key, and in an archive the keys of earlier sessions with this key."""
    start = f"{key}~"[: MAX_KEY_LENGTH - 20]
    query = sa.select(SESSION.c.key, SESSION.c.incarnation)
    rows = connection.execute(query.where(SESSION.c.key >= start, SESSION.c.key < end_of_prefix(start)))
    return [key, *(row.key for row in rows if row.key == archiving.earlier_key(key, row.incarnation))]


def _digested(connection: sa.Connection, receipt: ErasureReceipt) -> list[str]:
    """Return the keys of the sessions whose digests are in a receipt."""
    wanted, found, after = {*receipt.digests}, [], ""
    query = sa.select(SESSION.c.key, SESSION.c.incarnation, as_stored(SESSION.c.created_at)).order_by(SESSION.c.key)
    while True:
        page = connection.execute(query.where(SESSION.c.key > after).limit(_PAGE)).all()
        for key, incarnation, created_at in page:
            keys = (key, key.removesuffix(f"~{incarnation}"))
            if not wanted.isdisjoint(receipt.digest(each, decode_time(created_at)) for each in keys):
                found.append(key)
        if len(page) < _PAGE:
            return found
        after = next_start(after, page[-1].key)


def created(connection: sa.Connection, keys: Sequence[str]) -> Iterator[tuple[str, datetime]]:
    """Yield the key and the creation time of sessions."""
    query = sa.select(SESSION.c.key, as_stored(SESSION.c.created_at))
    for part in chunks(keys, _AT_ONCE):
        for key, created_at in connection.execute(query.where(of_sessions(SESSION, part))):
            yield key, decode_time(created_at)


def holds(connection: sa.Connection, keys: Sequence[str]) -> dict[str, str]:
    """Return the sessions that have a hold, each with the reason."""
    query = sa.select(SESSION.c.key, SESSION.c.hold).where(~NOT_ON_HOLD)
    rows = (
        row for part in chunks(keys, _AT_ONCE) for row in connection.execute(query.where(of_sessions(SESSION, part)))
    )
    return {key: f"{HOLD}{hold}" for key, hold in rows}


def count(connection: sa.Connection, keys: Sequence[str], scopes: Sequence[str] = ()) -> Counter[str]:
    """Count the rows of sessions and scopes by table."""
    counts: Counter[str] = Counter()
    for table, condition in _matching(keys, scopes, _AT_ONCE):
        query = sa.select(sa.func.count()).select_from(table).where(condition)
        counts[table.name] += connection.execute(query).scalar_one()
    return +counts


def rows_of(connection: sa.Connection, keys: Sequence[str], scopes: Sequence[str]) -> Iterator[Found]:
    """Yield the rows of sessions and scopes, with JSON as text."""
    for table, condition in _matching(keys, scopes, 1):
        query = sa.select(*map(as_stored, table.c)).where(condition).order_by(*table.primary_key)
        for row in connection.execute(query, execution_options={"yield_per": 50}).mappings():
            yield table, dict(row)


def _matching(
    keys: Sequence[str], scopes: Sequence[str], size: int
) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Yield tables with conditions for at most `size` keys or scopes; together, these match each row once."""
    for part in chunks(keys, size):
        for column in _OWN:
            outside = [column.table.c.scope.not_in(scopes)] if "scope" in column.table.c else []
            yield column.table, sa.and_(column.in_(part), *outside)
    for part in chunks(scopes, size):
        for table in SHARED:
            yield table, table.c.scope.in_(part)


def rows_by(connection: sa.Connection, user_id: str, key: str) -> Iterator[Found]:
    """Yield the rows of a session that a person wrote, with JSON as text."""
    for table, column in AUTHORS:
        query = sa.select(*map(as_stored, table.c)).where(of_sessions(table, [key]), column == user_id)
        for row in connection.execute(query.order_by(*table.primary_key)).mappings():
            yield table, dict(row)
    for waiting in _waiting(connection, user_id, key):
        yield INBOX, waiting


def _waiting(connection: sa.Connection, user_id: str, key: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of messages of a person that wait in an inbox."""
    query = sa.select(*map(as_stored, INBOX.c)).order_by(*INBOX.primary_key)
    for row in connection.execute(query if key is None else query.where(of_sessions(INBOX, [key]))).mappings():
        try:
            message = decode_json(row["message"])
        except ValueError:
            continue  # a damaged row names no author
        if isinstance(message, dict) and message.get("author") == user_id:
            yield dict(row)
