"""Databases, clocks and stores for all tests, which run on SQLite and on a real PostgreSQL server."""

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
    derandomize="CI" in os.environ,  # a run of a commit has one result; elsewhere, each run tries other examples
)
settings.load_profile("lango")
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(fast_folder()))

_server: PostgresServer | None = None


def _server_url() -> str:
    global _server
    url = CITUS or os.environ.get("LANGO_STORE_TEST_POSTGRES")
    if url:
        return url
    if _server is None:
        try:
            _server = PostgresServer()
        except RuntimeError as error:
            raise pytest.UsageError(str(error)) from None
    return _server.url()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report skipped markers, which a quiet run does not mention."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--few", action="store_true", help="run at most two cases of each parametrized test")


_NEED_POSTGRESQL = {"make_postgres", "postgres_databases", "server_url", "administrator"}


@pytest.hookimpl(tryfirst=True)  # before -m deselects tests
def pytest_itemcollected(item: pytest.Item) -> None:
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    if "postgresql" in parameters or _NEED_POSTGRESQL & set(getattr(item, "fixturenames", ())):
        item.add_marker("postgresql")


@pytest.hookimpl(trylast=True)  # after -k and -m have deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--few"):
        _leave_out_cases(config, items)
    trigrams = [item for item in items if item.get_closest_marker("pg_trgm") and "sqlite" not in item.name]
    config.stash[_NO_TRIGRAMS] = bool(trigrams) and not _has_extension(config, "pg_trgm")
    for item in trigrams if config.stash[_NO_TRIGRAMS] else []:
        item.add_marker(pytest.mark.skip(reason="pg_trgm is not available"))
    missing = {
        "pgbouncer": pgbouncer.PROGRAM is None,
        "citus": not CITUS,
        "alone": CITUS is not None and "PYTEST_XDIST_WORKER" in os.environ,
    }
    for item in items:
        for name in missing:
            if missing[name] and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{name} is not available"))


def _leave_out_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first and the last case of each parametrized test."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for group in cases.values() for item in group[1:-1]}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def _has_extension(config: pytest.Config, name: str) -> bool:
    engine = sa.create_engine(sa.make_url(_url_of(config)).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        extension = connection.execute(
            sa.text("SELECT 1 FROM pg_available_extensions WHERE name = :name"), {"name": name}
        )
        is_available = extension.first() is not None
    engine.dispose()
    return is_available


def _url_of(config: pytest.Config) -> str:
    return getattr(config, "workerinput", {}).get("postgres") or _server_url()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker more than processors, because tests wait for servers and processes."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if "not postgresql" not in node.config.getoption("markexpr"):
        node.workerinput["postgres"] = _server_url()  # all workers of a run share one server


def pytest_unconfigure(config: pytest.Config) -> None:
    global _server
    if _server is not None:
        _server.stop()
        _server = None


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> sa.URL:
    url = sa.make_url(_url_of(request.config))
    return url if url.query else url.update_query_dict({"target_session_attrs": "any"})  # tests append more parameters


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "make_database" in metafunc.fixturenames:
        is_alike = metafunc.definition.get_closest_marker("one_database") is not None
        metafunc.parametrize("make_database", KINDS[:1] if is_alike else KINDS, indirect=True)


@pytest.fixture
def make_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    """Return a function that makes a database, migrated unless `migrated=False`, and returns its URL."""
    yield from _maker(request, tmp_path, request.param)


@pytest.fixture
def make_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    yield from _maker(request, tmp_path, "postgresql")


@pytest.fixture
def make_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDatabase]:
    yield from _maker(request, tmp_path, "sqlite")


@pytest.fixture
def url(make_database: MakeDatabase) -> str:
    """Return the URL of a migrated, empty database."""
    return make_database()


@pytest.fixture
def empty_url(make_database: MakeDatabase) -> str:
    """Return the URL of a database without tables."""
    return make_database(migrated=False)


@pytest.fixture
def undistributed(make_postgres: MakeDatabase) -> str:
    """Return the URL of a migrated, empty PostgreSQL database that is not distributed."""
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    return url


@pytest.fixture(autouse=True)
def no_engine_left_open() -> Iterator[None]:
    """Close the connections of engines that a test created; stores do not close them."""
    yield
    for engine in list(_engines):
        if (
            not isinstance(engine.pool, sa.QueuePool) or engine.pool.checkedin()
        ):  # skip engines without open connections
            engine.dispose()


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    created = create_engine(url)
    yield created
    created.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    """Yield a store on a migrated, empty database."""
    with Store(url, clock=clock) as yielded:
        yield yielded


@pytest.fixture
def keeping(url: str, clock: Clock) -> Iterator[Store]:
    """Yield a store on an empty database that keeps removed messages for 30 days."""
    with Store(url, clock=clock, keep_removed=timedelta(days=30)) as yielded:
        yield yielded


@pytest.fixture(params=["sync", "async"])
def either_store(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[Store]:
    """Yield a `Store`, then an `AsyncStore` wrapped in the interface of `Store`, on an empty database."""
    if request.param == "sync":
        yield request.getfixturevalue("store")
    else:
        with awaiting(AsyncStore(url, clock=clock)) as yielded:
            yield yielded


@pytest.fixture
def one_connection(make_postgres: MakeDatabase) -> Iterator[sa.Engine]:
    engine = create_engine(make_postgres(), pool_size=1)
    yield engine
    engine.dispose()


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    """Return a store of ten sessions created a day apart, those with even numbers with a TTL of an hour."""
    for n in range(10):
        ttl = None if n % 2 else timedelta(hours=1)
        store.create(f"chat:{n}", agent_id=f"a{n % 3}", user_id=f"u{n % 4}", ttl=ttl, messages=messages(n + 1))
        clock.move(days=1)
    return store
