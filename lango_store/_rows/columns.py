"""Column types of the tables, which encode and decode values with the functions of `encoding`."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators
from sqlalchemy.sql.functions import current_timestamp, now

from lango_store._rows.encoding import decode_json, decode_role, decode_time, encode_json, encode_role, encode_time_text
from lango_store._values.model import MessageRole


class _PostgresText(sa.types.UserDefinedType[str]):
    """TEXT on PostgreSQL, which also casts bound parameters to TEXT.

    SQLAlchemy binds text as VARCHAR. PostgreSQL has no `TEXT = VARCHAR` operator and falls back to `TEXT = TEXT`. If
    another role defined such an operator in a schema on the search path, it would run instead. The cast prevents that.
    """

    __module__ = "sqlalchemy.types"  # Alembic writes the type of a foreign key to our tables into the host's revisions
    cache_ok = True
    render_bind_cast = True

    def __init__(self, collation: str | None = None) -> None:
        self.collation = collation

    def __repr__(self) -> str:
        return "Text()" if self.collation is None else f"Text(collation={self.collation!r})"

    def get_col_spec(self, **_: Any) -> str:
        return "TEXT" if self.collation is None else f'TEXT COLLATE "{self.collation}"'


TEXT: Final = sa.Text().with_variant(_PostgresText(), "postgresql")
"""The column type for text."""

KEY_TEXT: Final = sa.Text().with_variant(_PostgresText("C"), "postgresql")
"""The column type for keys, which sort by code point on both databases, so that an index can find prefixes."""


class RoleColumn(sa.types.TypeDecorator[MessageRole]):
    """A `MessageRole` in Python, text in the database."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(TEXT)

    def process_bind_param(self, value: MessageRole | None, dialect: Dialect) -> str | None:
        return None if value is None else encode_role(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> MessageRole | None:
        return None if value is None else decode_role(value)


class _PostgresJson(sa.types.UserDefinedType[str]):
    """PostgreSQL's JSON, bound and read as text, because the driver's parser loses digits."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


class _JsonComparator(sa.types.TypeDecorator.Comparator[Any]):
    def operate(self, op: Any, *other: Any, **options: Any) -> Any:
        if op not in (operators.is_, operators.is_not) and other != (
            None,
        ):  # SQLite and PostgreSQL would compare differently
            raise TypeError(
                "a JSON column can only be compared with None: cast it, or use the JSON functions of the database"
            )
        return super().operate(op, *other, **options)


class JsonColumn(sa.types.TypeDecorator[Any]):
    """Any JSON value: JSON on PostgreSQL, which preserves key order, digits and NUL; TEXT on SQLite. None is NULL."""

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
        if any(
            isinstance(each, (now, current_timestamp)) for each in other
        ):  # SQLite writes a space where our text has a T
            raise TypeError(
                "SQLite's current time has another format than the stored times: compare with datetime.now(UTC)"
            )
        return super().operate(op, *other, **options)


class TimeColumn(sa.types.TypeDecorator[datetime]):
    """A time in UTC: TIMESTAMPTZ on PostgreSQL, sortable text on SQLite. Compare it with an aware datetime."""

    impl = sa.Text
    cache_ok = True
    comparator_factory = _TimeComparator

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql"))

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], Any] | None:
        as_text = dialect.type_descriptor(self.load_dialect_impl(dialect)).python_type is str
        return encode_time_text if as_text else None

    def process_result_value(self, value: datetime | str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else decode_time(value)


def as_stored(column: sa.sql.elements.KeyedColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Select a column undecoded, to copy it, or to decode it with an error that names the column."""
    if isinstance(column.type, JsonColumn):
        return sa.cast(column, sa.Text).label(column.key)
    if isinstance(column.type, TimeColumn):
        return sa.type_coerce(column, sa.types.NullType()).label(column.key)
    return sa.type_coerce(column, sa.Text) if isinstance(column.type, RoleColumn) else column
