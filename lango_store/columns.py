"""The database boundary: what roles, JSON, texts and times are inside a database, and the way back.

Plain functions do the work. The column types call them for ORM users, the compiled statements call them directly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from pydantic_core import PydanticSerializationError, from_json, to_json
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement, current_timestamp, now

from lango_store.errors import InvalidKey, InvalidMessage
from lango_store.model import MessageRole

MAX_KEY_LENGTH: Final = 512
MAX_ID_BYTES: Final = 512  # with the longest key it still fits an index row of PostgreSQL (2,704 bytes)
MAX_LEVELS: Final = 200
_SHOWN: Final = 60

_JSON_REMEDY: Final = (
    "JSON holds text, numbers, true, false, null, lists and dicts with text keys, at most 200 levels deep: "
    "convert it first (model_dump(mode='json'), str(), list())"
)


# Roles


def encode_role(role: MessageRole) -> str:
    """Return the text that a database stores for a role."""
    try:
        return MessageRole(role).value
    except ValueError:
        raise InvalidMessage("role", f"{role!r} is not one of {', '.join(MessageRole)}") from None


def decode_role(text: str) -> MessageRole:
    """Return the role of a stored text; ValueError if it is not one of them."""
    return MessageRole(text)


# Texts


def encode_text(text: str | None, field: str) -> str | None:
    """Return a text that both databases can store; `InvalidMessage` for a NUL or a lone surrogate."""
    if text is None:
        return None
    if fault := _text_fault(text):
        raise InvalidMessage(field, f"{fault}; a database's text holds none: remove it, or keep it in `extra`")
    return text


def encode_id(text: str | None) -> str | None:
    """Return a message id that an index can hold: non-empty text of at most 512 bytes in UTF-8."""
    if encode_text(text, "id") is not None and not 0 < len(str(text).encode()) <= MAX_ID_BYTES:
        raise InvalidMessage("id", f"has {len(str(text).encode())} bytes, 1 to {MAX_ID_BYTES} fit: use a digest of it")
    return text


def checked_key(key: str) -> str:
    """Return a session key, or raise `InvalidKey`."""
    fault = _text_fault(key)
    if fault is None and not 0 < len(key) <= MAX_KEY_LENGTH:
        fault = f"has {len(key)} characters"
    if fault is not None:
        raise InvalidKey(f"session key: {fault}; a key is 1 to {MAX_KEY_LENGTH} characters of text without NUL")
    return key


def _text_fault(text: object) -> str | None:
    if not isinstance(text, str):
        return f"is {type(text).__name__}, not text"
    if "\0" in text:
        return "holds a NUL"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds a lone surrogate"
    return None


# JSON


def encode_json(value: Any, field: str) -> str:
    """Encode a value as JSON text that decodes to an equal value; `InvalidMessage` names the field if none does.

    `to_json` writes more than JSON can say (tuples, sets, bytes, numbers as keys, NaN) and more than `from_json`
    reads (levels, digits), so what it wrote is read again. Lone surrogates, which it refuses, take json.dumps.
    The error names the place inside of the value, too: `content.items[3].when`.
    """
    try:
        text = to_json(value)
        # One level more than the value has: from_json reads 201, and 200 is what we promise.
        if type(value) is not str and from_json(b"[" + text + b"]", allow_inf_nan=False) != [value]:
            raise _no_json(value, field, "does not survive as JSON")
        return text.decode()
    except (PydanticSerializationError, ValueError, RecursionError, TypeError) as error:
        if isinstance(error, InvalidMessage):
            raise
        return _encode_surrogates(value, field)


def _encode_surrogates(value: Any, field: str) -> str:
    if not levels_within(value, MAX_LEVELS):
        raise InvalidMessage(field, f"{type(value).__name__} has more than {MAX_LEVELS} levels; {_JSON_REMEDY}")
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        if json.loads(text) == value:
            return text
        reason = "does not survive as JSON"
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"is not JSON ({error})"
    raise _no_json(value, field, reason)


def _no_json(value: Any, field: str, reason: str) -> InvalidMessage:
    place, guilty, reason = _first_fault(value) or ("", value, reason)
    return InvalidMessage(field, f"{type(guilty).__name__} {reason}; {_JSON_REMEDY}", place=place)


def _first_fault(value: Any) -> tuple[str, Any, str] | None:
    """Find what in a value is not JSON: its place, itself, and what is wrong with it; None if no part is by itself."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, part = waiting.pop()
        if not isinstance(part, (dict, list)):
            if reason := _fault_of_scalar(part):
                return place, part, reason
        elif id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, list):
                inside = [(f"{place}[{number}]", item) for number, item in enumerate(part)]
            else:
                for name in part:
                    if not isinstance(name, str):
                        return place, part, f"has the key {_shortened(repr(name))}, not text"
                inside = [(place + _step(name), item) for name, item in part.items()]
            waiting += reversed(inside)
    return None


def _fault_of_scalar(value: Any) -> str | None:
    try:
        return None if json.loads(json.dumps(value, allow_nan=False)) == value else "does not survive as JSON"
    except (ValueError, TypeError, RecursionError) as error:
        return f"is not JSON ({error})"


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() and len(name) <= _SHOWN else f"[{_shortened(repr(name))}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def levels_within(value: Any, limit: int) -> bool:
    """Return whether lists and dicts lie in one another at most so many levels deep."""
    level = [value]
    for _ in range(limit):
        inside = {  # each once, since a value may hold itself more than once
            id(item): item
            for container in level
            if isinstance(container, (dict, list))
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        }
        if not inside:
            return True
        level = list(inside.values())
    return False


def decode_json(text: str) -> Any:
    """Read JSON text that `encode_json` made; ValueError if it is damaged."""
    if not isinstance(text, str):
        raise ValueError(f"is {_described(text)}, not text")
    try:
        return from_json(text)
    except ValueError:  # lone surrogates, or levels that one field's guard could not count
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("is nested too deeply") from None


def refuse_constant(word: str) -> Any:
    """Refuse NaN and Infinity, which Python's decoder reads though they are not JSON."""
    raise ValueError(f"{word} is not JSON")


def _described(stored: object) -> str:
    """Say what stands where a text should: SQLite's columns hold values of any type."""
    if not isinstance(stored, bytes):
        return type(stored).__name__
    try:
        stored.decode()
        return "bytes"
    except UnicodeDecodeError as error:
        return f"not UTF-8 ({error.reason} at byte {error.start + 1})"


# Times


def encode_time_text(moment: datetime) -> str:
    """Encode a time as the text that SQLite stores: always UTC, six digits, so that it sorts."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def decode_time(stored: datetime | str) -> datetime:
    """Return a stored time, aware, in UTC; ValueError if it is not a time."""
    if isinstance(stored, str):
        moment = datetime.fromisoformat(stored)
    elif isinstance(stored, datetime):
        moment = stored
    else:
        raise ValueError(f"is {_described(stored)}, not a time")
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{moment} lies outside of the years 1 to 9999 in UTC") from None


# Column types

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
    """PostgreSQL's json, given and taken as text: what the driver would parse loses digits."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSON"


class _JsonText(sa.types.TypeDecorator[Any]):
    """A JSON value as the text of it, which unlike PostgreSQL's json can be compared."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return encode_json(value, "value")


class _Readable(FunctionElement[Any]):
    """A JSON column to look into, which PostgreSQL refuses for a value with an escaped NUL anywhere."""

    type = sa.types.NullType()
    inherit_cache = True


@compiles(_Readable)
def _readable(element: _Readable, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(_Readable, "postgresql")
def _readable_on_postgresql(element: _Readable, compiler: SQLCompiler, **options: Any) -> str:
    return rf"CAST(replace(CAST({compiler.process(element.clauses, **options)} AS TEXT), '\u0000', '\ufffd') AS JSON)"


class _JsonComparator(sa.types.TypeDecorator.Comparator[Any]):
    """What queries may say of JSON: `[…]`, `==`, `!=`, `in_`, `is_`, and `as_text()` for the rest."""

    def as_text(self) -> sa.ColumnElement[str]:
        """The JSON as text, to search in: a string has its quotes and escapes."""
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
            # As it was written: PostgreSQL has no = for json, and its jsonb takes no NUL.
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

    `column["name"]` and `column[0]` look inside (SQLite 3.38 or newer). `==`, `!=` and `in_` compare the JSON as it was
    written: dicts with the same keys in another order, 1 and 1.0 differ.
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


class _InOurForm(FunctionElement[Any]):
    """The database's own time, comparable with ours."""

    type = sa.types.NullType()
    inherit_cache = True


@compiles(_InOurForm)
def _in_our_form(element: _InOurForm, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(_InOurForm, "sqlite")
def _in_our_form_on_sqlite(element: _InOurForm, compiler: SQLCompiler, **options: Any) -> str:
    return "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')"  # its own text has a space where ours has a T


class _TimeComparator(sa.types.TypeDecorator.Comparator[datetime]):
    def operate(self, op: Any, *other: Any, **options: Any) -> Any:
        ours = [_InOurForm(each) if isinstance(each, (now, current_timestamp)) else each for each in other]
        return super().operate(op, *ours, **options)


class TimeColumn(sa.types.TypeDecorator[datetime]):
    """An aware UTC time: `timestamptz` on PostgreSQL, text that sorts on SQLite.

    `column > func.now()` is right on both; written the other way round, SQLite compares two forms of text.
    """

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


def as_stored(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Select a column as the database keeps it: who decodes it can then say which value is damaged, or copy it."""
    if isinstance(column.type, JsonColumn):
        return sa.cast(column, sa.Text).label(column.name)
    if isinstance(column.type, TimeColumn):
        return sa.type_coerce(column, sa.types.NullType()).label(column.name)
    return sa.type_coerce(column, sa.Text) if isinstance(column.type, RoleColumn) else column
