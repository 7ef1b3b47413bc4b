"""The tables with the rows of sessions: what transfers, forks, changes, salvage and `doctor` know about each of them.

The facts come from the table and its `Stored`; a table without one is refused at import.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import sqlalchemy as sa
from pydantic import TypeAdapter

from lango_store._operations.binds import of_session
from lango_store._rows.columns import JsonColumn, TimeColumn, as_stored
from lango_store._rows.definitions import Stored
from lango_store.tables import Base


class SessionTable:
    """A table with rows of sessions or of scopes.

    Attributes:
        table: The table.
        stored: The facts that its definition states.
        columns: The columns that a copy of a row gets, in their order.
    """

    def __init__(self, table: sa.Table, stored: Stored) -> None:
        self.table, self.stored = table, stored
        self.columns: list[sa.Column[Any]] = [each for each in table.c if each.name not in stored.unset]
        self.names: list[str] = [each.name for each in self.columns]
        self.selected = [as_stored(each) for each in self.columns]
        self.nulls: dict[str, Any] = dict.fromkeys(self.names)
        self.needed: frozenset[str] = frozenset(each.name for each in self.columns if not each.nullable)
        self.times, self.numbers, self.json = (self._of(kind) for kind in (TimeColumn, sa.BigInteger, JsonColumn))
        self.texts = [name for name in self._of(sa.Text) if name != "session_key"]
        self.large = self.texts + self.json
        self.types = {name: (TypeAdapter(kind), fact) for name, (kind, fact) in stored.types.items()}

    def _of(self, kind: type) -> list[str]:
        return [each.name for each in self.columns if isinstance(each.type, kind)]

    @property
    def is_child(self) -> bool:
        """True if the rows belong to a session, and are not the row of the session itself."""
        return "session_key" in self.table.c

    @property
    def message_seq(self) -> sa.Column[int]:
        """The column with the seq of the message that a row belongs to."""
        return self.table.c[self.stored.of_message]

    @cached_property
    def unique(self) -> list[tuple[str, ...]]:
        """The columns whose values are unique in a session, apart from ascending numbers."""
        unique: list[Any] = [self.table.primary_key, *(each for each in self.table.indexes if each.unique)]
        names = (tuple(each.name for each in columns.columns if each.name != "session_key") for columns in unique)
        return [each for each in names if not {*each} <= {"key", "seq", "n"}]


def describe(metadata: sa.MetaData) -> dict[sa.Table, SessionTable]:
    """Return the descriptions of all tables that have one; raise TypeError for a table that says nothing."""
    described: dict[sa.Table, SessionTable] = {}
    for table in sorted(metadata.tables.values(), key=lambda table: table.name != "lango_session"):
        if "stored" not in table.info:
            raise TypeError(f"table {table.name} does not say what backups, copies and forks do with its rows")
        if table.info["stored"] is not None:
            described[table] = SessionTable(table, table.info["stored"])
    return described


TABLES: Final = describe(Base.metadata)
"""The descriptions by table, in the order in which backups have the rows: sessions first."""

CHILDREN: Final = [each for each in TABLES.values() if each.is_child]
"""The tables with the rows of a session, besides its own row, in the order in which they are written."""

SHARED: Final = [table for table in TABLES if "scope" in table.c]
"""The tables with rows of scopes, which belong to no session. Their primary keys are `scope` and `name`."""

OF_MESSAGES: Final = [each for each in CHILDREN if each.stored.of_message]
"""The tables whose rows belong to messages."""

MESSAGES: Final = [
    table for table in Base.metadata.tables.values() if "lango_message" in (table.name, table.info.get("versions_of"))
]
"""The table of messages, and those with other versions of messages."""

ASIDE: Final = {Base.metadata.tables[each.info["versions_of"]]: each for each in TABLES if "versions_of" in each.info}
"""By the table of messages or turns: the table with rows that are set aside, outside of the log."""

HAS_ASIDE: Final = [each for each in Base.metadata.tables["lango_session"].c if "aside" in each.info]
"""The columns of the table of sessions that are NULL unless messages of the session are set aside."""


def with_aside(rows: sa.Table) -> list[sa.Table]:
    """Return the table of messages or turns, and the table with those that are set aside."""
    return [rows, *(ASIDE[each] for each in [rows] if each in ASIDE)]


Condition = Callable[[sa.Table], sa.ColumnElement[bool]]
"""Builds a condition for the table of messages or turns, or for the table with those that are set aside."""


def select_stored(table: sa.Table, names: Sequence[str], condition: Condition) -> sa.CompoundSelect[Any]:
    """Select messages or turns of the session bound as `key`, also those set aside, in the order of the first name."""
    queries = [
        (rows, sa.select(*(as_stored(rows.c[name]).label(name) for name in names))) for rows in with_aside(table)
    ]
    parts = [query.where(of_session(rows), condition(rows)) for rows, query in queries]
    return sa.union_all(*parts).order_by(names[0])
