"""JSON by name: a session's own values, in the scope that is its key, and those that sessions share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store.columns import KEY_TEXT, as_stored
from lango_store.dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store.encoding import checked_key, checked_name, encode_json, encode_text
from lango_store.errors import SessionExpired, SessionNotFound
from lango_store.operations import scopes, sessions
from lango_store.operations.binds import (
    KEY,
    LIVE,
    LIVE_SESSION,
    NOW,
    SESSION,
    VALUE,
    column,
    of_session,
    session_key,
)
from lango_store.operations.lists import end_of_prefix
from lango_store.operations.rows import stored_json
from lango_store.statement import Statement

_NO_KEY: Final = sa.literal_column("''", KEY_TEXT)
"""A key that no session has: ck_lango_value_scope refuses it, and the statement fails as a whole."""

_ARRAYS: Final = ("value_scopes", "value_names", "value_jsons")
_OTHERS: Final = "value_others"
_DROPPED: Final = 500


@dataclass(frozen=True)
class NamedValues:
    """Values about to be set: scope, name and JSON of each, checked, and sorted so that no two writes cross."""

    rows: Sequence[tuple[str, str, str]] = ()

    def others(self, key: str) -> list[str]:
        """Return the scopes that are not the session's own."""
        return list(dict.fromkeys(scope for scope, _, _ in self.rows if scope != key))

    def arrays(self, key: str) -> dict[str, list[str]]:
        """Return what the statements bind that write all of them at once: one at least."""
        columns = zip(*self.rows, strict=True)
        return {name: list(each) for name, each in zip(_ARRAYS, columns, strict=True)} | {_OTHERS: self.others(key)}


NO_VALUES: Final = NamedValues()


def encoded(values: Mapping[str, Any] | None) -> NamedValues:
    """Encode values by scope and name; `InvalidKey` or `InvalidMessage` says which of them cannot be stored."""
    if values is None:
        return NO_VALUES
    if not isinstance(values, dict):
        raise TypeError(
            f"values is {type(values).__name__}: give a dict of scopes, each a dict of values by their names"
        )
    return NamedValues(
        sorted(row for scope, named in values.items() for row in _rows(scope, named, f"values[{scope!r}]"))
    )


def encoded_in(scope: str, values: Mapping[str, Any]) -> NamedValues:
    """Encode the values of one scope."""
    return NamedValues(sorted(_rows(scope, values, "values")))


def _rows(scope: str, values: Mapping[str, Any], what: str) -> Iterator[tuple[str, str, str]]:
    checked_key(scope, "scope")
    if not isinstance(values, dict):
        raise TypeError(f"{what} is {type(values).__name__}: give a dict of values by their names")
    for name, value in values.items():
        yield scope, checked_name(scope, name), encode_json(value, f"values[{scope!r}][{name!r}]")


# Written


def _insertion(dialect: Dialect, given: sa.Select[Any]) -> Any:
    return dialect.insert(VALUE).from_select(["scope", "name", "value", "session_key", "updated_at"], given)


def _or_replace(insertion: Any, *, where: sa.ColumnElement[bool] | None = None, **also: Any) -> Any:
    given = {name: insertion.excluded[name] for name in ("value", "session_key", "updated_at")} | also
    return insertion.on_conflict_do_update(index_elements=[VALUE.c.scope, VALUE.c.name], set_=given, where=where)


def _is_not_anothers(insertion: Any) -> sa.ColumnElement[bool]:
    """Whether a stored value is shared, or of the session that sets it: it may have been made after the snapshot."""
    stored = VALUE.c.session_key
    return sa.or_(stored.is_(None), stored == insertion.excluded.session_key)


def _array(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=postgresql.ARRAY(sa.Text()), required=True)


HOW_MANY: Final[sa.ColumnElement[int]] = sa.func.cardinality(_array("value_names"))
"""How many values are bound."""


def _given() -> Any:
    """The values that are bound, as a table."""
    arrays = map(_array, _ARRAYS)
    columns = (sa.column("scope", KEY_TEXT), sa.column("name", KEY_TEXT), sa.column("value", sa.Text()))
    return sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="named")


def written_with(dialect: Dialect, session: sa.CTE) -> Any:
    """Set the bound values, in the statement that writes to the session with the bound key."""
    named = _given()
    own = sa.case((named.c.scope == KEY, KEY))
    chosen = sa.select(named.c.scope, named.c.name, sa.cast(named.c.value, VALUE.c.value.type), own, NOW)
    insertion = _insertion(dialect, chosen.select_from(session.join(named, sa.true())))
    # The messages are written by then: a key that the CHECK refuses takes them back.
    key = sa.case((_is_not_anothers(insertion), insertion.excluded.session_key), else_=_NO_KEY)
    return _or_replace(insertion, session_key=key)


def may_be_set() -> sa.ColumnElement[bool]:
    """Whether none of the bound values is another session's."""
    return scopes.is_of_no_session(_array(_OTHERS))


def _write_one(dialect: Dialect) -> sa.Executable:
    given = {c.name: NOW if c is VALUE.c.updated_at else column(c, f"value_{c.name}") for c in VALUE.c}
    insertion = dialect.insert(VALUE).values(given)
    return _or_replace(insertion, where=_is_not_anothers(insertion))  # type: ignore[no-any-return]


_one = Statement(_write_one)


def write(connection: AnyConnection, now: Any, key: str | None, named: NamedValues) -> None:
    """Set values one by one, those in the scope of the session with this key as its own; `Withheld` if one is not."""
    rows = [
        {
            "value_scope": scope,
            "value_name": name,
            "value_value": json,
            "value_session_key": key if scope == key else None,
            "now": now,
        }
        for scope, name, json in named.rows
    ]
    _one.run_many(connection, rows)


_touch = Statement(
    lambda _: sa.update(SESSION).where(LIVE_SESSION).values(sessions.REVISED).returning(sa.literal_column("1"))
)


def _write_all(dialect: Dialect, *, own: bool) -> sa.Executable:
    touched = sa.update(SESSION).where(LIVE_SESSION).values(sessions.REVISED).returning(SESSION.c.key).cte("touched")
    named = _given()
    columns = (named.c.scope, named.c.name, sa.cast(named.c.value, VALUE.c.value.type), touched.c.key, NOW)
    chosen = sa.select(*columns).select_from(named.join(touched, sa.true(), isouter=not own))
    if not own:
        chosen = chosen.where(touched.c.key.is_not(None) | ~scopes.IS_OF_A_SESSION)
    insertion = _insertion(dialect, chosen)
    stored = _or_replace(insertion, where=_is_not_anothers(insertion)).returning(VALUE.c.name).cte("stored")
    count = sa.select(sa.func.count()).select_from(stored).scalar_subquery()
    found = sa.exists(sa.select(touched.c.key))
    wanted = sa.case((found if own else found | ~scopes.IS_OF_A_SESSION, HOW_MANY), else_=sa.literal_column("0"))
    return sa.select(dialect.unless_withheld(count, (VALUE, count != wanted)))


_all = {own: Statement(lambda dialect, own=own: _write_all(dialect, own=own)) for own in (False, True)}  # type: ignore[misc]


def set_(connection: AnyConnection, now: Moment, scope: str, named: NamedValues, *, own: bool) -> None:
    """Set values of a live session, or, unless they have to be a session's own, shared ones.

    `Withheld`, with nothing written, if one is not written, or if a session was made meanwhile whose own it is.
    """
    if not named.rows:
        read(connection, now, scope, None, own=own)
        return
    tries = sessions.TRIES
    while not _set(connection, now, scope, named, own=own):
        tries -= 1
        try:
            sessions.refuse(connection, now, scope, tries_left=tries)
        except SessionNotFound as error:
            if own or isinstance(error, SessionExpired) or not tries:
                raise


def _set(connection: AnyConnection, now: Moment, scope: str, named: NamedValues, *, own: bool) -> bool:
    """Write all values; False, with nothing written, if no live session allows it."""
    dialect = dialect_of(connection)
    values = {"key": scope, "now": dialect.time(now)}
    if dialect.modifying_cte:
        return bool(_all[own].run(connection, values | named.arrays(scope))[0][0] == len(named.rows))
    with dialect.several(connection):
        touched = _touch.run(connection, values)
        if not touched and (own or scopes.is_of_a_session(connection, scope)):
            return False
        write(connection, values["now"], scope if touched else None, named)
        return True


# Read and dropped


def _select() -> sa.Executable:
    live = sa.select(LIVE).where(of_session(SESSION)).scalar_subquery()
    within = (VALUE.c.name >= session_key("prefix"), VALUE.c.name < session_key("prefix_end"))
    one = sa.select(sa.literal_column("1").label("one")).subquery("one")
    found = one.join(VALUE, sa.and_(of_session(VALUE), *within), isouter=True)
    return sa.select(live, VALUE.c.name, as_stored(VALUE.c.value)).select_from(found).order_by(VALUE.c.name)


_read = Statement(lambda _: _select())


def read(connection: AnyConnection, now: Moment, scope: str, prefix: str | None, *, own: bool) -> dict[str, Any]:
    """Return the values of a scope by their names, in the order of these; those of a session only while it lives."""
    prefix = encode_text(prefix, "prefix") or ""
    values = {"key": checked_key(scope, "scope"), "now": dialect_of(connection).time(now), "prefix": prefix}
    rows = _read.run(connection, values | {"prefix_end": end_of_prefix(prefix)})
    live = rows[0][0]
    if own if live is None else not live:
        sessions.row_of(connection, now, scope)
    return {name: stored_json(scope, 0, f"value {name!r}", text) for _, name, text in rows if name is not None}


def drop(connection: sa.Connection, now: Moment, scope: str, names: Sequence[str] | None, *, own: bool) -> int:
    """Delete values of a live session, or, unless they have to be a session's own, shared ones; return how many."""
    checked_key(scope, "scope")
    wanted = None if names is None else sorted({checked_name(scope, name) for name in names})
    try:
        sessions.lock(connection, now, scope)
        is_session = True
    except SessionNotFound as error:
        if own or isinstance(error, SessionExpired):
            raise
        is_session = False
    if wanted is None:
        count = _drop(connection, scope)
    else:  # a statement takes 65,535 values at most
        pages = (wanted[first : first + _DROPPED] for first in range(0, len(wanted), _DROPPED))
        count = sum(_drop(connection, scope, VALUE.c.name.in_(page)) for page in pages)
    if is_session and count:
        sessions.change(connection, scope, {})
    return count


def _drop(connection: sa.Connection, scope: str, *which: sa.ColumnElement[bool]) -> int:
    # Locked in the order in which writes set them.
    wanted = sa.select(VALUE.c.name).where(of_session(VALUE, scope), *which).order_by(VALUE.c.name)
    chosen = wanted.with_for_update().cte("chosen")
    gone = sa.delete(VALUE).where(of_session(VALUE, scope), VALUE.c.name.in_(sa.select(chosen.c.name)))
    return len(connection.execute(gone.returning(VALUE.c.name)).all())
