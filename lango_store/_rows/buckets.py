"""Buckets: times rounded down to five minutes, which the indexes of lists and purges contain in place of the times.

An append moves `updated_at` and `expires_at`. If an index contained them, each append would write to it. A bucket
changes at most every five minutes. The databases set the buckets themselves, also for writes of other releases: on
PostgreSQL they are generated columns, on SQLite, which would write to an index of these each time, triggers set them.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlmodel import Field

from lango_store._rows.columns import TimeColumn


class Bucket(sa.sql.functions.FunctionElement[Any]):
    """The bucket of a time."""

    inherit_cache = True
    type = TimeColumn()


class _OfColumn(Bucket):
    """The bucket in the definition of a generated column, of which SQLite has none."""


class _Generated(sa.Computed):
    """A generated column on PostgreSQL, a plain column on SQLite."""


@compiles(Bucket, "postgresql")
def _date_bin(element: Bucket, compiler: Any, **options: Any) -> str:
    time = compiler.process(element.clauses, **options)
    return f"date_bin('00:05:00'::interval, {time}, to_timestamp((0)::double precision))"


@compiles(Bucket, "sqlite")
def _text(element: Bucket, compiler: Any, **options: Any) -> str:
    return f"({_sql(compiler.process(element.clauses, **options))})"


@compiles(_OfColumn, "sqlite")
@compiles(_Generated, "sqlite")
def _nothing(*_: Any, **__: Any) -> str:
    return ""


def _sql(time: str) -> str:
    of_minutes = "CASE WHEN substr({0}, 16, 1) < '5' THEN '0:00.000000+00:00' ELSE '5:00.000000+00:00' END"
    return f"substr({time}, 1, 15) || {of_minutes.format(time)}"


def bucket(name: str) -> Any:
    """Create the column with the bucket of the time in another column."""
    generated = _Generated(_OfColumn(sa.column(name)), persisted=True)
    return Field(default=None, sa_column=sa.Column(TimeColumn, generated))


_SET: Final = (
    f"UPDATE lango_session SET updated_bucket = {_sql('updated_at')}, expires_bucket = {_sql('expires_at')} "
    "WHERE rowid = new.rowid"
)
_IS_WRONG: Final = " OR ".join(f"new.{name}_bucket IS NOT {_sql(f'new.{name}_at')}" for name in ("updated", "expires"))

TRIGGERS: Final = {
    name: f"CREATE TRIGGER IF NOT EXISTS {name} AFTER {body}"
    for name, body in {
        "lango_session_bucket_inserted": f"INSERT ON lango_session BEGIN {_SET}; END",
        "lango_session_bucket_updated": f"UPDATE OF updated_at, expires_at ON lango_session WHEN {_IS_WRONG} "
        f"BEGIN {_SET}; END",
    }.items()
}
"""The triggers of SQLite, by name: the statements that create them."""


def create_triggers(connection: sa.Connection) -> None:
    """Create the triggers that are missing, on SQLite."""
    for each in TRIGGERS.values():
        connection.exec_driver_sql(each)
