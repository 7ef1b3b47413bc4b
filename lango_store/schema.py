"""Migrations as functions: what `alembic upgrade` and `lango-store db upgrade` do, for programs to call.

The revisions stand in the package when it is installed, else beside the checkout. They have a version table of their
own, touch our tables only, and run one upgrade at a time. Every function takes a URL, an engine or a connection; on a
connection it works in the caller's transaction, inside the caller's own Alembic run too, and the caller commits.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.autogenerate.api import AutogenContext
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError

from lango_store.arguments import checking_all
from lango_store.columns import KEY_TEXT, JsonColumn, RoleColumn, TimeColumn
from lango_store.dialect import dialect_of, reflected
from lango_store.engine import create_engine
from lango_store.errors import LangoStoreError
from lango_store.operations import revision as revisions
from lango_store.tables import SCHEMA_REVISION, VERSION_TABLE, Base
from lango_store.url import url_from_environment

Database = str | sa.URL | sa.Engine | sa.Connection

Steps = Callable[[ScriptDirectory, Any], Iterable[Any]]
"""What a run does: from the revisions there are, and those the database is at, to Alembic's steps."""

LOCK_TIMEOUT: Final = 5.0
"""Seconds that a migration waits for a table on PostgreSQL."""

_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.001, 2_147_483  # 0 would be without end, and PostgreSQL counts milliseconds


_TABLES: Final = frozenset({*Base.metadata.tables, VERSION_TABLE})


# What callers do


@checking_all
def upgrade(database: Database, revision: str = "head", *, lock_timeout: float = LOCK_TIMEOUT) -> str | None:
    """Upgrade the schema to a revision, and return the revision it is at then.

    Several at once are safe. On PostgreSQL it waits `lock_timeout` seconds for a table in use, then `DatabaseBusy`.
    A schema that is newer than this release stays as it is: an old replica may restart after a deployment.
    On a connection of yours you commit; the next upgrade waits until then.
    """
    _refuse_empty("revision", revision)
    if revision == "head":
        found = current(database)
        if found is not None and found > SCHEMA_REVISION:
            return found
    return _migrate(lambda scripts, at: scripts._upgrade_revs(revision, at), database, lock_timeout)


@checking_all
def downgrade(database: Database, revision: str, *, lock_timeout: float = LOCK_TIMEOUT) -> str | None:
    """Downgrade the schema to a revision ("base" drops the tables), and return the revision it is at then."""
    _refuse_empty("revision", revision)
    return _migrate(lambda scripts, at: scripts._downgrade_revs(revision, at), database, lock_timeout)


@checking_all
def stamp(database: Database, revision: str, *, lock_timeout: float = LOCK_TIMEOUT) -> str | None:
    """Write down that the schema is at a revision, without running anything."""
    _refuse_empty("revision", revision)
    return _migrate(lambda scripts, at: scripts._stamp_revs(revision, at), database, lock_timeout)


@checking_all
def current(database: Database) -> str | None:
    """Return the revision a database is at, None if it has none of the store's tables."""
    with _connected(database) as connection:
        return revisions.found(connection)


@checking_all
def undone(database: Database, revision: str) -> list[str]:
    """List the revisions that a downgrade would undo, each with what it brought."""
    _refuse_empty("revision", revision)
    with _connected(database) as connection:
        found = revisions.found(connection)
        if found is None:
            return []
        scripts = ScriptDirectory.from_config(_config())
        try:
            going = list(scripts.iterate_revisions(found, revision, select_for_downgrade=True))
        except RevisionError as error:
            raise LangoStoreError(f"{error}; this release knows revisions up to {SCHEMA_REVISION}") from error
        return [f"{each.revision} ({each.doc.rstrip('.')})" for each in going]


@checking_all
def rows(database: Database) -> dict[str, int]:
    """Count the rows of each of our tables that is there."""
    with _connected(database) as connection, dialect_of(connection).confined(connection):
        there = [table for table in Base.metadata.sorted_tables if sa.inspect(connection).has_table(table.name)]
        count = sa.func.count()
        return {table.name: connection.execute(sa.select(count).select_from(table)).scalar_one() for table in there}


@checking_all
def namespace(database: Database) -> str | None:
    """Return which of PostgreSQL's schemas has, or would get, the tables: the search path's first. None on SQLite."""
    with _connected(database) as connection:
        return dialect_of(connection).schema(connection)


@checking_all
def check(database: Database) -> list[str]:
    """Return where a database differs from what this release needs, a sentence each; [] if nowhere."""
    with _connected(database) as connection:
        found = revisions.found(connection)
        if found != SCHEMA_REVISION:
            schema = dialect_of(connection).schema(connection)
            where = "the database" if schema is None else f"schema {schema!r} of the database"
            state = "has none of our tables" if found is None else f"is at revision {found}"
            remedy = (
                "upgrade the package" if found is not None and found > SCHEMA_REVISION else "lango-store db upgrade"
            )
            return [f"{where} {state}, this release needs {SCHEMA_REVISION}: {remedy}"]
        with reflected(), dialect_of(connection).confined(connection):
            return [*_differences(connection), *_predicates(connection)]


@checking_all
def sql(database: Database, revision: str = "head", *, start: str | None = None) -> str:
    """Write the SQL that an upgrade would run, from revision `start` or else from where the database is.

    With `start` (such as "base") the database is not asked.
    """
    _refuse_empty("revision", revision)
    _refuse_empty("start", start)
    with _opened(database) as opened, _our_errors(opened):
        if start is None:
            start = current(opened.database) or "base"
        output = io.StringIO()
        options = {"as_sql": True, "literal_binds": True, "output_buffer": output, "starting_rev": start}
        context = MigrationContext.configure(
            dialect=opened.database.dialect,
            opts=_runnable(lambda scripts, at: scripts._upgrade_revs(revision, at), options),
        )
        _run(context)
        return output.getvalue()


def include_name(name: str | None, type_: str, _parents: Mapping[str, Any]) -> bool:
    """Leave our tables out of your autogenerate: `context.configure(..., include_name=schema.include_name)`."""
    return type_ != "table" or name not in _TABLES


def head() -> str:
    """Return the newest revision that this release ships."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise LangoStoreError("this installation ships no revisions: install the package again")
    return found


# What Alembic's environment does (migrations/env.py)


def run(context: Any) -> None:
    """Run what Alembic's command line was asked for, on the URL of `-x url=`, else of a variable."""
    if context.is_offline_mode():
        context.configure(dialect_name=create_engine(_url(context)).dialect.name, literal_binds=True, **_OPTIONS)
        with context.begin_transaction():
            context.run_migrations()
        return
    with create_engine(_url(context), poolclass=sa.NullPool).connect() as connection:
        if _command(context.config) in ("upgrade", "downgrade", "stamp"):
            timeout = float(context.get_x_argument(as_dictionary=True).get("lock_timeout", LOCK_TIMEOUT))
            with _alone(connection, timeout):
                _run_on(context, connection)
        else:
            _run_on(context, connection)


def _run_on(context: Any, connection: sa.Connection) -> None:
    context.configure(connection=connection, **_OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def _command(config: Config) -> str:
    options = getattr(config, "cmd_opts", None)
    return options.cmd[0].__name__ if options is not None and hasattr(options, "cmd") else "upgrade"


def _url(context: Any) -> str:
    url = (
        context.get_x_argument(as_dictionary=True).get("url")
        or context.config.get_main_option("sqlalchemy.url")
        or url_from_environment()
    )
    if not url:
        raise LangoStoreError("which database? set LANGO_STORE_URL (or DATABASE_URL), or give `-x url=…`")
    return str(url)


def _ours(name: str | None, type_: str, parents: Mapping[str, Any]) -> bool:
    return type_ != "table" or name in Base.metadata.tables


def _render_item(kind: str, item: Any, context: AutogenContext) -> str | Literal[False]:
    """Write plain SQLAlchemy types into a new revision, which may import nothing of the package."""
    plain = {JsonColumn: "postgresql.JSON()", TimeColumn: "sa.DateTime(timezone=True)", RoleColumn: "sa.Text()"}
    if kind != "type" or (type(item) not in plain and item is not KEY_TEXT):
        return False
    if type(item) is JsonColumn:
        context.imports.add("from sqlalchemy.dialects import postgresql")
    variant = plain.get(type(item), 'sa.Text(collation="C")')
    return f'sa.Text().with_variant({variant}, "postgresql")'


_OPTIONS: Final[dict[str, Any]] = {
    "target_metadata": Base.metadata,
    "version_table": VERSION_TABLE,
    "include_name": _ours,
    "render_as_batch": True,
    "render_item": _render_item,
    "transactional_ddl": True,
    "compare_type": True,
}


# How


def _refuse_empty(name: str, revision: str | None) -> None:
    if revision == "":
        raise ValueError(f"{name} is empty: give a revision such as {SCHEMA_REVISION!r}")


def _migrate(steps: Steps, database: Database, lock_timeout: float) -> str | None:
    with _opened(database) as opened, _our_errors(opened):
        with opened.connect() as connection, _alone(connection, lock_timeout, callers=opened.callers):
            _run(MigrationContext.configure(connection, opts=_runnable(steps)))
        return current(opened.database)


@contextmanager
def _alone(connection: sa.Connection, lock_timeout: float, *, callers: bool = False) -> Iterator[None]:
    if not _SHORTEST_TIMEOUT <= lock_timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"lock_timeout={lock_timeout}: give seconds, from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:,}")
    database = dialect_of(connection)
    if callers:
        if not connection.in_transaction():
            connection.begin()
        database.join(connection)
    alone = database.migration_within if callers else database.migration
    with alone(connection, lock_timeout), database.confined(connection):
        yield


def _runnable(steps: Steps, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    scripts = ScriptDirectory.from_config(_config())
    return {**_OPTIONS, **(options or {}), "script": scripts, "fn": lambda at, _: steps(scripts, at)}


def _run(context: MigrationContext) -> None:
    """Run revisions without `alembic.context` and `alembic.op`: there is one of each, and it may be a host's just now.

    The modules of the revisions were loaded for this run only, so that its `op` can stand in them.
    """
    assert context.script is not None
    for script in context.script.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    with context.begin_transaction():
        context.run_migrations()


def _config() -> Config:
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _folder() -> Path:
    package = Path(__file__).resolve().parent
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise LangoStoreError(f"no revisions beside {package}: install the package again")


@dataclass(frozen=True)
class _Opened:
    """A database to connect to, and whether the connection is the caller's, and the transaction too."""

    database: sa.Engine | sa.Connection
    connect: Callable[[], AbstractContextManager[sa.Connection]]
    callers: bool = False


@contextmanager
def _opened(database: Database) -> Iterator[_Opened]:
    if isinstance(database, sa.Connection):
        yield _Opened(database, lambda: nullcontext(database), callers=True)
    elif isinstance(database, sa.Engine):
        yield _Opened(database, database.connect)
    else:
        engine = create_engine(database)
        try:
            yield _Opened(engine, engine.connect)
        finally:
            engine.dispose()


@contextmanager
def _connected(database: Database) -> Iterator[sa.Connection]:
    with _opened(database) as opened, _our_errors(opened):
        at_one_moment = nullcontext if opened.callers else dialect_of(opened.database).snapshot
        with opened.connect() as connection, at_one_moment(connection):
            yield connection


@contextmanager
def _our_errors(opened: _Opened) -> Iterator[None]:
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise dialect_of(opened.database).translate_error(error.orig or error) from error
    except CommandError as error:
        raise LangoStoreError(f"{error}; this release knows revisions up to {SCHEMA_REVISION}") from error


def _context(connection: sa.Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={**_OPTIONS, "script": None})


def _differences(connection: sa.Connection) -> list[str]:
    context = _context(connection)
    script = produce_migrations(context, Base.metadata)
    assert script.upgrade_ops is not None
    code = render_python_code(script.upgrade_ops, render_item=_render_item, migration_context=context)
    lines = [line.strip() for line in code.splitlines()]
    return [f"to be as this release needs it: {line}" for line in lines if line.startswith(("op.", "batch_op."))]


def _predicates(connection: sa.Connection) -> list[str]:
    """Compare what partial indexes are partial by, which Alembic does not."""
    found: list[str] = []
    option = f"{connection.dialect.name}_where"
    for table in Base.metadata.sorted_tables:
        if not sa.inspect(connection).has_table(table.name):
            continue
        there: dict[Any, Any] = {index["name"]: index for index in sa.inspect(connection).get_indexes(table.name)}
        for index in table.indexes:
            needed = index.dialect_options[connection.dialect.name].get("where")
            has = there.get(index.name, {}).get("dialect_options", {}).get(option)
            if index.name in there and _bare(needed) != _bare(has):
                found.append(f"index {index.name} is WHERE {has}, this release needs WHERE {needed}: make it again")
    return found


def _bare(predicate: object) -> str:
    return re.sub(r"[\s()\"]", "", str(predicate)).lower()
