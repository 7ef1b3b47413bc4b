"""Columns for ORM users and for our own tables: each value encoded and decoded by the functions of `encoding`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement, current_timestamp, now

from lango_store._rows.encoding import decode_json, decode_role, decode_time, encode_json, encode_role, encode_time_text
from lango_store._values.model import MessageRole

KEY_TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Keys sort by code point on both databases, and their index serves prefixes."""


class RoleColumn(sa.types.TypeDecorator[MessageRole]):
    """A `MessageRole` in Python, text in the database."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: MessageRole | None, dialect: Dialect) -> str | None:
        return None if value is None else encode_role(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> MessageRole | None:
        return None if value is None else decode_role(value)


class _PostgresJson(sa.types.UserDefinedType[str]):
    """PostgreSQL's json, bound and read as text, because the driver's parser loses digits."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


class _JsonText(sa.types.TypeDecorator[Any]):
    """A JSON value as text, which unlike PostgreSQL's json can be compared."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return encode_json(value, "value")


class _Readable(FunctionElement[Any]):
    """A JSON column with each escaped NUL replaced, because PostgreSQL cannot look into JSON that has one."""

    type = sa.types.NullType()
    inherit_cache = True


@compiles(_Readable)
def _readable(element: _Readable, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(_Readable, "postgresql")
def _readable_on_postgresql(element: _Readable, compiler: SQLCompiler, **options: Any) -> str:
    return rf"CAST(replace(CAST({compiler.process(element.clauses, **options)} AS TEXT), '\u0000', '\ufffd') AS JSON)"


class _JsonComparator(sa.types.TypeDecorator.Comparator[Any]):
    """The operators of a JSON column: `[…]`, `==`, `!=`, `in_`, `is_`, and `as_text()` for all others."""

    def as_text(self) -> sa.ColumnElement[str]:
        """Return the JSON as text, to search in: a string has its quotes and escapes."""
        return sa.cast(self.expr, sa.Text)

    def operate(self, op: Any, *other: Any, **options: Any) -> Any:
        if op is operators.getitem:
            (name,) = other
            if isinstance(name, str) and name.startswith("$"):  # for SQLite that would be a path
                raise ValueError(f"{name!r} cannot be looked up in a query: select the whole column")
            kind: Any = sa.Text() if isinstance(name, str) else sa.Integer()
            inside = self.expr if isinstance(self.expr, sa.BinaryExpression) else _Readable(self.expr)
            return inside.op("->", precedence=15, return_type=self.type)(sa.literal(name, kind))
        if op in _COMPARED and other[0] is not None:
            # As text: PostgreSQL has no = for json, and its jsonb takes no NUL.
            return _as_json_text(self.expr).operate(op, *map(_as_json_text, other), **options)
        if operators.is_comparison(op) and op not in _OF_NULL:
            raise TypeError(f"{op.__name__} does not work on JSON: write column.as_text(), or cast(column, Text)")
        return super().operate(op, *other, **options)


_COMPARED: Final = (operators.eq, operators.ne, operators.in_op, operators.not_in_op)
_OF_NULL: Final = (operators.eq, operators.ne, operators.is_, operators.is_not)


def _as_json_text(value: Any) -> Any:
    return sa.type_coerce(sa.cast(value, sa.Text), _JsonText()) if isinstance(value, sa.ColumnElement) else value


class JsonColumn(sa.types.TypeDecorator[Any]):
    """Any JSON value: `JSON` on PostgreSQL (which keeps key order, digits and NUL), text on SQLite. None is NULL.

    `column["name"]` and `column[0]` look inside (SQLite 3.38 or newer). `==`, `!=` and `in_` compare the JSON
    text: dicts with the same keys in another order, 1 and 1.0 differ.
    """

    impl = sa.Text
    cache_ok = True
    comparator_factory = _JsonComparator

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text().with_variant(_PostgresJson(), "postgresql"))

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else encode_json(value, "value")

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else decode_json(value)

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.type_coerce(sa.cast(column, sa.Text), self)


class _TimeComparator(sa.types.TypeDecorator.Comparator[datetime]):
    def operate(self, op: Any, *other: Any, **options: Any) -> Any:
        if any(isinstance(each, (now, current_timestamp)) for each in other):  # SQLite's text has a space for our T
            raise TypeError("SQLite writes its own time in another form: compare with datetime.now(UTC)")
        return super().operate(op, *other, **options)


class TimeColumn(sa.types.TypeDecorator[datetime]):
    """An aware UTC time: `timestamptz` on PostgreSQL, text that sorts on SQLite. Compare it with an aware datetime."""

    impl = sa.Text
    cache_ok = True
    comparator_factory = _TimeComparator

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql"))

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], Any] | None:
        as_text = dialect.type_descriptor(self.load_dialect_impl(dialect)).python_type is str
        return (lambda value: None if value is None else encode_time_text(value)) if as_text else None

    def process_result_value(self, value: datetime | str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else decode_time(value)


def as_stored(column: sa.sql.elements.KeyedColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Select a column as the database stores it, so that it can be copied, or decoded with an error that names it."""
    if isinstance(column.type, JsonColumn):
        return sa.cast(column, sa.Text).label(column.key)
    if isinstance(column.type, TimeColumn):
        return sa.type_coerce(column, sa.types.NullType()).label(column.key)
    return sa.type_coerce(column, sa.Text) if isinstance(column.type, RoleColumn) else column
