"""What the search index of PostgreSQL has of a message: its lexemes or its trigrams, made by a function there."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from lango_store.tables import Base
from lango_store.words import Terms

MESSAGE: Final = Base.metadata.tables["lango_message"]
GIVEN: Final = ("role", "name", "tool_call_id", "text", "content", "tool_calls")
"""The columns of a message that its entry is made of."""

SIGNATURE: Final = "said_by text, tool text, answers text, whole text, given json, given_calls json"
PARTS_OF_GIVEN: Final = "lango_search_parts(said_by, tool, answers, whole, given, given_calls)"

WEIGHTS: Final = (1.0, 0.4, 0.2, 0.1)
"""What a word counts in each of `PARTS`: PostgreSQL's own weights."""

RANKED_BYTES: Final = 500_000
"""So much of what is found is read again to rank it, the newest first; the rest follows by its time."""

Columns = sa.FromClause


class Entries:
    """One kind of entries."""

    name: str
    """How a refusal calls them."""

    type: str
    """The type of an entry."""

    def refuse(self, connection: sa.Connection) -> None:
        """Raise ValueError where the database cannot make such entries."""
        raise NotImplementedError

    def function(self, connection: sa.Connection) -> str:
        """Return the statement that makes `lango_search_entry`, which gives the entry of a message."""
        raise NotImplementedError

    def operator_class(self, connection: sa.Connection) -> str:
        """Return the operator class by which they are indexed, with its schema; nothing for the usual one."""
        raise NotImplementedError

    def proposed(self, entry: sa.ColumnElement[Any], terms: Terms) -> sa.ColumnElement[bool]:
        """Return a condition that the index answers by itself, true of more messages than those meant, never fewer."""
        raise NotImplementedError

    def are_proposed_exactly(self, terms: Terms) -> bool:
        """Return whether what the index proposes is what is meant."""
        raise NotImplementedError

    def matches(self, entry: sa.ColumnElement[Any], terms: Terms) -> sa.ColumnElement[bool]:
        """Return whether an entry is one of those meant."""
        raise NotImplementedError

    def rank(self, message: Columns, terms: Terms) -> sa.ColumnElement[float]:
        """Return how well a message fits, the greater the better."""
        raise NotImplementedError

    def marked(self, text: sa.ColumnElement[str], terms: Terms, marks: tuple[str, str]) -> list[sa.ColumnElement[str]]:
        """Return a part of a message, and the same with marks around what was found."""
        raise NotImplementedError

    def finds_itself(self, indexed: str, entry: str) -> str:
        """Return in SQL whether an indexed entry has what another one begins with."""
        raise NotImplementedError

    def says_something(self, entry: str) -> str:
        """Return in SQL whether an entry has anything by which it is found."""
        raise NotImplementedError


def entry_of(message: Columns) -> sa.ColumnElement[Any]:
    """Return the entry of a message, made anew."""
    return sa.func.lango_search_entry(*(message.c[name] for name in GIVEN))
