"""Tables without a recorded migration revision: from a partial restore, or from `metadata.create_all`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of, reflected
from lango_store._engine.engine import create_engine
from lango_store._operations import revision
from lango_store.errors import MigrationRefused, quoted
from lango_store.schema.running import LOCK_TIMEOUT, migrate, script_directory
from lango_store.tables import VERSION_TABLE, Base

if TYPE_CHECKING:  # importing Alembic takes longer than most commands
    from alembic.script import ScriptDirectory

_LISTED: Final = 10  # names in an error


def reject_unversioned(connection: sa.Connection) -> None:
    """Raise `MigrationRefused` if our tables exist; the caller knows that no revision is recorded for them.

    The error names the revision to stamp, or how the tables differ from the most similar revision.
    """
    if len(revision.missing_tables(connection)) == len(Base.metadata.tables):
        return
    actual = _names(connection)
    number, needed = min(_revisions(), key=lambda known: len(known[1] ^ actual))
    schema = dialect_of(connection).schema(connection)
    where = "the database" if schema is None else f"schema {quoted(schema)} of the database"
    fact = f"{where} has tables of lango_store, but no revision in {VERSION_TABLE}"
    if needed == actual:
        raise MigrationRefused(
            f"{fact}; they are those of revision {number}: run `lango-store db stamp {number}`, then `lango-store db "
            "upgrade` and `lango-store db check`"
        )
    differences = (("missing", needed - actual), ("unexpected", actual - needed))
    listed = "; ".join(f"{kind}: {_listed(names)}" for kind, names in differences if names)
    raise MigrationRefused(
        f"{fact}, and they match no revision. Compared with {number}, the most similar one, {listed}. Restore a "
        f"backup, or change the tables and run `lango-store db stamp {number}`"
    )


def _revisions() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each revision of this release with its names, from a database in memory that is upgraded step by step."""
    engine = create_engine("sqlite://")
    for script in reversed([*script_directory().walk_revisions()]):
        migrate(partial(_steps_to, script.revision), engine, LOCK_TIMEOUT)
        with engine.connect() as connection:
            yield script.revision, _names(connection)
    engine.dispose()


def _steps_to(number: str, scripts: ScriptDirectory, at: Any, _: sa.Connection) -> Iterable[Any]:
    return scripts._upgrade_revs(number, at)


def _names(connection: sa.Connection) -> frozenset[str]:
    """Return the names of our tables, their columns (`table.column`) and their indexes (`table.index`)."""
    schema, tables = dialect_of(connection).schema(connection), [*Base.metadata.tables]
    inspector = sa.inspect(connection)
    with reflected():
        columns = inspector.get_multi_columns(schema=schema, filter_names=tables)
        indexes = inspector.get_multi_indexes(schema=schema, filter_names=tables)
    names = {table for _, table in columns}
    names.update(f"{table}.{column['name']}" for (_, table), parts in columns.items() for column in parts)
    names.update(f"{table}.{index['name']}" for (_, table), parts in indexes.items() for index in parts)
    return frozenset(names)


def _listed(names: frozenset[str]) -> str:
    """Join the first names; leave out the columns and indexes of tables that are named too."""
    outermost = sorted(name for name in names if "." not in name or name.partition(".")[0] not in names)
    more = f" and {len(outermost) - _LISTED} more" if len(outermost) > _LISTED else ""
    return ", ".join(outermost[:_LISTED]) + more
