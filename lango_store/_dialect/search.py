"""What a dialect does for the search index, whose tables and triggers are created on demand.

Triggers put the place of each message that is added, changed or deleted into a queue; a write does nothing else for the
index. Draining the queue removes the entries of these messages, and adds those of the messages that still exist. A
search ignores entries whose message is in the queue, so that it never finds a message by an old text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store._rows.columns import as_stored
from lango_store._values.search_query import Terms, searchable
from lango_store.tables import Base

SIMPLE: Final = "simple"
"""The configuration that both databases have: words as they are written, in whatever case."""

TRIGRAM: Final = "trigram"
"""Any three characters, on SQLite."""

REBUILD: Final = "run `lango-store search rebuild`"

MESSAGE: Final = Base.metadata.tables["lango_message"]
STATE: Final = sa.table("lango_search_state", sa.column("configuration"), sa.column("complete"))
QUEUE: Final = sa.table("lango_search_queue")
TABLES: Final = ("lango_search", QUEUE.name, STATE.name)
TRIGGERS: Final = ("lango_search_inserted", "lango_search_updated", "lango_search_deleted")
PARTS: Final = ("said", "blocks", "tools", "outputs")

_SEARCHABLE: Final = [MESSAGE.c[name] for name in ("role", "name", "tool_call_id", "text", "content", "tool_calls")]

Place = tuple[str, int]
"""Where a message is: the key of its session and its seq."""


@dataclass(frozen=True)
class IndexState:
    """The state of an index; `fault` says why it cannot be used, and what to do."""

    configuration: str
    complete: bool = True
    """Whether all messages that were there before the index have been queued."""

    fault: str | None = None


@dataclass(frozen=True)
class Matches:
    """The messages that match a query, for a SELECT from `source`, in which `message` has their columns.

    `unread` counts the changes in the queue that are not taken into account.
    """

    source: sa.FromClause
    message: sa.FromClause
    rank: sa.ColumnElement[float]
    unread: int


class SearchIndex:
    """The search index of a database."""

    tables: tuple[str, ...] = TABLES
    """The names of its tables."""

    place: str
    """The columns of the queue, and of the entries, that name a message."""

    place_of_message: str
    """The same of a message."""

    entries: str
    """The table with one row for each indexed message."""

    reads_queue: bool
    """Whether a search finds the newest messages in the queue, too."""

    def names(self, connection: sa.Connection) -> set[str]:
        """Return the names of those tables and enabled triggers that exist."""
        raise NotImplementedError

    def configurations(self, connection: sa.Connection) -> Sequence[str]:
        """Return the configurations that the database has."""
        raise NotImplementedError

    def objects(self, connection: sa.Connection, configuration: str) -> Iterable[str]:
        """Return the statements that create an index."""
        raise NotImplementedError

    def drop(self, connection: sa.Connection) -> None:
        """Drop the index, however damaged it is."""
        raise NotImplementedError

    def drain(self, connection: sa.Connection, limit: int, only: Place | None = None) -> int:
        """Index the newest changes in the queue, or those of one message; return how many, 0 if it may not write."""
        raise NotImplementedError

    def purge(self, connection: sa.Connection) -> None:
        """Let removed words leave the database if they outlast the entries of their messages."""

    def is_damage(self, error: BaseException) -> bool:
        """Return whether a driver's error, where the index was used, can come from its damage."""
        raise NotImplementedError

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        """Return the size of the index."""
        raise NotImplementedError

    def matches(self, connection: sa.Connection, state: IndexState, terms: Terms) -> Matches:
        """Return the messages that match a query with at least one wanted term."""
        raise NotImplementedError

    def at(self, places: Sequence[Place]) -> sa.TextClause:
        """Return the condition that a message is at one of some places, each to be looked up in the primary key."""
        raise NotImplementedError

    def inflected(
        self, connection: sa.Connection, state: IndexState, terms: Terms, texts: Sequence[str]
    ) -> frozenset[str]:
        """Return the words of some texts that match a query in another form, as "ran" matches "run"."""
        return frozenset()

    def state(self, connection: sa.Connection) -> IndexState | None:
        """Return the state of the index, None if there is none."""
        names = self.names(connection)
        if STATE.name not in names:
            return None
        row = connection.execute(sa.select(STATE)).first()
        if row is None:
            return IndexState(SIMPLE, fault=f"{STATE.name} is empty: {REBUILD}")
        if not row.complete:
            return IndexState(row.configuration, False, "it is not complete: run `lango-store search enable`")
        missing = {*self.tables, *TRIGGERS} - names  # SQLite drops triggers with a table that a revision copies
        fault = f"{', '.join(sorted(missing))} is missing: {REBUILD}" if missing else None
        return IndexState(row.configuration, fault=fault)

    def create(self, connection: sa.Connection, configuration: str) -> None:
        """Create an empty index that follows what is written from now on."""
        for statement in self.objects(connection, configuration):
            connection.exec_driver_sql(statement)
        connection.execute(sa.insert(STATE).values(configuration=configuration, complete=sa.false()))

    def queue_all(self, connection: sa.Connection) -> None:
        """Queue all messages, after which the index is complete."""
        columns = f"({self.place}) SELECT {self.place_of_message}"
        connection.exec_driver_sql(
            f"INSERT INTO lango_search_queue {columns} FROM lango_message WHERE role <> 'record' ON CONFLICT DO NOTHING"
        )
        connection.execute(sa.update(STATE).values(complete=sa.true()))

    def queued(self, connection: sa.Connection) -> int:
        """Count the changes in the queue."""
        return connection.execute(sa.select(sa.func.count()).select_from(QUEUE)).scalar_one()

    def has_queued(self, connection: sa.Connection) -> bool:
        """Return whether anything is in the queue."""
        return connection.execute(sa.select(sa.literal(1)).select_from(QUEUE).limit(1)).first() is not None

    def indexed(self, connection: sa.Connection) -> int:
        """Count the messages in the index."""
        return connection.execute(sa.select(sa.func.count()).select_from(sa.table(self.entries))).scalar_one()

    def differences(self, connection: sa.Connection) -> tuple[int, int]:
        """Count messages without an entry, and entries without a message, apart from those in the queue."""
        messages = f"SELECT {self.place_of_message} FROM lango_message WHERE role <> 'record'"
        entries, queue = (f"SELECT {self.place} FROM {table}" for table in (self.entries, QUEUE.name))
        one, other = (f"{' EXCEPT '.join(each)} EXCEPT {queue}" for each in ((messages, entries), (entries, messages)))
        counts = f"SELECT (SELECT count(*) FROM ({one}) missing), (SELECT count(*) FROM ({other}) extra)"
        missing, extra = connection.exec_driver_sql(counts).one()
        return missing, extra


def read_messages(
    connection: sa.Connection, condition: sa.ColumnElement[bool] | sa.TextClause, *columns: sa.ColumnElement[Any]
) -> Iterator[tuple[tuple[Any, ...], str, tuple[str, ...]]]:
    """Yield of each message the given columns, its role and its searchable texts."""
    for row in connection.execute(sa.select(*map(as_stored, _SEARCHABLE), *columns).where(condition)):
        stored = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in row[:6]]
        yield tuple(row[6:]), stored[0], searchable(*stored)
