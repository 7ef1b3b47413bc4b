"""The interface of a search index, which is updated through a queue and created on demand.

Triggers put the key of each added, changed or deleted message into a queue; writes do no other work for the index.
Draining the queue removes the entries of these messages from the index, and adds new entries for the messages that
still exist. A search ignores the entries of queued messages, so that it never finds a message by an old text.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa

from lango_store._rooms.search.query import SearchQuery, searchable
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import decode_json
from lango_store._rows.payloads import FAULTS, put_back, references
from lango_store.tables import Base

REBUILD: Final = "run `lango-store search rebuild`"

MESSAGE: Final = Base.metadata.tables["lango_message"]
QUEUE: Final = "lango_search_queue"
TABLES: Final = ("lango_search", QUEUE)
TRIGGERS: Final = ("lango_search_inserted", "lango_search_updated", "lango_search_deleted")

PAYLOAD: Final = Base.metadata.tables["lango_payload"]

_SEARCHABLE: Final = ("role", "name", "tool_call_id", "text", "content", "tool_calls", "extra")
_READ: Final = ("session_key", "payloads", *_SEARCHABLE)

_AT_ONCE: Final = 500  # a statement binds a limited number of values

# An indexed change leaves a dead row in the queue until PostgreSQL vacuums it. The first count of an empty queue reads
# these rows through the primary key, later ones only its pages, which are less than half of those of the table.
_COUNT_QUEUE: Final = f"SELECT count(*) FROM {QUEUE} WHERE (SELECT max(id) FROM {QUEUE}) IS NOT NULL"

MessageKey = tuple[str, int]
"""The session key and the seq of a message."""


class Matches(NamedTuple):
    """The matches of a query: the FROM clause to select from, the messages in that clause, and the rank of a match."""

    source: sa.FromClause
    message: sa.FromClause
    rank: sa.ColumnElement[float]


class SearchIndex(Protocol):
    """The interface that the search indexes of SQLite and PostgreSQL implement."""

    tables: tuple[str, ...] = TABLES
    id_columns: str  # the columns of the queue and of the entries that identify a message
    message_id_columns: str  # the corresponding columns of lango_message
    entries: str  # the table with one row for each indexed message
    is_one_of: str  # a condition that matches messages by :keys, a JSON array of MessageKey
    select_names: str  # selects the names of the existing tables and enabled triggers
    select_drainable: str  # selects true if the queue has changes that this connection may index

    def create_queue(self, connection: sa.Connection) -> None:
        """Create the queue and the triggers that fill it."""

    def create_entries(self, connection: sa.Connection) -> None:
        """Create the empty table of entries."""

    def drop(self, connection: sa.Connection) -> None:
        """Drop the index even if it is damaged."""

    def obstacle(self, connection: sa.Connection) -> str | None:
        """Return why this database cannot have an index, with a remedy; None if it can."""
        return None

    def has_outdated_function(self, connection: sa.Connection) -> bool:
        """Return True if the triggers call a function of an earlier release that this connection may replace."""
        return False  # triggers on SQLite call no function

    def replace_function(self, connection: sa.Connection) -> None:
        """Replace the function that the triggers call."""
        return

    def drain(self, connection: sa.Connection, limit: int) -> int:
        """Index the newest queued changes, at most `limit`; return how many were indexed."""

    def vacuum_queue(self, connection: sa.Connection) -> None:
        """Free the space of the queue after many changes were indexed; needs a connection without a transaction."""
        return

    def purge(self, connection: sa.Connection) -> None:
        """Remove words of deleted messages that are still in the index."""
        return  # most indexes remove words at once

    def is_damage(self, error: BaseException) -> bool:
        """Return True if a damaged index can cause this error of the driver."""

    def time_limit(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[None]:
        """Raise TimeoutError if a statement takes longer (never on aiosqlite). The transaction stays usable."""

    def matches(self, query: SearchQuery) -> Matches:
        """Return the messages that match a query. The query must have at least one wanted term."""

    def one_of(self, keys: Sequence[MessageKey]) -> sa.TextClause:
        """Return a condition that matches messages by their keys, each looked up in the primary key."""
        return sa.text(self.is_one_of).bindparams(keys=json.dumps(keys))

    def exists(self, connection: sa.Connection) -> bool:
        """Return True if the index or a part of it exists."""
        return connection.exec_driver_sql(self.select_names).first() is not None

    def fault(self, connection: sa.Connection) -> str | None:
        """Return which part of the index is missing, with a remedy; None if the index is complete."""
        # Parts can be missing after a migration on SQLite copied a table, which drops its triggers, or after an
        # interrupted `search enable`.
        missing = {*self.tables, *TRIGGERS}.difference(connection.exec_driver_sql(self.select_names).scalars())
        return f"{', '.join(sorted(missing))} is missing: {REBUILD}" if missing else None

    def fill_queue(self, connection: sa.Connection) -> None:
        """Queue all messages except records."""
        connection.exec_driver_sql(
            f"INSERT INTO {QUEUE} ({self.id_columns}) SELECT {self.message_id_columns} FROM lango_message "
            "WHERE role <> 'record' ON CONFLICT DO NOTHING"
        )

    def can_drain(self, connection: sa.Connection) -> bool:
        """Return True if the queue has changes that this connection may index."""
        return bool(connection.exec_driver_sql(self.select_drainable).scalar_one())

    def queued(self, connection: sa.Connection) -> int:
        """Count the changes in the queue."""
        return int(connection.exec_driver_sql(_COUNT_QUEUE).scalar_one())

    def indexed(self, connection: sa.Connection) -> int:
        """Count the messages in the index."""
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {self.entries}").scalar_one())

    def differences(self, connection: sa.Connection) -> tuple[int, int]:
        """Count messages without an entry, and entries without a message; leave out records and queued messages."""
        messages = f"SELECT {self.message_id_columns} FROM lango_message WHERE role <> 'record'"
        entries, queue = (f"SELECT {self.id_columns} FROM {table}" for table in (self.entries, QUEUE))
        one, other = (f"{' EXCEPT '.join(each)} EXCEPT {queue}" for each in ((messages, entries), (entries, messages)))
        counts = f"SELECT (SELECT count(*) FROM ({one}) missing), (SELECT count(*) FROM ({other}) extra)"
        missing, extra = connection.exec_driver_sql(counts).one()
        return missing, extra


def read_messages(
    connection: sa.Connection, chosen: sa.Select[Any], table: sa.Table = MESSAGE, **params: Any
) -> Generator[tuple[tuple[Any, ...], str, tuple[str, str]]]:
    """Yield the selected columns, the role and the searchable texts of each chosen message of a table."""
    columns = [as_stored(table.c[name]).label(f"searched_{name}") for name in _READ]
    with connection.execute(chosen.add_columns(*columns), params) as rows:
        for row in rows:
            selected, stored = row[: -len(_READ)], row[-len(_READ) :]
            texts = (each.decode(errors="replace") if isinstance(each, bytes) else each for each in stored)
            message = dict(zip(_READ, texts, strict=True))
            # Without payloads if an edit has removed one since the row was read; the edit has queued the message again.
            message = _with_payloads(message, partial(_bodies, connection, message["session_key"]))
            yield tuple(selected), message["role"], searchable(*(message[name] for name in _SEARCHABLE))


def _with_payloads(row: dict[str, Any], read: Callable[[set[str]], Mapping[str, str]]) -> dict[str, Any]:
    """Return an encoded message with the payloads that `read` returns by their digests; unchanged if it is damaged."""
    if row["payloads"] is None:
        return row
    whole = dict(row)
    try:
        listing = {name: places for name, places in decode_json(row["payloads"]).items() if name in row}
        put_back(whole, listing, read({digest for digest, *_ in references(listing)}))
    except FAULTS:
        return row
    return whole


def _bodies(connection: sa.Connection, key: str, digests: set[str]) -> dict[str, str]:
    query = sa.select(PAYLOAD.c.digest, PAYLOAD.c.body).where(PAYLOAD.c.session_key == key)
    wanted, bodies = list(digests), dict[str, str]()
    for start in range(0, len(wanted), _AT_ONCE):
        part = query.where(PAYLOAD.c.digest.in_(wanted[start : start + _AT_ONCE]))
        bodies |= dict([*connection.execute(part)])
    return bodies
