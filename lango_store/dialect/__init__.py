"""Each difference between SQLite and PostgreSQL, named, with its reason. Nothing else asks which database it is."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from lango_store.columns import TimeColumn
from lango_store.dialect.base import AnyConnection, Dialect, ForeignKey, Moment, Passing, Started, reflected
from lango_store.dialect.distribution import Distribution, Step
from lango_store.dialect.postgresql import PostgreSQL
from lango_store.dialect.sqlite import SQLite

__all__ = [
    "SEARCH_TABLES",
    "AnyConnection",
    "Dialect",
    "Distribution",
    "ForeignKey",
    "Moment",
    "Now",
    "Passing",
    "Started",
    "Step",
    "dialect_of",
    "reflected",
]

_DIALECTS = {"sqlite": SQLite(), "postgresql": PostgreSQL()}

SEARCH_TABLES: Final = frozenset(table for dialect in _DIALECTS.values() for table in dialect.search_index.tables)
"""The tables of the search index, where it is made: ours, but of no revision."""


class Now(sa.sql.functions.FunctionElement[datetime]):
    """The time of a statement: the one that is bound, or the database's where that is NULL."""

    name = "now"
    type = TimeColumn()
    inherit_cache = True


@compiles(Now)
def _compiled_now(element: Now, compiler: Any, **options: Any) -> str:
    return _DIALECTS[compiler.dialect.name].current(compiler.process(element.clauses, **options))


def dialect_of(connection: AnyConnection | sa.Engine) -> Dialect:
    """Return the dialect of a connection or an engine; ValueError for a database or driver that is not supported."""
    dialect = _DIALECTS.get(connection.dialect.name)
    if dialect is not None and connection.dialect.driver == "asyncpg":
        raise ValueError(
            "the store's statements cannot run on asyncpg's connections: make this engine with "
            'create_async_engine(url.set(drivername="postgresql+psycopg")), or use AsyncStore(url) beside it'
        )
    if dialect is None or connection.dialect.driver not in dialect.drivers:
        raise ValueError(
            f"{connection.dialect.name}+{connection.dialect.driver} is not supported: "
            "use sqlite or postgresql+psycopg, best through lango_store.create_engine(url)"
        )
    return dialect
