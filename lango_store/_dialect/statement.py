"""Statements that are written with SQLAlchemy, compiled once, and run on the driver's cursor.

SQLAlchemy's work per execution costs more than an append itself, so a statement that runs on every step of an agent
skips it. Values are passed to the driver encoded (see `encoding`), and rows are returned as the driver decodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql import visitors

from lango_store._dialect import AnyConnection, Dialect, compiler, dialect_of
from lango_store._dialect.citus import together

Observer = Callable[[str, float], None]
"""A function that receives the text of each statement, and the seconds until its rows were read."""

Decode = Callable[[list[Any]], list[Any]]
"""A function from rows to values."""

_PAGE: Final = 200

OBSERVER: Final = "lango_store_observer"
"""The execution option with the observer of a connection: SQLAlchemy has no events for our cursors."""

ALONE: Final = "lango_store_alone"
"""The execution option of a connection for one operation, which may commit."""


class Statement:
    """A statement for every dialect, from a function that writes it for one."""

    def __init__(self, write: Callable[[Dialect], sa.Executable]) -> None:
        self._write = write
        self._compiled: dict[tuple[Dialect, str, bool], _Compiled] = {}

    def run(
        self,
        connection: AnyConnection,
        values: Mapping[str, Any],
        decode: Decode | None = None,
        *,
        most: int | None = None,
    ) -> list[Any]:
        """Execute a statement with these values, and return its rows, decoded by `decode` if given.

        Rows are decoded in groups, so that all of them are never in memory together with all values. With `most`, rows
        are read until they hold that many characters.
        """
        compiled = self._for(connection, values)
        # The pool's proxy: inside a host's async engine the driver's connection is asynchronous, and a coroutine that
        # is never awaited would store nothing.
        cursor = connection.connection.cursor()
        started = perf_counter()
        try:
            cursor.execute(compiled.text, compiled.parameters(values))
            if decode is None:
                rows: list[Any] = cursor.fetchall() if most is None else _upto(most, cursor)
                return rows
            decoded: list[Any] = []
            while page := cursor.fetchmany(_PAGE):
                decoded += decode(page)
            return decoded
        except Exception as error:
            if not compiled.reads or not dialect_of(connection).is_undecodable(error):
                raise
        finally:
            cursor.close()
            if observe := connection.get_execution_options().get(OBSERVER):
                observe(compiled.text, perf_counter() - started)
        with dialect_of(connection).bytes_for_bad_text(connection):  # for the error that names the field
            return self.run(connection, values, decode, most=most)

    def run_many(self, connection: AnyConnection, values: Sequence[Mapping[str, Any]]) -> None:
        """Execute a statement that returns no rows for each of these values. Needs a transaction."""
        if not values:
            return
        compiled = self._for(connection, values[0])
        cursor = connection.connection.cursor()
        started = perf_counter()
        try:
            cursor.executemany(compiled.text, map(compiled.parameters, values))
        finally:
            cursor.close()
            if observe := connection.get_execution_options().get(OBSERVER):
                observe(compiled.text, perf_counter() - started)

    def _for(self, connection: AnyConnection, values: Mapping[str, Any]) -> _Compiled:
        dialect = dialect_of(connection)
        time_is_given = not dialect.tells_time or values.get("now") is not None
        way = dialect, connection.dialect.paramstyle, time_is_given
        compiled = self._compiled.get(way)
        if compiled is None:
            engines = compiler(connection.dialect, time_is_given=time_is_given)
            compiled = self._compiled[way] = _Compiled(self._write(dialect), engines)
        return compiled


def is_alone(connection: AnyConnection) -> bool:
    """Return whether a connection is for one operation, which may commit."""
    return ALONE in connection.get_execution_options()


def run_together(connection: AnyConnection, statements: Sequence[Statement], values: Mapping[str, Any]) -> list[Any]:
    """Run statements and commit, in one round trip, on a connection that is `ALONE`; return the rows of the last."""
    compiled = [statement._for(connection, values) for statement in statements]
    cursor = None
    started = perf_counter()
    try:
        with together(connection.connection):
            for each in compiled:
                cursor = connection.connection.cursor()
                cursor.execute(each.text, each.parameters(values))
        rows: list[Any] = [] if cursor is None else cursor.fetchall()
        return rows
    finally:
        if observe := connection.get_execution_options().get(OBSERVER):
            took = perf_counter() - started  # of all of them, since they were sent together
            for each in compiled:
                observe(each.text, took)


def run_in_order(connection: AnyConnection, statements: Sequence[Statement], values: Mapping[str, Any]) -> list[Any]:
    """Run statements one by one in a transaction; return the rows of the last, which is the only one with rows."""
    *first, last = statements
    for statement in first:
        statement.run_many(connection, [values])
    return last.run(connection, values)


def _upto(most: int, cursor: Any) -> list[Any]:
    rows: list[Any] = []
    held = 0
    while held < most and (row := cursor.fetchone()) is not None:
        rows.append(row)
        held += size_of(row)
    return rows


def size_of(row: Sequence[Any]) -> int:
    """Count the characters of the texts in a row."""
    return sum(len(value) for value in row if isinstance(value, str | bytes))


class _Compiled:
    def __init__(self, statement: sa.Executable, engine_dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(dialect=engine_dialect)  # type: ignore[attr-defined]
        self.text: str = str(compiled)
        self.reads = not any(isinstance(part, sa.UpdateBase) for part in visitors.iterate(statement))  # type: ignore[arg-type]
        for name, bind in compiled.binds.items():  # drivers write arrays as bytes several times faster than as text
            if isinstance(bind.type, sa.ARRAY):
                self.text = self.text.replace(f"%({name})s", f"%({name})b")
        self._order: list[str] | None = compiled.positiontup
        self._constants: dict[str, Any] = {
            name: bind.effective_value for name, bind in compiled.binds.items() if not bind.required
        }
        self.parameters: Callable[[Mapping[str, Any]], Any] = self._parameters
        if self._order and len(self._order) > 1 and not self._constants:
            self.parameters = itemgetter(*self._order)  # without a call for each row

    def _parameters(self, values: Mapping[str, Any]) -> Any:
        if self._constants:
            values = self._constants | values  # type: ignore[operator]
        return values if self._order is None else tuple(values[name] for name in self._order)
