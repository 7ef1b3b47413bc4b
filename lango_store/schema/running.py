"""Run migration revisions in one transaction, one migration at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._dialect.driver_errors import translated_errors
from lango_store._engine.engine import create_engine
from lango_store._engine.url import url_from_environment
from lango_store._operations import revision
from lango_store._operations.derived_data import DERIVED, DerivedData
from lango_store.errors import InstallationIncomplete, LangoStoreError, MigrationRefused
from lango_store.schema.differences import OPTIONS
from lango_store.tables import SCHEMA_REVISION

if TYPE_CHECKING:  # importing Alembic takes longer than most commands
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

Database = str | sa.URL | sa.Engine | sa.Connection
"""A database: a URL, an engine, or a connection. Functions join its transaction, or commit their own if it has none."""

Steps = Callable[["ScriptDirectory", Any, sa.Connection], Iterable[Any]]
"""A function that takes this release's revisions, the database's current ones and the connection of the migration.

It returns Alembic's steps.
"""

LOCK_TIMEOUT: Final = 5.0
"""The default number of seconds to wait for a table that is in use, on PostgreSQL."""

_SHORTEST_TIMEOUT: Final = 0.001  # seconds: 0 would mean no timeout
_LONGEST_TIMEOUT: Final = 2_147_483  # seconds: PostgreSQL counts milliseconds in 31 bits


@contextmanager
def opened(database: Database) -> Iterator[sa.Engine | sa.Connection]:
    """Yield an engine for a URL, or the given engine or connection.

    Driver errors in the block become `LangoStoreError`s.
    """
    target = create_engine(database) if isinstance(database, str | sa.URL) else database
    try:
        with translated_errors(target.engine):
            yield target
    finally:
        if target is not database:
            target.engine.dispose()


@contextmanager
def connected(database: Database) -> Iterator[sa.Connection]:
    """Open a connection to a database, or yield the caller's connection.

    A transaction that the block begins on the caller's connection is committed: Alembic takes an open one for the
    caller's, and would leave the commit of all migrations to the caller.
    """
    with opened(database) as target:
        if isinstance(target, sa.Connection):
            with nullcontext() if target.in_transaction() else target.begin():
                yield target
            return
        with target.connect() as connection:
            yield connection


@contextmanager
def reading(database: Database) -> Iterator[sa.Connection]:
    """Open a connection with a snapshot, or yield the caller's connection, whose transaction stays open."""
    with (
        connected(database) as connection,
        nullcontext() if connection is database else dialect_of(connection).snapshot(connection),
    ):
        yield connection


@contextmanager
def known_revisions() -> Iterator[None]:
    """Raise `LangoStoreError` in place of Alembic's error for an unknown revision."""
    from alembic.util import CommandError

    try:
        yield
    except CommandError as error:
        raise MigrationRefused(f"{error}; this release knows revisions up to {SCHEMA_REVISION}") from error


def migrate(steps: Steps, database: Database, lock_timeout: float, **options: Any) -> str | None:
    """Run Alembic's steps on a database, with options of its context, and return the revision that is reached."""
    with connected(database) as connection, known_revisions():
        return run_steps(connection, options_of(steps, **options), lock_timeout, callers=connection is database)


def run_steps(
    connection: sa.Connection, options: dict[str, Any], lock_timeout: float, *, callers: bool = False
) -> str | None:
    """Run revisions: in the caller's transaction if `callers`, otherwise in a new one that is committed at the end."""
    with migration(connection, lock_timeout, callers=callers):
        from alembic.runtime.migration import MigrationContext

        run_revisions(MigrationContext.configure(connection=connection, opts=options))
        for outdated in outdated_data(connection):
            outdated.upgrade(connection)
        return revision.found(connection)


def outdated_data(connection: sa.Connection) -> list[DerivedData]:
    """Return the derived data to upgrade: of another release, in a schema of this one."""
    is_current = revision.found(connection) == SCHEMA_REVISION
    return [each for each in DERIVED if is_current and each.is_outdated(connection)]


@contextmanager
def table_transaction(connection: sa.Connection, *, callers: bool) -> Iterator[sa.Connection]:
    """Begin a transaction on our tables, or a savepoint in the caller's transaction."""
    dialect = dialect_of(connection)
    if callers:
        dialect.join(connection)
    transaction = connection.begin_nested() if callers else dialect.batch(connection, LOCK_TIMEOUT)
    with transaction, dialect.confined(connection):
        yield connection


@contextmanager
def migration(connection: sa.Connection, lock_timeout: float, *, callers: bool) -> Iterator[None]:
    """Begin a transaction, or join the caller's, and lock out other migrations until it ends."""
    if not _SHORTEST_TIMEOUT <= lock_timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"lock_timeout={lock_timeout}: give seconds, from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:,}")
    if callers:
        dialect_of(connection).join(connection)
        detect_dialect(connection)
        transaction = dialect_of(connection).joined_migration
    else:
        with dialect_of(connection).snapshot(connection):
            detect_dialect(connection)
        transaction = dialect_of(connection).migration
    with transaction(connection, lock_timeout), dialect_of(connection).confined(connection):
        yield


def options_of(steps: Steps, **options: Any) -> dict[str, Any]:
    """Return the options of a migration context that runs these steps."""
    scripts = script_directory()
    return {**OPTIONS, **options, "script": scripts, "fn": lambda at, context: steps(scripts, at, context.connection)}


def run_revisions(context: MigrationContext) -> None:
    """Run revisions without the global `alembic.context` and `alembic.op`, which the application may be using.

    The modules of the revisions were loaded for this run only, so a separate `op` can be set in each of them.
    """
    from alembic.operations import Operations

    assert context.script is not None
    for script in context.script.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    with context.begin_transaction():
        context.run_migrations()


def run_from_env(context: Any) -> None:
    """Run a command of Alembic's own command line in a checkout of lango_store. Only `migrations/env.py` calls this.

    Args:
        context: Alembic's `context`.
    """
    if context.is_offline_mode():
        raise LangoStoreError("`lango-store db sql` prints the SQL of an upgrade")
    url = (
        context.get_x_argument(as_dictionary=True).get("url")
        or context.config.get_main_option("sqlalchemy.url")
        or url_from_environment()
    )
    if not url:
        raise LangoStoreError("no database URL: set LANGO_STORE_URL (or DATABASE_URL), or pass `-x url=…`")
    with create_engine(url, poolclass=sa.NullPool).connect() as connection:
        context.configure(connection=connection, **OPTIONS)
        run_steps(connection, context.get_context().opts, LOCK_TIMEOUT)


def script_directory() -> ScriptDirectory:
    """Return the migration revisions of this release."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _folder() -> Path:
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise InstallationIncomplete(f"no revisions in or next to {package}: install the package again")
