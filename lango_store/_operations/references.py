"""Rows of a host's tables that keep sessions from being deleted: by foreign keys that neither cascade nor let go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import ForeignKey, dialect_of
from lango_store._operations.binds import SESSION

MAX_SHOWN: Final = 1_000


@dataclass(frozen=True)
class Holder:
    """A foreign key without ON DELETE, and the condition under which a row holds a session by it."""

    constraint: str
    condition: sa.ColumnElement[bool]


def holders(connection: sa.Connection) -> list[Holder]:
    """Find the foreign keys that may hold a session, those that a delete would reach by cascades too."""
    dialect = dialect_of(connection)
    target = dialect.schema(connection), SESSION.name
    return list(_holders(dialect.foreign_keys(connection), target, SESSION.c, ()))


def _holders(
    keys: Sequence[ForeignKey], target: tuple[str | None, str], columns: Any, seen: tuple[ForeignKey, ...]
) -> Iterator[Holder]:
    for key in keys:
        if key.referred != target or key in seen:
            continue
        table = (key.table.schema, key.table.name)
        reached = {column for each in keys if each.referred == table for column in each.referred_columns}
        rows = sa.table(table[1], *map(sa.column, {*key.columns, *reached}), schema=table[0]).alias()
        pairs = zip(key.columns, key.referred_columns, strict=True)
        refers = sa.and_(*(rows.c[own] == columns[referred] for own, referred in pairs))
        if key.on_delete in ("NO ACTION", "RESTRICT"):
            yield Holder(f"foreign key {key.name} of {key.table.name}", sa.exists().where(refers))
        elif key.on_delete == "CASCADE":
            for holder in _holders(keys, table, rows.c, (*seen, key)):
                yield Holder(holder.constraint, sa.exists().where(refers, holder.condition))


def held(
    connection: sa.Connection, among: Sequence[Holder], conditions: Sequence[sa.ColumnElement[bool]]
) -> dict[str, str]:
    """Return the sessions that meet conditions and are held, at most `MAX_SHOWN`, each with what holds it."""
    found: dict[str, str] = {}
    for holder in among:
        query = sa.select(SESSION.c.key).where(holder.condition, *conditions).order_by(SESSION.c.key)
        for key in connection.execute(query.limit(MAX_SHOWN - len(found))).scalars():
            found.setdefault(key, holder.constraint)
    return found
