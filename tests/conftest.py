"""Databases, clocks and stores for all tests: every behaviour runs on SQLite and on a real PostgreSQL."""

import itertools
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from support import pgbouncer
from support.awaiting import awaiting
from support.citus_databases import CitusDatabases
from support.damage import damaged_file as damaged_file
from support.damage import sound_file as sound_file
from support.databases import CITUS, KINDS, MakeDatabase
from support.factories import messages
from support.places import fast_folder
from support.postgres_databases import PostgresDatabases
from support.postgres_server import PostgresServer

from lango_store import AsyncStore, Store, create_engine, schema
from lango_store._engine.pool import _engines
from lango_store.testing import Clock

settings.register_profile(
    "lango",
    deadline=None,
    max_examples=int(os.environ.get("LANGO_STORE_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("lango")
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(fast_folder()))

_server: PostgresServer | None = None


def _server_url() -> str:
    global _server
    given = CITUS or os.environ.get("LANGO_STORE_TEST_POSTGRES")
    if given:
        return given
    if _server is None:
        _server = PostgresServer()
    return _server.url()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped, which a quiet run would not."""
    if pgbouncer.PROGRAM is None:
        terminalreporter.write_line(
            "pgbouncer: not installed, and the tests with this marker were skipped (Debian: apt-get install pgbouncer)"
        )
    if terminalreporter.config.stash.get(_NO_TRIGRAMS, False):
        terminalreporter.write_line(
            "pg_trgm: not on this server, and the tests with this marker were skipped (postgresql-contrib has it)"
        )
    if not CITUS:
        terminalreporter.write_line(
            "citus: LANGO_STORE_TEST_CITUS names no coordinator, and the tests with this marker were skipped"
        )


_NO_TRIGRAMS = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)  # after -k and -m: what is asked for by name runs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    trigrams = [item for item in items if item.get_closest_marker("pg_trgm") and "sqlite" not in item.name]
    config.stash[_NO_TRIGRAMS] = bool(trigrams) and not _has_extension(config, "pg_trgm")
    for item in trigrams if config.stash[_NO_TRIGRAMS] else []:
        item.add_marker(pytest.mark.skip(reason="pg_trgm is not there"))
    lacking = {
        "pgbouncer": pgbouncer.PROGRAM is None,
        "citus": not CITUS,
        "alone": CITUS is not None and "PYTEST_XDIST_WORKER" in os.environ,
    }
    for item in items:
        for name in lacking:
            if lacking[name] and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{name}: not here"))


def _has_extension(config: pytest.Config, name: str) -> bool:
    engine = sa.create_engine(sa.make_url(_url_of(config)).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT 1 FROM pg_available_extensions WHERE name = :name"), {"name": name})
        is_there = found.first() is not None
    engine.dispose()
    return is_there


def _url_of(config: pytest.Config) -> str:
    return getattr(config, "workerinput", {}).get("postgres") or _server_url()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are processors: a third of a test's time it waits for a server or a process."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres"] = _server_url()  # the workers of one run share one server


def pytest_unconfigure(config: pytest.Config) -> None:
    global _server
    if _server is not None:
        _server.stop()
        _server = None


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> sa.URL:
    url = sa.make_url(_url_of(request.config))
    return url if url.query else url.update_query_dict({"target_session_attrs": "any"})  # tests add to what is there


@pytest.fixture(scope="session")
def administrator(server_url: sa.URL) -> Iterator[sa.Engine]:
    engine = sa.create_engine(
        server_url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT", pool_size=1
    )
    yield engine
    engine.dispose()


_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_databases(administrator: sa.Engine, server_url: sa.URL) -> Iterator[PostgresDatabases]:
    databases = (CitusDatabases if CITUS else PostgresDatabases)(administrator, server_url)
    yield databases
    databases.drop_all()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    schema.upgrade(f"sqlite:///{path}")
    return path


def _maker(request: pytest.FixtureRequest, folder: Path, kind: str) -> Iterator[MakeDatabase]:
    if kind == "sqlite":

        def make_file(*, migrated: bool = True) -> str:
            path = folder / f"store-{next(_numbers)}.db"
            if migrated:
                shutil.copy(request.getfixturevalue("migrated_file"), path)
            else:
                path.touch()
            return f"sqlite:///{path}"

        yield make_file
        return
    databases: PostgresDatabases = request.getfixturevalue("postgres_databases")
    yield databases.make
    databases.take_back()


@pytest.fixture(params=KINDS)
def make_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    """Make a database of the kind under test, with our tables unless `migrated=False`; return its URL."""
    yield from _maker(request, tmp_path, request.param)


@pytest.fixture
def make_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    yield from _maker(request, tmp_path, "postgresql")


@pytest.fixture
def make_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    yield from _maker(request, tmp_path, "sqlite")


@pytest.fixture
def url(make_database: MakeDatabase) -> str:
    """The URL of a migrated, empty database."""
    return make_database()


@pytest.fixture
def empty_url(make_database: MakeDatabase) -> str:
    """The URL of a database without any table."""
    return make_database(migrated=False)


@pytest.fixture
def undistributed(make_postgres: MakeDatabase) -> str:
    """The URL of a migrated, empty database of PostgreSQL whose tables are on one server."""
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    return url


@pytest.fixture(autouse=True)
def no_engine_left_open() -> Iterator[None]:
    """Close what a test's borrowed engines have open: no store does it for them."""
    yield
    for engine in list(_engines):
        if not isinstance(engine.pool, sa.QueuePool) or engine.pool.checkedin():  # it may be long forgotten
            engine.dispose()


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = create_engine(url)
    yield made
    made.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    """A store on a migrated, empty database."""
    with Store(url, clock=clock) as opened:
        yield opened


@pytest.fixture(params=["sync", "async"])
def either_store(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[Store]:
    """A store on a migrated, empty database: a `Store`, and an `AsyncStore` with the interface of one."""
    if request.param == "sync":
        yield request.getfixturevalue("store")
    else:
        with awaiting(AsyncStore(url, clock=clock)) as opened:
            yield opened


@pytest.fixture
def one_connection(make_postgres: MakeDatabase) -> Iterator[sa.Engine]:
    engine = create_engine(make_postgres(), pool_size=1)
    yield engine
    engine.dispose()


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    """Ten sessions, made a day apart: the even ones with a TTL of an hour; a day after the last."""
    for n in range(10):
        ttl = None if n % 2 else timedelta(hours=1)
        store.create(f"chat:{n}", agent_id=f"a{n % 3}", user_id=f"u{n % 4}", ttl=ttl, messages=messages(n + 1))
        clock.move(days=1)
    return store
