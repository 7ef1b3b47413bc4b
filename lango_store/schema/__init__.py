"""Migrations as functions: what `alembic upgrade` and `lango-store db upgrade` do, for programs to call.

The revisions are part of an installed package, or in `migrations` of a checkout. They have a separate version table,
change our tables only, and run one upgrade at a time. Every function takes a URL, an engine or a connection; on a
connection it works in the caller's transaction, also inside the caller's own Alembic run, and the caller commits.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lango_store._dialect import SEARCH_TABLES, dialect_of, reflected
from lango_store._operations import revision as revisions
from lango_store._values.reports import OnProgress, Progress, SearchStatus
from lango_store.errors import LangoStoreError, UnknownFeature
from lango_store.schema.differences import differences
from lango_store.schema.distributing import distribute, undistribute
from lango_store.schema.running import (
    LOCK_TIMEOUT,
    Database,
    known_revisions,
    migrate,
    opened,
    options_of,
    reading,
    run_from_env,
    run_revisions,
    script_directory,
)
from lango_store.schema.searching import disable_search, enable_search, rebuild_search, search_status
from lango_store.tables import BASELINE, SCHEMA_REVISION, VERSION_TABLE, Base

__all__ = [
    "LOCK_TIMEOUT",
    "Database",
    "OnProgress",
    "Progress",
    "SearchStatus",
    "check",
    "current",
    "disable_search",
    "distribute",
    "downgrade",
    "enable_search",
    "features",
    "head",
    "include_name",
    "namespace",
    "rebuild_search",
    "releases",
    "run_from_env",
    "search_status",
    "sql",
    "stamp",
    "undistribute",
    "upgrade",
]

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

_TABLES: Final = frozenset({*Base.metadata.tables, VERSION_TABLE, *SEARCH_TABLES})


def upgrade(
    database: Database,
    revision: str = "head",
    *,
    lock_timeout: float = LOCK_TIMEOUT,
) -> str | None:
    """Upgrade the schema, in one transaction.

    Several upgrades at once are safe: they wait for each other. A schema that is newer than this release is left as it
    is, so that an old process may restart after a deployment.

    Args:
        database: A URL, an engine or a connection. On a connection the upgrade joins your transaction, and you commit.
        revision: The revision to upgrade to.
        lock_timeout: Seconds to wait for a table in use on PostgreSQL, since writers wait for the upgrade.

    Returns:
        The revision of the database afterwards.

    Raises:
        DatabaseBusy: A table or another migration kept this one waiting for too long; nothing was changed.
        LangoStoreError: There is no such revision.
    """
    _reject_empty("revision", revision)

    def steps(scripts: ScriptDirectory, at: Any) -> Iterable[Any]:
        # Asked again under the lock: a newer release may have migrated while this one waited.
        return [] if revision == "head" and _is_current(at) else scripts._upgrade_revs(revision, at)

    if revision == "head" and _is_current(found := current(database)):  # without waiting for another migration
        return found
    return migrate(steps, database, lock_timeout)


def _is_current(found: Any) -> bool:
    """Return whether a revision, or the only one of a tuple, is this release's or newer."""
    if isinstance(found, tuple):
        (found,) = found or (None,)
    return found is not None and found >= head()


def downgrade(
    database: Database,
    revision: str,
    *,
    lock_timeout: float = LOCK_TIMEOUT,
) -> str | None:
    """Downgrade the schema to a revision, in one transaction; "base" drops the tables, and then the search index.

    Arguments, result and errors are those of `upgrade`.
    """
    _reject_empty("revision", revision)
    reached = migrate(lambda scripts, at: scripts._downgrade_revs(revision, at), database, lock_timeout)
    if reached is None:
        disable_search(database)
    return reached


def stamp(database: Database, revision: str, *, lock_timeout: float = LOCK_TIMEOUT) -> str | None:
    """Record that the schema is at a revision, without running anything."""
    _reject_empty("revision", revision)
    return migrate(lambda scripts, at: scripts._stamp_revs(revision, at), database, lock_timeout)


def current(database: Database) -> str | None:
    """Return the revision a database is at, None if it has none of the store's tables."""
    with reading(database) as connection:
        return revisions.found(connection)


def namespace(database: Database) -> str | None:
    """Return which of PostgreSQL's schemas has, or would get, the tables: the search path's first. None on SQLite."""
    with reading(database) as connection:
        return dialect_of(connection).schema(connection)


def releases(database: Database) -> dict[str, int]:
    """Return the connections of this package to a database of PostgreSQL, by release; without this function's own.

    A connection is seen on the server that it is to, unless its URL or a pooler gives it another `application_name`.
    """
    with reading(database) as connection:
        return dialect_of(connection).connected_releases(connection)


def features(database: Database) -> list[str]:
    """Return the features that a database uses: a release that does not know one of them refuses the database."""
    with reading(database) as connection:
        found = revisions.found(connection)
        return [] if found is None or found <= BASELINE else revisions.features(connection)


def check(database: Database) -> list[str]:
    """Return the differences of a database from the schema of this release, a sentence each."""
    with reading(database) as connection:
        found = revisions.found(connection)
        if found != SCHEMA_REVISION:
            schema = dialect_of(connection).schema(connection)
            where = "the database" if schema is None else f"schema {schema!r} of the database"
            state = "has none of our tables" if found is None else f"is at revision {found}"
            remedy = (
                "upgrade the package" if found is not None and found > SCHEMA_REVISION else "lango-store db upgrade"
            )
            return [f"{where} {state}, this release needs {SCHEMA_REVISION}: {remedy}"]
        try:
            revisions.reject_unknown_features(connection)
        except UnknownFeature as error:
            return [str(error)]
        with reflected(), dialect_of(connection).confined(connection):
            return list(differences(connection))


def sql(database: Database, revision: str = "head", *, start: str | None = None) -> str:
    """Write the SQL that an upgrade would run, from revision `start` or else from where the database is.

    With `start` (such as "base") the database is not asked.
    """
    _reject_empty("revision", revision)
    _reject_empty("start", start)
    from alembic.runtime.migration import MigrationContext

    with opened(database) as target, known_revisions():
        if start is None:
            start = current(target) or "base"
        output = io.StringIO()
        options = options_of(
            lambda scripts, at: scripts._upgrade_revs(revision, at),
            as_sql=True,
            literal_binds=True,
            output_buffer=output,
            starting_rev=start,
        )
        run_revisions(MigrationContext.configure(dialect=target.dialect, opts=options))
        return output.getvalue()


def include_name(name: str | None, type_: str, _parents: Mapping[str, Any]) -> bool:
    """Return False for our tables, to leave them out: `context.configure(..., include_name=schema.include_name)`."""
    return type_ != "table" or name not in _TABLES


def head() -> str:
    """Return the newest revision that this release ships."""
    found = script_directory().get_current_head()
    if found is None:
        raise LangoStoreError("this installation ships no revisions: install the package again")
    return found


def _reject_empty(name: str, revision: str | None) -> None:
    if revision == "":
        raise ValueError(f"{name} is empty: give a revision such as {SCHEMA_REVISION!r}")
