"""The parts of the definition of a table: columns and constraints that many tables have, and its description."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from lango_store._rows.columns import KEY_TEXT

BASELINE: Final = "0100"
"""The first migration revision."""


@dataclass(frozen=True)
class Stored:
    """The facts that backups, copies, forks, changes of the log, salvage and `doctor` need about the rows of a table.

    Backups have the rows in the order in which `lango_store.tables` defines the tables: digests depend on the order.

    Attributes:
        kind: The name of a row in backups.
        name: The name of a row in errors, a format with its columns; empty if `seq` is enough.
        since: The revision that added the table.
        in_forks: True if a fork of a session copies the rows.
        unset: Columns that a copy of a row does not get.
        ids: Text columns with ids, which are limited in length and not empty.
        embedded: A JSON column with a message without its id, whose members backups have in the place of the column.
        types: The types of JSON columns that cannot have any JSON, with a description.
        of_message: The column with the `seq` of the message that a row belongs to. A row is deleted with its message,
            and a fork without the message leaves it out. A row with NULL belongs to no message.
        kept_aside: True if a row stays while its message is set aside, outside of the log.
        redacted: The columns that a redaction of the message sets to NULL.
        names_calls: True if a row refers to tool calls of the message: an undo that restores other calls deletes it.
        fixes_calls: True if no edit may change the tool calls of the message while it has a row.
    """

    kind: str
    name: str = ""
    since: str = BASELINE
    in_forks: bool = True
    unset: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    embedded: str = ""
    types: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    of_message: str = ""
    kept_aside: bool = False
    redacted: tuple[str, ...] = ()
    names_calls: bool = False
    fixes_calls: bool = False


def stored(kind: str, **facts: Any) -> dict[str, Any]:
    """Return the description of a table, for its `__table_args__`. The facts are those of `Stored`."""
    return {"info": {"stored": Stored(kind, **facts)}}


@dataclass(frozen=True)
class SessionPart:
    """The columns that the core or a room adds to the table of sessions, besides the columns.

    Attributes:
        constraints: Constraints and indexes.
        unset: Columns that a copy of a session does not get.
        ids: Text columns with ids.
    """

    constraints: tuple[sa.schema.SchemaItem, ...] = ()
    unset: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


def session_table(parts: Sequence[SessionPart]) -> tuple[Any, ...]:
    """Return the `__table_args__` of the table of sessions."""
    unset, ids = (tuple(name for part in parts for name in getattr(part, fact)) for fact in ("unset", "ids"))
    return (*(each for part in parts for each in part.constraints), stored("session", unset=unset, ids=ids))


NOT_STORED_ELSEWHERE: Final[dict[str, Any]] = {"info": {"stored": None}}
"""For tables that only this database needs: backups, copies and forks leave their rows out."""


def versions_of(table: str, kind: str = "", **facts: Any) -> dict[str, Any]:
    """Return the description of a table with other versions of rows of a table, for its `__table_args__`.

    The versions keep payloads alive, and the end of a turn also marks the versions of its messages. With a `kind`, the
    table has rows that are set aside instead: they belong to the session, but not to its log.
    """
    return {"info": {"stored": Stored(kind, **facts) if kind else None, "versions_of": table}}


class Base(SQLModel, registry=registry(metadata=sa.MetaData())):
    """The base class of the tables, with a separate `metadata`."""

    __table__: ClassVar[sa.Table]  # set by SQLAlchemy; an application's foreign keys refer to its columns


def key() -> Any:
    """Create a column with a session key, a scope or a name."""
    return Field(sa_column=sa.Column(KEY_TEXT, nullable=False))


def counter() -> Any:
    """Create a column with a number that is 0 at first."""
    return Field(default=0, sa_type=sa.BigInteger, sa_column_kwargs={"server_default": "0"})


def session_reference(name: str) -> sa.ForeignKeyConstraint:
    """Create the constraint that deletes rows together with their session."""
    return sa.ForeignKeyConstraint(["session_key"], ["lango_session.key"], name=name, ondelete="CASCADE")


def index_where_set(column: str, name: str, *columns: str, unique: bool = False) -> sa.Index:
    """Return a partial index of the rows in which a column is not NULL."""
    return index_where(f"{column} IS NOT NULL", name, *columns, unique=unique)


def index_where(condition: str, name: str, *columns: str, unique: bool = False) -> sa.Index:
    """Return a partial index of the rows that meet a condition."""
    where = sa.text(condition)
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)
