"""The interface of a search index, whose tables and triggers are created on demand.

Triggers put the place of each message that is added, changed or deleted into a queue; a write does nothing else for the
index. Draining the queue removes the entries of these messages, and adds those of the messages that still exist. A
search ignores entries whose message is in the queue, so that it never finds a message by an old text.
"""

import json
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa

from lango_store._rows.columns import as_stored
from lango_store._values.search_query import SearchQuery, searchable
from lango_store.tables import Base

REBUILD: Final = "run `lango-store search rebuild`"

MESSAGE: Final = Base.metadata.tables["lango_message"]
QUEUE: Final = "lango_search_queue"
TABLES: Final = ("lango_search", QUEUE)
TRIGGERS: Final = ("lango_search_inserted", "lango_search_updated", "lango_search_deleted")

_SEARCHABLE: Final = [MESSAGE.c[name] for name in ("role", "name", "tool_call_id", "text", "content", "tool_calls")]

MessageKey = tuple[str, int]
"""The key of a message's session, and its seq."""


class Matches(NamedTuple):
    """The messages that match a query, for a SELECT from `source`, in which `message` has their columns."""

    source: sa.FromClause
    message: sa.FromClause
    rank: sa.ColumnElement[float]


class SearchIndex(Protocol):
    """The search index of a database."""

    tables: tuple[str, ...] = TABLES
    id_columns: str  # the columns of the queue, and of the entries, that identify a message
    message_id_columns: str  # the same columns of a message
    entries: str  # the table with one row for each indexed message
    is_one_of: str  # a condition: a message has one of the :keys, a JSON array of MessageKey
    select_names: str  # selects the names of the tables and enabled triggers that exist
    select_drainable: str  # selects whether the queue has changes that this connection may index

    def create_queue(self, connection: sa.Connection) -> None:
        """Create the queue and the triggers that fill it."""

    def create_entries(self, connection: sa.Connection) -> None:
        """Create the empty table of the entries."""

    def drop(self, connection: sa.Connection) -> None:
        """Drop the index, however damaged it is."""

    def drain(self, connection: sa.Connection, limit: int) -> int:
        """Index the newest changes in the queue; return how many."""

    def purge(self, connection: sa.Connection) -> None:
        """Remove words of deleted messages that are still in the index."""
        return  # most indexes keep none

    def is_damage(self, error: BaseException) -> bool:
        """Return whether a driver's error, where the index was used, can come from its damage."""

    def matches(self, query: SearchQuery) -> Matches:
        """Return the messages that match a query with at least one wanted term."""

    def one_of(self, keys: Sequence[MessageKey]) -> sa.TextClause:
        """Return the condition that a message has one of some keys, each looked up in the primary key."""
        return sa.text(self.is_one_of).bindparams(keys=json.dumps(keys))

    def exists(self, connection: sa.Connection) -> bool:
        """Return whether there is an index, or a part of one."""
        return connection.exec_driver_sql(self.select_names).first() is not None

    def fault(self, connection: sa.Connection) -> str | None:
        """Return what is missing of the index, and what to do."""
        # SQLite drops triggers with a table that a revision copies; an `enable` that was killed has made no entries.
        missing = {*self.tables, *TRIGGERS}.difference(connection.exec_driver_sql(self.select_names).scalars())
        return f"{', '.join(sorted(missing))} is missing: {REBUILD}" if missing else None

    def fill_queue(self, connection: sa.Connection) -> None:
        """Queue all messages."""
        connection.exec_driver_sql(
            f"INSERT INTO {QUEUE} ({self.id_columns}) SELECT {self.message_id_columns} FROM lango_message "
            "WHERE role <> 'record' ON CONFLICT DO NOTHING"
        )

    def can_drain(self, connection: sa.Connection) -> bool:
        """Return whether there is something in the queue that this connection may index."""
        return bool(connection.exec_driver_sql(self.select_drainable).scalar_one())

    def queued(self, connection: sa.Connection) -> int:
        """Count the changes in the queue."""
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {QUEUE}").scalar_one())

    def indexed(self, connection: sa.Connection) -> int:
        """Count the messages in the index."""
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {self.entries}").scalar_one())

    def differences(self, connection: sa.Connection) -> tuple[int, int]:
        """Count messages without an entry, and entries without a message, apart from those in the queue."""
        messages = f"SELECT {self.message_id_columns} FROM lango_message WHERE role <> 'record'"
        entries, queue = (f"SELECT {self.id_columns} FROM {table}" for table in (self.entries, QUEUE))
        one, other = (f"{' EXCEPT '.join(each)} EXCEPT {queue}" for each in ((messages, entries), (entries, messages)))
        counts = f"SELECT (SELECT count(*) FROM ({one}) missing), (SELECT count(*) FROM ({other}) extra)"
        missing, extra = connection.exec_driver_sql(counts).one()
        return missing, extra


def read_messages(
    connection: sa.Connection, chosen: sa.Select[Any], **params: Any
) -> Generator[tuple[tuple[Any, ...], str, tuple[str, str]]]:
    """Yield of each chosen message the selected columns, its role and its searchable texts."""
    with connection.execute(chosen.add_columns(*map(as_stored, _SEARCHABLE)), params) as rows:
        for row in rows:
            stored = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in row[-6:]]
            yield tuple(row[:-6]), stored[0], searchable(*stored)
