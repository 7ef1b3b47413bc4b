"""What a dialect does for the search index: objects of its own beside our tables, there only once they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store.words import Terms

SIMPLE: Final = "simple"
"""The configuration that both databases have: words as they are written, in whatever case."""

TRIGRAM: Final = "trigram"
"""The other one that both have, PostgreSQL with pg_trgm: any three characters, in whatever case."""

STATE: Final = sa.table("lango_search_state", sa.column("configuration"), sa.column("state"), sa.column("reason"))

PARTS: Final = ("said", "blocks", "tools", "outputs")
"""What of a message is found, the weightiest first: its text, texts of its blocks, names of tools, their outputs."""


@dataclass(frozen=True)
class IndexState:
    """How an index is: `filling`, `ready` or `detached`, and then for what reason."""

    configuration: str
    state: str
    reason: str | None = None


@dataclass(frozen=True)
class Matching:
    """How matches are chosen in a query over messages."""

    source: sa.FromClause
    """What the matches are in, with their messages."""

    message: sa.FromClause
    """Where in it those columns of messages are that a search asks for."""

    place: Sequence[sa.ColumnElement[Any]]
    """What the index knows a message by, for `marked`."""

    condition: sa.ColumnElement[bool]
    rank: sa.ColumnElement[float]
    """The greater the better."""


class SearchIndex:
    """The search index of a database."""

    tables: tuple[str, ...]
    """The names of its tables, those it has only on one database too."""

    reads_what_waits: bool
    """Whether a search finds what waits for the index too, so that indexing it first only makes the next one faster."""

    def state(self, connection: sa.Connection) -> IndexState | None:
        """Return how the index is, None if there is none."""
        raise NotImplementedError

    def refuse_configuration(self, connection: sa.Connection, configuration: str) -> None:
        """Raise ValueError for a configuration that the database does not have."""
        raise NotImplementedError

    def create(self, connection: sa.Connection, configuration: str) -> None:
        """Make an empty index, which from then on follows what is written, and is to be filled with what is there."""
        raise NotImplementedError

    def drop(self, connection: sa.Connection) -> None:
        """Drop the index, however damaged it is."""
        raise NotImplementedError

    def follows(self, connection: sa.Connection) -> bool:
        """Return whether anything of the index takes part in what is written."""
        raise NotImplementedError

    def detach(self, connection: sa.Connection, reason: str) -> None:
        """Let the index follow no longer what is written."""
        raise NotImplementedError

    def waiting(self, connection: sa.Connection) -> int:
        """Count the messages that are not in the index yet."""
        raise NotImplementedError

    def indexed(self, connection: sa.Connection) -> int:
        """Count the messages in the index."""
        raise NotImplementedError

    def is_behind(self, connection: sa.Connection) -> bool:
        """Return whether messages that were written wait for the index."""
        raise NotImplementedError

    def may_be_to_blame(self, error: BaseException) -> bool:
        """Return whether a driver's error may come of the index, though it was the messages that were written."""
        raise NotImplementedError

    def is_damage(self, error: BaseException) -> bool:
        """Return whether a driver's error, where the index was used, tells of its damage."""
        raise NotImplementedError

    def fill(self, connection: sa.Connection, most: int) -> int:
        """Take so many messages into the index that are not in it; return how many were looked at, 0 at the end."""
        raise NotImplementedError

    def tidy(self, connection: sa.Connection) -> None:
        """Do for the index what writers and searches leave undone: who purges calls it."""
        raise NotImplementedError

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        """Return how many bytes the index takes."""
        raise NotImplementedError

    def matching(self, found: IndexState, terms: Terms) -> Matching:
        """Return how messages with these terms are chosen, of which at least one is wanted."""
        raise NotImplementedError

    def run(self, connection: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any]) -> list[Any]:
        """Run the query of a search, and return its rows."""
        return list(connection.execute(query, values))

    def marked(
        self,
        connection: sa.Connection,
        found: IndexState,
        terms: Terms,
        places: Sequence[tuple[Any, ...]],
        marks: tuple[str, str],
    ) -> dict[tuple[Any, ...], list[tuple[str, str]]]:
        """Return each part of the messages at these places, and the same with marks around what was found."""
        raise NotImplementedError

    def differences(self, connection: sa.Connection, found: IndexState) -> Iterator[str]:
        """Yield where the index of all that does not wait differs from the messages, by real queries."""
        raise NotImplementedError
