"""JSON values by name: those of a session, which are deleted with it, and those of a scope, which sessions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import sessions
from lango_store._operations.binds import (
    LIVE,
    LIVE_SESSION,
    NOW,
    SESSION,
    SHARED_VALUE,
    VALUE,
    column,
    key_column,
    of_session,
    session_key,
    text,
)
from lango_store._operations.lists import end_of_prefix
from lango_store._operations.rows import stored_json
from lango_store._rows.columns import KEY_TEXT, as_stored
from lango_store._rows.encoding import checked_key, checked_name, encode_json, encode_text

_NAMES_AT_ONCE: Final = 500

NamedJson = list[tuple[str, str]]
"""Names and the JSON of their values, sorted, so that two writers of the same names never deadlock."""


def encode_values(key: str, values: Mapping[str, Any]) -> NamedJson:
    """Encode values of a session; `InvalidKey` or `InvalidValue` for what cannot be stored."""
    return _encode(key, values, "session key")


def encode_shared_values(scope: str, values: Mapping[str, Any]) -> NamedJson:
    """Encode values of a scope; `InvalidKey` or `InvalidValue` for what cannot be stored."""
    return _encode(scope, values, "scope")


def _encode(owner: str, values: Mapping[str, Any], kind: str) -> NamedJson:
    checked_key(owner, kind)
    if not isinstance(values, dict):
        raise TypeError(f"values is {type(values).__name__}: give a dict of values by their names")
    encoded = {
        checked_name(owner, name, kind): encode_json(value, f"values[{name!r}]") for name, value in values.items()
    }
    return sorted(encoded.items())


# Write


def _upsert(dialect: Dialect, table: sa.Table, rows: sa.Select[Any] | Mapping[str, Any]) -> Any:
    names = [key_column(table).name, "name", "value", "updated_at"]
    insert = dialect.insert(table)
    insert = insert.from_select(names, rows) if isinstance(rows, sa.Select) else insert.values(rows)
    replaced = {name: insert.excluded[name] for name in ("value", "updated_at")}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)


def _upsert_one(dialect: Dialect, table: sa.Table) -> Any:
    return _upsert(dialect, table, {each.name: column(each) for each in table.c} | {"updated_at": NOW})


def _upsert_arrays(
    dialect: Dialect, table: sa.Table, owner: sa.ColumnElement[str], source: sa.FromClause | None = None
) -> Any:
    """Write all values in one statement, with names and values bound as arrays."""
    arrays = [sa.bindparam(name, type_=postgresql.ARRAY(sa.Text()), required=True) for name in ("names", "jsons")]
    columns = (sa.column("name", KEY_TEXT), sa.column("value", sa.Text()))
    named = sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="named")
    chosen = sa.select(owner, named.c.name, sa.cast(named.c.value, table.c.value.type), NOW)
    return _upsert(dialect, table, chosen.select_from(named if source is None else source.join(named, sa.true())))


def _touch() -> sa.Update:
    return sa.update(SESSION).where(LIVE_SESSION).values(sessions.REVISED)


def _build_at_once(dialect: Dialect) -> sa.Executable:
    touched = _touch().returning(SESSION.c.key).cte("touched")
    stored = _upsert_arrays(dialect, VALUE, touched.c.key, touched).returning(VALUE.c.name).cte("stored")
    return sa.select(touched.c.key).add_cte(stored)


_at_once = Statement(_build_at_once)
_touched = Statement(lambda _: _touch().returning(SESSION.c.key))
_one = Statement(lambda dialect: _upsert_one(dialect, VALUE))
_shared_at_once = Statement(
    lambda dialect: _upsert_arrays(dialect, SHARED_VALUE, text("scope")).returning(SHARED_VALUE.c.name)
)
_shared_one = Statement(lambda dialect: _upsert_one(dialect, SHARED_VALUE))


def write(connection: AnyConnection, now: Moment, key: str, values: NamedJson) -> None:
    """Set values of a live session, all or none; other names are left alone."""
    if not values:
        sessions.row_of(connection, now, key)
        return
    tries = sessions.TRIES
    while not _write(connection, now, key, values):
        tries -= 1
        sessions.refuse(connection, now, key, tries_left=tries)


def _write(connection: AnyConnection, now: Moment, key: str, values: NamedJson) -> bool:
    """Write values; False, with nothing written, if there is no live session."""
    dialect = dialect_of(connection)
    bound = {"key": key, "now": dialect.time(now)}
    if dialect.modifying_cte:
        return bool(_at_once.run(connection, bound | _arrays(values)))
    with dialect.several(connection):
        if not _touched.run(connection, bound):
            return False
        _one.run_many(connection, [_row(bound, name, json) | {"session_key": key} for name, json in values])
    return True


def write_shared(connection: AnyConnection, now: Moment, scope: str, values: NamedJson) -> None:
    """Set values of a scope, all or none; other names are left alone."""
    if not values:
        return
    dialect = dialect_of(connection)
    bound = {"scope": scope, "now": dialect.time(now)}
    if dialect.modifying_cte:
        _shared_at_once.run(connection, bound | _arrays(values))
        return
    with dialect.several(connection):
        _shared_one.run_many(connection, [_row(bound, name, json) for name, json in values])


def _arrays(values: NamedJson) -> dict[str, Any]:
    names, jsons = zip(*values, strict=True)
    return {"names": list(names), "jsons": list(jsons)}


def _row(bound: Mapping[str, Any], name: str, json: str) -> dict[str, Any]:
    return {**bound, "name": name, "value": json}


# Read


def _has_prefix(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.name >= session_key("prefix"), table.c.name < session_key("prefix_end"))


_read = Statement(
    lambda _: (
        sa.select(LIVE, VALUE.c.name, as_stored(VALUE.c.value))
        .select_from(SESSION.outerjoin(VALUE, sa.and_(of_session(VALUE, SESSION.c.key), _has_prefix(VALUE))))
        .where(of_session(SESSION))
        .order_by(VALUE.c.name)
    )
)
_read_shared = Statement(
    lambda _: (
        sa.select(SHARED_VALUE.c.name, as_stored(SHARED_VALUE.c.value))
        .where(of_session(SHARED_VALUE, text("scope")), _has_prefix(SHARED_VALUE))
        .order_by(SHARED_VALUE.c.name)
    )
)


def read(connection: AnyConnection, now: Moment, key: str, prefix: str | None) -> dict[str, Any]:
    """Return the values of a live session by their names, in the order of the names."""
    bound = {"key": checked_key(key), "now": dialect_of(connection).time(now)} | _bounds(prefix)
    rows = _read.run(connection, bound)
    if not rows or not rows[0][0]:
        sessions.row_of(connection, now, key)
    return {name: _decoded(key, name, json) for _, name, json in rows if name is not None}


def read_shared(connection: AnyConnection, scope: str, prefix: str | None) -> dict[str, Any]:
    """Return the values of a scope by their names, in the order of the names."""
    rows = _read_shared.run(connection, {"scope": checked_key(scope, "scope")} | _bounds(prefix))
    return {name: _decoded(scope, name, json) for name, json in rows}


def _bounds(prefix: str | None) -> dict[str, str]:
    prefix = encode_text(prefix, "prefix") or ""
    return {"prefix": prefix, "prefix_end": end_of_prefix(prefix)}


def _decoded(owner: str, name: str, json: str) -> Any:
    return stored_json(owner, 0, f"value {name!r}", json)


# Drop


def drop(connection: sa.Connection, now: Moment, key: str, names: Sequence[str] | None) -> int:
    """Delete values of a live session by their names, or all of them; return how many."""
    wanted = None if names is None else {checked_name(key, name, "session key") for name in names}
    sessions.lock(connection, now, key)
    if count := _drop(connection, VALUE, key, wanted):
        sessions.change(connection, key, {})
    return count


def drop_shared(connection: sa.Connection, scope: str, names: Sequence[str] | None) -> int:
    """Delete values of a scope by their names, or all of them; return how many."""
    wanted = None if names is None else {checked_name(scope, name, "scope") for name in names}
    return _drop(connection, SHARED_VALUE, checked_key(scope, "scope"), wanted)


def _drop(connection: sa.Connection, table: sa.Table, owner: str, names: set[str] | None) -> int:
    if names is None:
        return _drop_where(connection, table, owner, sa.true())
    ordered = sorted(names)  # a statement binds 65,535 values at most
    pages = (ordered[first : first + _NAMES_AT_ONCE] for first in range(0, len(ordered), _NAMES_AT_ONCE))
    return sum(_drop_where(connection, table, owner, table.c.name.in_(page)) for page in pages)


def _drop_where(connection: sa.Connection, table: sa.Table, owner: str, condition: sa.ColumnElement[bool]) -> int:
    # Rows are locked in the order in which writers set them, so that the two never deadlock.
    wanted = sa.select(table.c.name).where(of_session(table, owner), condition).order_by(table.c.name)
    locked = wanted.with_for_update().cte("locked")
    delete = sa.delete(table).where(of_session(table, owner), table.c.name.in_(sa.select(locked.c.name)))
    return len(connection.execute(delete.returning(table.c.name)).all())
