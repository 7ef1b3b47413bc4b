"""Run revisions on the database that a caller names: in one transaction that no other migration shares."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._dialect.driver_errors import translated_errors
from lango_store._engine.engine import create_engine
from lango_store._engine.url import url_from_environment
from lango_store._operations import revision
from lango_store.errors import LangoStoreError
from lango_store.schema.differences import OPTIONS
from lango_store.tables import SCHEMA_REVISION

Database = str | sa.URL | sa.Engine | sa.Connection

Steps = Callable[[ScriptDirectory, Any], Iterable[Any]]
"""Returns Alembic's steps, given the revisions of this release and those the database is at."""

LOCK_TIMEOUT: Final = 5.0
"""Seconds to wait for a table in use on PostgreSQL."""

_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.001, 2_147_483  # 0 would be without end, and PostgreSQL counts milliseconds


@dataclass(frozen=True)
class Opened:
    """A database to connect to."""

    database: sa.Engine | sa.Connection

    @property
    def callers(self) -> bool:
        """Whether the connection is the caller's, and the transaction too."""
        return isinstance(self.database, sa.Connection)

    def connect(self) -> AbstractContextManager[sa.Connection]:
        """Open a connection, or return the caller's."""
        return nullcontext(self.database) if isinstance(self.database, sa.Connection) else self.database.connect()


@contextmanager
def opened(database: Database) -> Iterator[Opened]:
    """Open a database for a block, and raise the driver's and Alembic's errors in it as the store's own."""
    target = create_engine(database) if isinstance(database, str | sa.URL) else database
    try:
        with translated_errors(target.engine):
            yield Opened(target)
    except CommandError as error:
        raise LangoStoreError(f"{error}; this release knows revisions up to {SCHEMA_REVISION}") from error
    finally:
        if target is not database:
            target.engine.dispose()


@contextmanager
def connected(database: Database) -> Iterator[sa.Connection]:
    """Connect to a database for reading; on a connection of its own all is read at one moment."""
    with opened(database) as target:
        at_one_moment = nullcontext if target.callers else dialect_of(target.database).snapshot
        with target.connect() as connection, at_one_moment(connection):
            yield connection


def migrate(steps: Steps, database: Database, lock_timeout: float) -> str | None:
    """Run steps on a database, and return its revision afterwards."""
    with opened(database) as target:
        with target.connect() as connection:
            run_steps(connection, options_of(steps), lock_timeout, callers=target.callers)
        with connected(target.database) as connection:
            return revision.found(connection)


def run_steps(
    connection: sa.Connection, options: dict[str, Any], lock_timeout: float, *, callers: bool = False
) -> None:
    """Run revisions in one transaction: the caller's, or one that is committed at the end."""
    with alone(connection, lock_timeout, callers=callers):
        revision.found(connection)  # which refuses a schema from before the baseline
        run_revisions(MigrationContext.configure(connection=connection, opts=options))


@contextmanager
def alone(connection: sa.Connection, lock_timeout: float, *, callers: bool) -> Iterator[None]:
    """Begin a transaction on our tables, or join the caller's, and keep other migrations out until it ends."""
    reject_timeout(lock_timeout)
    if callers:
        if not connection.in_transaction():
            connection.begin()
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
    return {**OPTIONS, **options, "script": scripts, "fn": lambda at, _: steps(scripts, at)}


def run_revisions(context: MigrationContext) -> None:
    """Run revisions without `alembic.context` and `alembic.op`: those are global, and a host may be using them.

    The modules of the revisions were loaded for this run only, so each gets an `op` of its own.
    """
    assert context.script is not None
    for script in context.script.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    with context.begin_transaction():
        context.run_migrations()


def reject_timeout(lock_timeout: float) -> None:
    """Raise ValueError for a number of seconds that no database can wait."""
    if not _SHORTEST_TIMEOUT <= lock_timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"lock_timeout={lock_timeout}: give seconds, from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:,}")


def run(context: Any) -> None:
    """Run what Alembic's own command line in a checkout was asked for: `migrations/env.py` calls this."""
    if context.is_offline_mode():
        raise LangoStoreError("`lango-store db sql` prints the SQL of an upgrade")
    url = (
        context.get_x_argument(as_dictionary=True).get("url")
        or context.config.get_main_option("sqlalchemy.url")
        or url_from_environment()
    )
    if not url:
        raise LangoStoreError("no database was given: set LANGO_STORE_URL (or DATABASE_URL), or give `-x url=…`")
    with create_engine(url, poolclass=sa.NullPool).connect() as connection:
        context.configure(connection=connection, **OPTIONS)
        run_steps(connection, context.get_context().opts, LOCK_TIMEOUT)


def script_directory() -> ScriptDirectory:
    """Return the revisions that are shipped with this release."""
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _folder() -> Path:
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise LangoStoreError(f"no revisions beside {package}: install the package again")
