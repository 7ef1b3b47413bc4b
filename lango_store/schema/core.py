"""The functions of `lango_store.schema` for migrations."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine.mock import MockConnection

from lango_store._dialect import dialect_of, reflected
from lango_store._operations import revision as revisions
from lango_store._operations.derived_data import DERIVED
from lango_store.errors import InstallationIncomplete, LangoStoreError, UnknownFeature
from lango_store.schema.differences import differences
from lango_store.schema.running import (
    LOCK_TIMEOUT,
    Database,
    connected,
    known_revisions,
    migrate,
    opened,
    options_of,
    outdated_data,
    reading,
    run_revisions,
    script_directory,
    table_transaction,
)
from lango_store.schema.unversioned import reject_unversioned
from lango_store.tables import BASELINE, SCHEMA_REVISION, VERSION_TABLE, Base

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

_TABLES: Final = frozenset({*Base.metadata.tables, VERSION_TABLE})


def upgrade(
    database: Database, revision: str = "head", *, lock_timeout: float = LOCK_TIMEOUT, start: str = "base"
) -> str | None:
    """Upgrade the schema to a migration revision, in one transaction.

    On PostgreSQL, this also replaces functions of triggers that are outdated, such as that of the search index.

    Several processes can upgrade the same database at the same time: one of them upgrades, the others wait and then
    find nothing to do. A schema that is newer than this release is not changed, so that a process of the old release
    can restart during a deployment.

    Args:
        database: A URL, an engine, or a connection whose transaction the upgrade joins.
        revision: The revision to upgrade to. Default: the newest revision of this release.
        lock_timeout: On PostgreSQL, the number of seconds to wait for a table that is in use, 0.001 to 2,147,483. Keep
            it short, because writers wait until the upgrade ends or gives up. Default: 5.
        start: The revision at which the SQL script of Alembic's offline mode (`alembic upgrade --sql`) begins. It has
            no effect on a database, which records its revision. Default: "base".

    Returns:
        The revision of the database after the upgrade; None in offline mode.

    Raises:
        DatabaseBusy: A table was in use, or another migration was running, for too long; nothing was changed.
        LangoStoreError: This release has no such revision, or the database has tables of lango_store without a recorded
            revision, and the error names the revision to stamp; nothing was changed.

    Example:
        ```python
        from lango_store import schema

        schema.upgrade("sqlite:///agent.db")
        ```
    """
    _reject_empty("revision", revision)
    if isinstance(database, MockConnection):
        _write_script(database, revision, start)
        return None

    def steps(scripts: ScriptDirectory, at: Any, connection: sa.Connection) -> Iterable[Any]:
        if not at:
            reject_unversioned(connection)
        # Compare again under the lock: a newer release may have migrated while this one waited.
        return [] if revision == "head" and _is_current(at) else scripts._upgrade_revs(revision, at)

    if revision == "head":
        with reading(database) as connection:
            revision_now = revisions.found(connection)
            if _is_current(revision_now) and not outdated_data(connection):
                return revision_now  # without waiting for another migration
    return migrate(steps, database, lock_timeout)


def upgrade_in_env(context: Any, *, start: str = "base", lock_timeout: float = LOCK_TIMEOUT) -> None:
    """Upgrade the store in the `env.py` of your Alembic environment, if its command is `alembic upgrade`.

    Call it after `context.configure` and before `context.run_migrations`. Other commands, such as `alembic check`, do
    not change the store's tables. In offline mode (`--sql`), the SQL of the store's upgrade becomes part of the script.

    On SQLite, the function switches foreign keys off for the connection: Alembic's batch mode drops and recreates
    tables, and with foreign keys on, that deletes the rows of child tables. Do not use the connection for anything
    else afterwards.

    Args:
        context: `alembic.context`.
        start: The revision of the store at which the script of the offline mode begins. Default: "base".
        lock_timeout: On PostgreSQL, the number of seconds to wait for a table that is in use. Default: 5.

    Raises:
        DatabaseBusy: A table was in use, or another migration was running, for too long; nothing was changed.
        LangoStoreError: On SQLite, the connection has foreign keys on and has already written in a transaction.
    """
    migrations = context.get_context()
    if not migrations.as_sql:
        dialect_of(migrations.connection).switch_off_foreign_keys(migrations.connection)
    command = migrations.opts.get("fn")
    if command is not None and command.__name__ == "upgrade":
        upgrade(migrations.bind, start=start, lock_timeout=lock_timeout)


def _write_script(connection: Any, revision: str, start: str) -> None:
    """Add the SQL of an upgrade to the script that Alembic's offline mode writes."""
    # A colon would begin a parameter. Alembic itself adds the last semicolon.
    script = _script(connection.dialect, revision, start, transactional_ddl=False)
    connection.execute(sa.text(script.strip().removesuffix(";").replace(":", "\\:")))


def _is_current(revision: Any) -> bool:
    """Return True if a revision, or the one revision in a tuple, is the newest of this release or newer."""
    if isinstance(revision, tuple):
        (revision,) = revision or (None,)
    return revision is not None and revision >= head()


def downgrade(database: Database, revision: str, *, lock_timeout: float = LOCK_TIMEOUT) -> str | None:
    """Downgrade the schema to a migration revision, in one transaction.

    Data that the older schema cannot store is lost.

    Args:
        database: A URL, an engine, or a connection whose transaction the downgrade joins.
        revision: The revision to downgrade to. "base" drops all tables of lango_store with their data, and then
            the search index.
        lock_timeout: On PostgreSQL, the number of seconds to wait for a table that is in use, 0.001 to 2,147,483.
            Default: 5.

    Returns:
        The revision of the database after the downgrade; None after "base".

    Raises:
        DatabaseBusy: A table was in use, or another migration was running, for too long; nothing was changed.
        LangoStoreError: This release has no such revision, or messages have payloads, which revisions before 0105
            cannot store; nothing was changed.
    """
    _reject_empty("revision", revision)
    options = {"destination_rev": revision}  # as in Alembic's own command
    reached = migrate(lambda scripts, at, _: scripts._downgrade_revs(revision, at), database, lock_timeout, **options)
    if reached is None:
        with connected(database) as connection, table_transaction(connection, callers=connection is database):
            for derived in DERIVED:
                derived.drop(connection)
    return reached


def stamp(database: Database, revision: str, *, lock_timeout: float = LOCK_TIMEOUT) -> str | None:
    """Record that the schema is at a migration revision, without changing the schema.

    Args:
        database: A URL, an engine, or a connection whose transaction the call joins.
        revision: The revision to record.
        lock_timeout: On PostgreSQL, the number of seconds to wait for a table that is in use, 0.001 to 2,147,483.
            Default: 5.

    Returns:
        The recorded revision; None for "base".

    Raises:
        DatabaseBusy: A table was in use, or another migration was running, for too long; nothing was changed.
        LangoStoreError: This release has no such revision; nothing was changed.
    """
    _reject_empty("revision", revision)
    return migrate(lambda scripts, at, _: scripts._stamp_revs(revision, at), database, lock_timeout)


def current(database: Database) -> str | None:
    """Return the migration revision of a database.

    Args:
        database: A URL, an engine or a connection.

    Returns:
        The revision, such as "0102"; None if none is recorded, as in a database without tables of lango_store.
    """
    with reading(database) as connection:
        return revisions.found(connection)


def namespace(database: Database) -> str | None:
    """Return the PostgreSQL schema of the tables, even if the tables do not exist yet.

    Args:
        database: A URL, an engine or a connection.

    Returns:
        The first existing schema of the search path; None on SQLite.
    """
    with reading(database) as connection:
        return dialect_of(connection).schema(connection)


def releases(database: Database) -> dict[str, int]:
    """Count the open connections of lango_store to a PostgreSQL database, by release.

    Use it before a migration that breaks processes of an older release. Only connections to the same server are
    counted, and only if neither their URL nor a connection pooler sets another `application_name`.

    Args:
        database: A URL, an engine or a connection.

    Returns:
        The number of connections for each release, without the connection of this call. Empty on SQLite.
    """
    with reading(database) as connection:
        return dialect_of(connection).connected_releases(connection)


def features(database: Database) -> list[str]:
    """Return the names of the features that a database uses.

    A release that does not know one of these features refuses the database with `UnknownFeature`.

    Args:
        database: A URL, an engine or a connection.
    """
    with reading(database) as connection:
        revision = revisions.found(connection)
        return [] if revision is None or revision <= BASELINE else revisions.features(connection)


def check(database: Database) -> list[str]:
    """Compare the schema of a database with the schema that this release needs.

    Args:
        database: A URL, an engine or a connection.

    Returns:
        One sentence for each difference; an empty list if there are none.
    """
    with reading(database) as connection:
        revision = revisions.found(connection)
        if revision is None:
            try:
                reject_unversioned(connection)
            except LangoStoreError as error:
                return [str(error)]
        if revision != SCHEMA_REVISION:
            schema = dialect_of(connection).schema(connection)
            where = "the database" if schema is None else f"schema {schema!r} of the database"
            state = "has none of our tables" if revision is None else f"is at revision {revision}"
            is_newer = revision is not None and revision > SCHEMA_REVISION
            remedy = "upgrade the package" if is_newer else "lango-store db upgrade"
            return [f"{where} {state}, this release needs {SCHEMA_REVISION}: {remedy}"]
        try:
            revisions.reject_unknown_features(connection)
        except UnknownFeature as error:
            return [str(error)]
        with reflected(), dialect_of(connection).confined(connection):
            return list(differences(connection))


def sql(database: Database, revision: str = "head", *, start: str | None = None) -> str:
    """Return the SQL statements that an upgrade would run, without running them.

    Args:
        database: A URL, an engine or a connection.
        revision: The revision to upgrade to. Default: the newest revision of this release.
        start: The revision to start from, such as "base"; then the database is not read. Default: the revision of the
            database.

    Raises:
        LangoStoreError: This release has no such revision.
    """
    _reject_empty("revision", revision)
    _reject_empty("start", start)
    with opened(database) as target:
        return _script(target.dialect, revision, start or current(target) or "base")


def _script(dialect: sa.Dialect, revision: str, start: str, **options: Any) -> str:
    from alembic.runtime.migration import MigrationContext

    output = io.StringIO()
    options |= {"as_sql": True, "literal_binds": True, "output_buffer": output, "starting_rev": start}
    with known_revisions():
        steps = options_of(lambda scripts, at, _: scripts._upgrade_revs(revision, at), **options)
        run_revisions(MigrationContext.configure(dialect=dialect, opts=steps))
    return output.getvalue()


def include_name(name: str | None, type_: str, _parents: Mapping[str, Any]) -> bool:
    """Exclude the tables of lango_store from the autogenerate of your Alembic environment.

    Pass the function to Alembic: `context.configure(..., include_name=schema.include_name)`.

    Args:
        name: The name that Alembic found in the database.
        type_: The type of the named object, such as "table".

    Returns:
        False for a table of lango_store, otherwise True.
    """
    return type_ != "table" or not (name in _TABLES or any(name in each.tables for each in DERIVED))


def head() -> str:
    """Return the newest migration revision of this release.

    Raises:
        InstallationIncomplete: This installation has no migration revisions.
    """
    revision = script_directory().get_current_head()
    if revision is None:
        raise InstallationIncomplete("this installation has no migration revisions: install the package again")
    return revision


def _reject_empty(name: str, revision: str | None) -> None:
    if revision == "":
        raise ValueError(f"{name} is empty: give a revision such as {SCHEMA_REVISION!r}")
