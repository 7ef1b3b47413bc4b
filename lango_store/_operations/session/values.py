"""Named JSON values of a session or of a shared scope. The values of a session are deleted with the session."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    KEY,
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
from lango_store._operations.rows import stored_json
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import SHARED
from lango_store._rows.columns import KEY_TEXT, as_stored
from lango_store._rows.encoding import checked_key, checked_keys, checked_name, encode_json, encode_text, end_of_prefix

_OWNERS: Final = {VALUE: "session key"} | dict.fromkeys(SHARED, "scope")

NamedJson = list[tuple[str, str]]
"""Names and the JSON of their values, sorted, so that two writers of the same names never deadlock."""


def encode_values(owner: str, values: Mapping[str, Any], table: sa.Table = VALUE) -> NamedJson:
    """Encode values of a session or a scope; raise `InvalidKey` or `InvalidValue` if one cannot be stored."""
    kind = _OWNERS[table]
    checked_key(owner, kind)
    if not isinstance(values, dict):
        raise TypeError(f"values is {type(values).__name__}: give a dict of values by their names")
    encoded = {
        checked_name(owner, name, kind): encode_json(value, f"values[{name!r}]") for name, value in values.items()
    }
    return sorted(encoded.items())


# Write


def _upsert(dialect: Dialect, table: sa.Table, rows: sa.Select[Any]) -> Any:
    insert = dialect.insert(table).from_select([key_column(table).name, "name", "value", "updated_at"], rows)
    replaced = {name: insert.excluded[name] for name in ("value", "updated_at")}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)


def _upsert_one(dialect: Dialect, table: sa.Table) -> Any:
    return _upsert(dialect, table, sa.select(KEY, column(table.c.name), column(table.c.value), NOW))


def _upsert_all(dialect: Dialect, table: sa.Table) -> Any:
    """Write all values in one statement, with names and values bound as arrays."""
    arrays = [sa.bindparam(name, type_=postgresql.ARRAY(sa.Text()), required=True) for name in ("names", "jsons")]
    columns = (sa.column("name", KEY_TEXT), sa.column("value", sa.Text()))
    named = sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="named")
    rows = sa.select(KEY, named.c.name, sa.cast(named.c.value, table.c.value.type), NOW)
    if table is SHARED_VALUE:
        return _upsert(dialect, table, rows).returning(table.c.name)
    revised = _revise.cte("revised")
    stored = _upsert(dialect, table, rows.select_from(named.join(revised, sa.true()))).returning(table.c.name)
    return sa.select(revised.c.key).add_cte(stored.cte("stored"))


_revise: Final = sa.update(SESSION).where(LIVE_SESSION).values(sessions.REVISED).returning(SESSION.c.key)
_revised = Statement(lambda _: _revise)
_one = {table: Statement(lambda dialect, table=table: _upsert_one(dialect, table)) for table in _OWNERS}  # type: ignore[misc]
_all = {table: Statement(lambda dialect, table=table: _upsert_all(dialect, table)) for table in _OWNERS}  # type: ignore[misc]


def write(connection: AnyConnection, now: Moment, owner: str, values: NamedJson, table: sa.Table = VALUE) -> None:
    """Set values of a live session or of a scope, all or none. Values with other names do not change."""
    if table is SHARED_VALUE:
        if values:
            _write(connection, now, owner, values, table)
        return
    if not values:
        sessions.row_of(connection, now, owner)
        return
    tries = sessions.MAX_TRIES
    while not _write(connection, now, owner, values, table):
        tries -= 1
        sessions.raise_unmatched(connection, now, owner, tries_left=tries)


def _write(connection: AnyConnection, now: Moment, owner: str, values: NamedJson, table: sa.Table) -> bool:
    """Write values; return False and write nothing if the session does not exist or has expired."""
    dialect = dialect_of(connection)
    bound = {"key": owner, "now": dialect.time(now)}
    if dialect.modifying_cte:
        names, jsons = zip(*values, strict=True)
        return bool(_all[table].run(connection, bound | {"names": list(names), "jsons": list(jsons)}))
    with dialect.short_transaction(connection):
        if table is VALUE and not _revised.run(connection, bound):
            return False
        _one[table].run_many(connection, [bound | {"name": name, "value": json} for name, json in values])
    return True


# Read


def _select(table: sa.Table) -> sa.Select[Any]:
    prefixed = (table.c.name >= session_key("prefix"), table.c.name < session_key("prefix_end"))
    query = sa.select(table.c.name, as_stored(table.c.value)).where(of_session(table), *prefixed).order_by(table.c.name)
    return query if table is SHARED_VALUE else query.where(sa.exists().where(LIVE_SESSION))


_read = {table: Statement(lambda _, table=table: _select(table)) for table in _OWNERS}  # type: ignore[misc]


def read(
    connection: AnyConnection, now: Moment, owner: str, prefix: str | None, table: sa.Table = VALUE
) -> dict[str, Any]:
    """Return the values of a live session or of a scope whose names begin with a prefix, ordered by name."""
    prefix = encode_text(prefix, "prefix") or ""
    bound = {"key": checked_key(owner, _OWNERS[table]), "now": dialect_of(connection).time(now)}
    rows = _read[table].run(connection, bound | {"prefix": prefix, "prefix_end": end_of_prefix(prefix)})
    if not rows and table is VALUE:
        sessions.raise_unmatched(connection, now, owner)
    return {name: stored_json(owner, 0, f"value {name!r}", json) for name, json in rows}


def _select_many(dialect: Dialect, table: sa.Table) -> sa.Select[Any]:
    prefixed = (table.c.name >= session_key("prefix"), table.c.name < session_key("prefix_end"))
    listed = dialect.texts_of_list(text("keys"))
    columns = (table.c.name, as_stored(table.c.value))
    if table is SHARED_VALUE:
        return sa.select(table.c.scope, *columns).where(table.c.scope.in_(listed), *prefixed)
    values = SESSION.outerjoin(table, sa.and_(of_session(table, SESSION.c.key), *prefixed))
    return sa.select(SESSION.c.key, *columns).select_from(values).where(SESSION.c.key.in_(listed), LIVE)


_read_many = {table: Statement(lambda dialect, table=table: _select_many(dialect, table)) for table in _OWNERS}  # type: ignore[misc]


def read_many(
    connection: AnyConnection, now: Moment, owners: Sequence[str], prefix: str | None, table: sa.Table = VALUE
) -> dict[str, dict[str, Any]]:
    """Return the values of several sessions or scopes, each ordered by name, without sessions that are not live."""
    wanted = checked_keys(owners, _OWNERS[table])
    prefix = encode_text(prefix, "prefix") or ""
    bound = {"keys": json.dumps(wanted), "now": dialect_of(connection).time(now)}
    rows = _read_many[table].run(connection, bound | {"prefix": prefix, "prefix_end": end_of_prefix(prefix)})
    stored: dict[str, dict[str, str]] = {owner: {} for owner in wanted} if table is SHARED_VALUE else {}
    for owner, name, value in rows:
        named = stored.setdefault(owner, {})
        if name is not None:
            named[name] = value
    return {
        owner: {name: stored_json(owner, 0, f"value {name!r}", value) for name, value in sorted(stored[owner].items())}
        for owner in wanted
        if owner in stored
    }


# Drop


def delete(
    connection: sa.Connection, now: Moment, owner: str, names: Sequence[str] | None, table: sa.Table = VALUE
) -> int:
    """Delete values of a live session or of a scope by their names, or all of them; return how many."""
    checked_key(owner, _OWNERS[table])
    bound = {"key": owner}
    if names is not None:
        bound["names"] = json.dumps([checked_name(owner, name, _OWNERS[table]) for name in names])
    if table is VALUE:
        sessions.lock(connection, now, owner)
    count = len(_delete[table, names is not None].run(connection, bound))
    if count and table is VALUE:
        sessions.change(connection, owner, {})
    return count


def _build_delete(dialect: Dialect, table: sa.Table, named: bool) -> sa.Executable:
    # Rows are locked in the order in which writers set them, so that a delete and a write never deadlock.
    wanted = sa.select(table.c.name).where(of_session(table)).order_by(table.c.name)
    if named:
        wanted = wanted.where(table.c.name.in_(dialect.texts_of_list(text("names"))))
    locked = wanted.with_for_update().cte("locked")
    delete = sa.delete(table).where(of_session(table), table.c.name.in_(sa.select(locked.c.name)))
    return delete.returning(table.c.name)


_delete: Final = {
    (table, named): Statement(functools.partial(_build_delete, table=table, named=named))
    for table in _OWNERS
    for named in (False, True)
}
