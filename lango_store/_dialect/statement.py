"""Statements that are written with SQLAlchemy, compiled once, and executed on the driver's cursor.

For an append, SQLAlchemy's work per execution costs more than the database's work. Statements that run on every step
of an agent therefore skip it. Values are passed to the driver already encoded (see `_rows.encoding`), and rows are
returned as the driver decodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql import visitors

from lango_store._dialect import DETECTED, AnyConnection, Dialect, compile_dialect, dialect_of
from lango_store._dialect.citus import pipelined

Observer = Callable[[str, float], None]
"""A function that receives the text of each statement and the seconds until its rows were read."""

Decode = Callable[[Iterable[Sequence[Any]]], list[Any]]
"""A function that decodes pages of rows to a list of values."""

_PAGE: Final = 1_000

OBSERVER: Final = "lango_store_observer"
"""The execution option that holds a connection's observer, because our cursors bypass SQLAlchemy's events."""

SINGLE_OPERATION: Final = "lango_store_alone"
"""The execution option that marks a connection as opened for one operation, which is allowed to commit."""


class Statement:
    """A statement that is compiled once per dialect. If dialects need different SQL, pass a function that builds it.

    `repeatable` means that the statement may change rows, but in the same transaction a second execution has the same
    result. Other statements that change rows fail without the name of the field if they return undecodable text.
    """

    def __init__(self, write: Callable[[Dialect], sa.Executable] | sa.Executable, *, repeatable: bool = False) -> None:
        self._write = (lambda _: write) if isinstance(write, sa.Executable) else write
        self._repeatable = repeatable
        self._compiled: dict[tuple[Dialect | None, str, bool], _Compiled] = {}

    def run(
        self,
        connection: AnyConnection,
        values: Mapping[str, Any],
        decode: Decode | None = None,
        *,
        max_chars: int | None = None,
    ) -> list[Any]:
        """Execute the statement and return its rows, decoded with `decode` if it is set.

        Rows are fetched and decoded in pages, to avoid holding all rows and all decoded values in memory at once. With
        `max_chars`, reading stops once the rows hold that many characters of text.
        """
        engine_dialect = connection.dialect  # the next two lines are those of `_compiled_for`, without its calls
        variant = vars(engine_dialect).get(DETECTED), engine_dialect.paramstyle, values.get("now") is not None
        compiled = self._compiled.get(variant) or self._compiled_for(connection, values)
        # This asks the pool's proxy for a cursor. With an async engine, the driver's connection is asynchronous, and
        # its coroutines would never be awaited.
        cursor = connection.connection.cursor()
        started = perf_counter()
        try:
            cursor.execute(compiled.text, compiled.parameters(values))
            if decode is None:
                rows: list[Any] = cursor.fetchall() if max_chars is None else _fetch_upto(max_chars, cursor)
                return rows
            return decode(iter(partial(cursor.fetchmany, _PAGE), []))
        except Exception as error:
            if not (compiled.reads or self._repeatable) or not dialect_of(connection).is_undecodable(error):
                raise
        finally:
            cursor.close()
            options = getattr(connection, "options", None)  # without the cost of a call
            if observe := (options or connection.get_execution_options()).get(OBSERVER):
                observe(compiled.text, perf_counter() - started)
        with dialect_of(connection).bytes_for_bad_text(connection):  # so that the error can name the field
            return self.run(connection, values, decode, max_chars=max_chars)

    def run_many(self, connection: AnyConnection, values: Sequence[Mapping[str, Any]]) -> int:
        """Execute a statement without result rows once for each item of `values`; return the number of changed rows.

        Needs a transaction.
        """
        if not values:
            return 0
        engine_dialect = connection.dialect
        variant = vars(engine_dialect).get(DETECTED), engine_dialect.paramstyle, values[0].get("now") is not None
        compiled = self._compiled.get(variant) or self._compiled_for(connection, values[0])
        cursor = connection.connection.cursor()
        started = perf_counter()
        try:
            cursor.executemany(compiled.text, map(compiled.parameters, values))
            return int(cursor.rowcount)
        finally:
            cursor.close()
            options = getattr(connection, "options", None)  # without the cost of a call
            if observe := (options or connection.get_execution_options()).get(OBSERVER):
                observe(compiled.text, perf_counter() - started)

    def _compiled_for(self, connection: AnyConnection, values: Mapping[str, Any]) -> _Compiled:
        dialect, has_time = dialect_of(connection), values.get("now") is not None
        variant = dialect, connection.dialect.paramstyle, has_time
        compiled = self._compiled.get(variant)
        if compiled is None:
            engine_dialect = compile_dialect(connection.dialect, time_is_bound=has_time or not dialect.tells_time)
            compiled = self._compiled[variant] = _Compiled(self._write(dialect), engine_dialect)
        return compiled


def is_single_operation(connection: AnyConnection) -> bool:
    """Return True if the connection was opened for one operation, which is allowed to commit."""
    return SINGLE_OPERATION in connection.get_execution_options()


def run_together(connection: AnyConnection, statements: Sequence[Statement], values: Mapping[str, Any]) -> list[Any]:
    """Run statements and commit them in one round trip; return the rows of the last statement.

    The connection needs the option `SINGLE_OPERATION`, because this function commits.
    """
    compiled = [statement._compiled_for(connection, values) for statement in statements]
    cursor = None
    started = perf_counter()
    try:
        with pipelined(connection.connection):
            for each in compiled:
                cursor = connection.connection.cursor()
                cursor.execute(each.text, each.parameters(values))
        rows: list[Any] = [] if cursor is None else cursor.fetchall()
        return rows
    finally:
        if observe := connection.get_execution_options().get(OBSERVER):
            seconds = perf_counter() - started  # the time of all statements, because they were sent together
            for each in compiled:
                observe(each.text, seconds)


def run_in_order(connection: AnyConnection, statements: Sequence[Statement], values: Mapping[str, Any]) -> list[Any]:
    """Run statements one by one in a transaction; only the last may have rows, which are returned."""
    *first, last = statements
    for statement in first:
        statement.run_many(connection, [values])
    return last.run(connection, values)


def _fetch_upto(max_chars: int, cursor: Any) -> list[Any]:
    rows: list[Any] = []
    chars = 0
    while chars < max_chars and (row := cursor.fetchone()) is not None:
        rows.append(row)
        chars += size_of(row)
    return rows


def size_of(row: Sequence[Any]) -> int:
    """Count the characters of the texts in a row."""
    return sum(len(value) for value in row if isinstance(value, str | bytes))


class _Compiled:
    def __init__(self, statement: sa.Executable, engine_dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(dialect=engine_dialect)  # type: ignore[attr-defined]
        self.text: str = str(compiled)
        self.reads = not any(isinstance(part, sa.UpdateBase) for part in visitors.iterate(statement))  # type: ignore[arg-type]
        for name, bind in compiled.binds.items():  # psycopg encodes binary arrays several times faster than text ones
            if isinstance(bind.type, sa.ARRAY):
                self.text = self.text.replace(f"%({name})s", f"%({name})b")
        order: list[str] | None = compiled.positiontup
        self._constants: dict[str, Any] = {
            name: bind.effective_value for name, bind in compiled.binds.items() if not bind.required
        }
        self._in_order: Callable[[Mapping[str, Any]], Any] = _unchanged
        if order is not None:
            self._in_order = itemgetter(*order) if len(order) > 1 else lambda values: [values[name] for name in order]
        self.parameters: Callable[[Mapping[str, Any]], Any] = self._in_order
        if self._constants:
            self.parameters = self._with_constants

    def _with_constants(self, values: Mapping[str, Any]) -> Any:
        return self._in_order(self._constants | values)  # type: ignore[operator]


def _unchanged(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values
