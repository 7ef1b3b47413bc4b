"""The dialects: the only code that knows which database it talks to.

Each difference between the databases is an attribute or a method of `Dialect`. Other packages ask the dialect of a
connection and never compare the names of databases.
"""

import copy
from datetime import datetime
from typing import Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from lango_store._dialect.base import AnyConnection, AppendMethod, Dialect, Moment, TransientReason, reflected
from lango_store._dialect.citus import Citus, OfTenant, is_tenant
from lango_store._dialect.postgresql import PostgreSQL
from lango_store._dialect.sqlite import SQLite
from lango_store._rows.columns import TimeColumn

__all__ = [
    "DETECTED",
    "AnyConnection",
    "AppendMethod",
    "Dialect",
    "IfTimeBound",
    "Moment",
    "Now",
    "NowTogether",
    "TransientReason",
    "compile_dialect",
    "detect_dialect",
    "dialect_of",
    "reflected",
]

_DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (SQLite(), PostgreSQL())}
_CITUS, _OF_TENANT = Citus(), OfTenant()
DETECTED: Final = "lango_store"
"""The attribute of SQLAlchemy's dialect object that holds our dialect, once `detect_dialect` has detected it."""

_TIME_IS_BOUND: Final = "lango_store_time_is_bound"


class Now(sa.sql.functions.FunctionElement[datetime]):
    """The time of a statement: the bound `now`, or the database's clock if `now` is not bound."""

    name = "now"
    type = TimeColumn()
    inherit_cache = True


class NowTogether(Now):
    """Like `Now`, but the server's time is the start of the transaction, so all statements of it share one time."""

    inherit_cache = True


class IfTimeBound(sa.sql.functions.FunctionElement[datetime]):
    """One of two times: the first if `now` is bound, the second if the database's clock is used."""

    name = "if_time_bound"
    type = TimeColumn()
    inherit_cache = True


@compiles(Now)
def _compiled_now(element: Now, compiler: Any, **options: Any) -> str:
    if vars(compiler.dialect).get(_TIME_IS_BOUND, True):
        return str(compiler.process(element.clauses, **options))
    return dialect_of(compiler).current(of_transaction=isinstance(element, NowTogether))


@compiles(IfTimeBound)
def _compiled_if_time_bound(element: IfTimeBound, compiler: Any, **options: Any) -> str:
    if_bound, otherwise = element.clauses
    is_bound = vars(compiler.dialect).get(_TIME_IS_BOUND, True)
    return str(compiler.process(if_bound if is_bound else otherwise, **options))


class _WithHints:
    """Renders the hints of `Select.with_hint`, which SQLAlchemy's compiler for SQLite leaves out."""

    def get_from_hint_text(self, table: sa.FromClause, text: str) -> str:
        return text


def compile_dialect(dialect: sa.Dialect, *, time_is_bound: bool) -> sa.Dialect:
    """Return a SQLAlchemy dialect that compiles `Now` to the bound time or to the database's clock."""
    # The flag is set on a copy of the dialect, because SQLAlchemy 2.0.30 does not pass compiler options into
    # ON CONFLICT. A coalesce() of both times would need no flag, but Citus refuses it.
    compiling = copy.copy(dialect)
    compiler = type("Compiler", (_WithHints, dialect.statement_compiler), {})
    vars(compiling).update({_TIME_IS_BOUND: time_is_bound, "statement_compiler": compiler})
    return compiling


def detect_dialect(connection: sa.Connection) -> None:
    """Find out whether the tables are distributed, and store the dialect that fits them for the connection's engine."""
    dialect = _supported_dialect(connection)
    if dialect.is_distributed(connection):
        dialect = _OF_TENANT if is_tenant(connection) else _CITUS
    vars(connection.dialect)[DETECTED] = dialect


class _HasDialect(Protocol):
    @property
    def dialect(self) -> sa.Dialect: ...


def dialect_of(connection: _HasDialect) -> Dialect:
    """Return the dialect of a connection or an engine; raise ValueError for an unsupported database or driver."""
    return vars(connection.dialect).get(DETECTED) or _supported_dialect(connection)


def _supported_dialect(connection: _HasDialect) -> Dialect:
    dialect = _DIALECTS.get(connection.dialect.name)
    if dialect is not None and connection.dialect.driver == "asyncpg":
        raise ValueError(
            "the store's statements cannot run on asyncpg's connections: make this engine with "
            'create_async_engine(url.set(drivername="postgresql+psycopg")), or use a separate AsyncStore(url)'
        )
    if dialect is None or connection.dialect.driver not in dialect.drivers:
        raise ValueError(
            f"{connection.dialect.name}+{connection.dialect.driver} is not supported: "
            "use sqlite or postgresql+psycopg, best through lango_store.create_engine(url)"
        )
    return dialect
