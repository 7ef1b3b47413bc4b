"""Engines: URLs, connection settings, and replacement of lost connections."""

import os
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from ctypes.util import find_library
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run_process
from support.databases import MakeDatabase
from support.factories import message
from support.processes import run_program

from lango_store import (
    DatabaseError,
    DatabaseUnavailable,
    LangoStoreError,
    SessionExists,
    SessionHeld,
    SessionNotFound,
    Store,
    create_engine,
    interchange,
    read_only_engine,
)
from lango_store._connections import retry


@pytest.mark.slow
def test_error_for_a_missing_driver_names_the_extra_to_install() -> None:
    done = run_process("stats", "--url", "postgresql://host/agents", environment={"PSYCOPG_IMPL": "none"})
    assert re.fullmatch(
        r"error: PostgreSQL's client library is missing \(.*'none'.*\): "
        r"pip install 'lango-store\[postgresql\]', or install libpq\n",
        done.stderr,
    )
    assert done.returncode == 1


_PING_TWICE = """
import sys
from lango_store import Store
with Store(sys.argv[1]) as store:
    store.ping()
    store.ping()
    print([finding.detail for finding in store.maintenance.examine() if finding.name == "settings"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["python", "binary"])
def test_ping_and_doctor_name_a_driver_without_compiled_code(make_postgres: MakeDatabase, implementation: str) -> None:
    if find_library("pq") is None and implementation == "python":
        pytest.skip("psycopg's Python implementation needs the libpq of the system")
    done = subprocess.run(
        [sys.executable, "-c", _PING_TWICE, make_postgres()],
        env={**os.environ, "PSYCOPG_IMPL": implementation},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    named = (done.stdout.count("without compiled code"), done.stderr.count("pip install 'lango-store[postgresql]'"))
    assert named == ((1, 1) if implementation == "python" else (0, 0))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [("PREPARE _pg3_{} AS SELECT 1", "already exists"), ("DEALLOCATE ALL", "does not exist")],
)
def test_error_of_a_connection_with_the_statements_of_another_client_names_prepare_threshold(
    make_postgres: MakeDatabase, statement: str, reason: str
) -> None:
    def load_often(store: Store) -> None:
        for _ in range(10):  # often enough for the driver to prepare the statement
            store.exists("k")

    with Store(create_engine(make_postgres(), pool_size=1, max_overflow=0)) as store:
        store.ping()
        if reason == "does not exist":
            load_often(store)
        with store.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            for number in range(20):  # unknown to psycopg, as if another client had sent it
                driver.pgconn.exec_(statement.format(number).encode())
        with pytest.raises(DatabaseError, match=rf"prepared statement .*{reason}; .*add \?prepare_threshold=none"):
            load_often(store)
        store.engine.dispose()


def test_engine_sets_pragmas_on_each_sqlite_connection(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    for durability, level in (("full", 2), ("normal", 1)):
        engine = create_engine(url, durability=durability)  # type: ignore[arg-type]
        with engine.connect() as connection:

            def pragma(name: str, connection: sa.Connection = connection) -> object:
                return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

            assert pragma("journal_mode") == "wal"
            assert pragma("synchronous") == level
            assert pragma("foreign_keys") == 1
            assert pragma("busy_timeout") == 30_000
        engine.dispose()


def test_unknown_durability_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="durability='none': give 'full' or 'normal'"):
        Store(url, durability="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_url_with_each_scheme_is_accepted_and_connects_in_utc(
    make_postgres: MakeDatabase, scheme: str
) -> None:
    engine = create_engine(f"{scheme}{make_postgres().removeprefix('postgresql+psycopg')}")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW timezone").scalar() == "UTC"
    with Store(engine) as store:
        assert store.create("k").key == "k"
    engine.dispose()


def test_new_connection_to_a_server_in_utc_sends_no_statement(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres())
    with engine.connect() as first, engine.connect() as second:
        pid = second.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        found = first.exec_driver_sql("SELECT query FROM pg_stat_activity WHERE pid = %s", (pid,))
        assert found.scalar() == ""
    engine.dispose()


@pytest.mark.parametrize(("given", "used"), [("none", None), ("0", 0), ("7", 7)])
def test_prepare_threshold_is_read_from_url(make_postgres: MakeDatabase, given: str, used: int | None) -> None:
    with Store(f"{make_postgres()}&prepare_threshold={given}") as store:
        store.create("k")
        for _ in range(12):
            store.append_message("k", message())
        with store.engine.connect() as connection:
            assert connection.connection.dbapi_connection.prepare_threshold == used  # type: ignore[union-attr]
            prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
            assert (prepared == 0) == (used is None)


def test_store_refuses_an_engine_for_mysql() -> None:
    engine = sa.create_mock_engine("mysql://", lambda *_: None)
    with pytest.raises(TypeError, match="URL"):
        Store(engine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not supported: use sqlite or"):
        Store(sa.create_engine("mysql+pymysql://x/y", module=sqlite3))  # so that no driver is needed


def test_store_constructor_opens_no_connection(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path}/never.db", migrate=True).close()
    Store("postgresql://nobody@127.0.0.1:1/never").close()
    assert list(tmp_path.iterdir()) == []


def test_pool_replaces_connections_that_the_server_closed(
    make_postgres: MakeDatabase, administrator: sa.Engine
) -> None:
    with Store(make_postgres()) as store:
        store.create("k")
        store.append_message("k", message())
        with administrator.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (store.engine.url.database,),
            )
        assert store.append_message("k", message()).seq == 2
        assert len(store.get("k").messages) == 2


def test_database_with_latin1_encoding_is_refused(make_postgres: MakeDatabase, administrator: sa.Engine) -> None:
    name = f"latin_{os.getpid()}"
    with administrator.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0 STRATEGY FILE_COPY"
        )
    url = sa.make_url(make_postgres()).set(database=name)
    with Store(url) as store, pytest.raises(LangoStoreError, match="UTF8"):
        store.ping()
    with administrator.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")


def test_append_on_full_disk_raises_and_writes_nothing(make_sqlite: MakeDatabase) -> None:
    with Store(create_engine(make_sqlite(), pool_size=1, max_overflow=0)) as store:
        store.create("k", messages=[message("a")])
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DatabaseUnavailable, match="make room"):
            store.conversation("k").append_messages([message("b"), message("x" * 1_000_000)])
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        assert [m.content for m in store.conversation("k").messages()] == ["a"]
        assert store.append_message("k", message("b")).seq == 2


def test_append_whose_commit_fails_raises_and_writes_nothing(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite())
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE host (id INTEGER PRIMARY KEY)",
            "CREATE TABLE log (host INTEGER REFERENCES host (id) DEFERRABLE INITIALLY DEFERRED)",
            "CREATE TRIGGER logs AFTER INSERT ON lango_message BEGIN INSERT INTO log VALUES (1); END",
        ):
            connection.exec_driver_sql(statement)
    with Store(engine) as store:
        store.create("k")
        with pytest.raises(SessionHeld, match="FOREIGN KEY") as raised:
            store.append_message("k", message())
        pool: Any = engine.pool
        assert pool.checkedout() == 0, raised.value  # the error keeps all objects of its traceback alive
        assert store.conversation("k").info().message_count == 0
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO host VALUES (1)")
        assert store.append_message("k", message()).seq == 1
    engine.dispose()


def test_store_in_memory_keeps_its_sessions_after_an_error() -> None:
    with Store("sqlite://", migrate=True) as store:
        store.create("k")
        with pytest.raises(SessionExists):
            store.create("k")
        with pytest.raises(SessionNotFound):
            store.append_message("nobody", message())
        assert store.count() == 1


def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    torn = tmp_path / "torn.db"
    torn.write_bytes(b"this is not a database, " * 500)
    for url in (f"sqlite:///{torn}", f"sqlite:///{tmp_path}/no/folder/x.db"):
        with Store(url) as store, pytest.raises(DatabaseUnavailable):
            store.ping()


READ_ONLY = """
import sys
from lango_store import DatabaseUnavailable, Message, Store
with Store(sys.argv[1]) as store:
    print([m.content for m in store.get("k").messages], store.count())
    try:
        store.append_message("k", Message(role="user", content="b"))
    except DatabaseUnavailable as error:
        print("writable" in str(error))
"""


def test_store_can_read_but_not_write_a_read_only_file(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    with Store(url) as store:
        store.create("k", messages=[message("a")])
    path = Path(url.removeprefix("sqlite:///"))
    done = run_program(READ_ONLY, f"sqlite:///file:{path}?mode=ro&uri=true")
    assert (done.stdout, done.stderr) == ("['a'] 1\nTrue\n", "")


@pytest.mark.parametrize("name", ["agent.db", "a b?c%25#.db"])
def test_read_only_engine_neither_changes_nor_creates_a_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    url = sa.URL.create("sqlite", database=str(file))
    with Store(create_engine(url), migrate=True) as store:
        store.create("k", messages=[message("a")])
    store.engine.dispose()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    before = file.read_bytes()

    engine = read_only_engine(url)
    with Store(engine) as reader:
        assert [each.content for each in reader.get("k").messages] == ["a"]
        with pytest.raises(DatabaseUnavailable, match="not writable"):
            reader.append_message("k", message())
    engine.dispose()
    missing = read_only_engine(url.set(database=f"{file}.missing"))
    with Store(missing) as reader, pytest.raises(DatabaseUnavailable, match="unable to open"):
        reader.ping()
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_statements_of_the_application_can_be_rolled_back_after_an_append(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message())

        def delete() -> None:
            with engine.connect() as connection:
                connection.execute(sa.text("DELETE FROM lango_message"))
                connection.rollback()

        delete()
        with ThreadPoolExecutor(1) as thread:  # a thread that has not used the store yet
            thread.submit(delete).result()
        assert len(store.get("k").messages) == 1
    engine.dispose()


def test_raw_connection_still_begins_transactions_after_an_append(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres(), pool_size=1)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message())
        raw = engine.raw_connection()
        raw.cursor().execute("DELETE FROM lango_message")
        raw.close()
        assert len(store.get("k").messages) == 1
    engine.dispose()


def test_append_on_one_engine_does_not_turn_on_autocommit_of_another_engine(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    host, engine = sa.create_engine(url), create_engine(url)
    with Store(host) as store:
        store.create("k")
        store.append_message("k", message())
        raw: Any = engine.raw_connection()
        assert not raw.driver_connection.autocommit
        raw.close()
    for each in (host, engine):
        each.dispose()


@pytest.mark.parametrize("moment", ["checkout", "checkin", "reset"])
def test_pool_event_fires_once_for_each_call_of_the_store(url: str, moment: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message())
        told: list[object] = []
        sa.event.listen(engine, moment, lambda *given: told.append(given))
        store.append_message("k", message())
        store.get("k")
        assert len(told) == 2
    engine.dispose()


@pytest.mark.parametrize(
    "setting",
    [
        "client_encoding=LATIN1",
        "options=-cdatestyle%3DGerman",
        "options=-cdatestyle%3DSQL,DMY",
        "options=-ctimezone%3DAmerica/New_York",
        "options=-ctimezone%3DAsia/Tokyo",
    ],
)
def test_settings_of_the_url_do_not_change_how_values_are_sent(make_postgres: MakeDatabase, setting: str) -> None:
    url = make_postgres()
    times = [
        datetime(2026, 2, 1, 3, 4, 5, 678, UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ]
    with Store(f"{url}{'&' if '?' in url else '?'}{setting}") as store:
        store.create("k", messages=[message("日本語 😀", created_at=time) for time in times])
        assert [(each.content, each.created_at) for each in store.get("k").messages] == [
            ("日本語 😀", time) for time in times
        ]


def test_null_fields_are_stored_on_a_server_with_array_nulls_off(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    with Store(f"{make_postgres()}&options=-carray_nulls%3Doff") as store:
        store.create("k", messages=[message(), message()])
        store.conversation("k").append_messages([message(), message(tokens=1, name="null")])
        before = store.get("k").messages
        interchange.export(store, tmp_path / "a.jsonl", "backup", everything=True)
        store.delete("k")
        interchange.import_path(store, tmp_path / "a.jsonl")
        assert store.get("k").messages == before
        assert [(each.tokens, each.name) for each in before] == [(None, None)] * 3 + [(1, "null")]


@pytest.mark.parametrize("setting", ["datestyle=German", "client_encoding=LATIN1"])
def test_engine_of_the_application_with_unreadable_values_is_refused_before_a_write(
    make_postgres: MakeDatabase, setting: str
) -> None:
    url = make_postgres()
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"), connect_args={"options": f"-c{setting}"}
    )
    with pytest.raises(LangoStoreError, match=f"(?i){setting.partition('=')[0]}"):
        Store(engine).append_message("k", message(), create=True)
    engine.dispose()
    with Store(url) as store:
        assert not store.exists("k")


@pytest.mark.parametrize("state", ["25P03", "25P04"])
def test_timeout_that_ends_a_transaction_raises_database_unavailable(
    make_postgres: MakeDatabase, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(retry, "_LOCK_TIMEOUT", 1.0)  # for how long a rolled back call is repeated
    with Store(make_postgres()) as store:
        store.create("k")
        with store.engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION time_out() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$BEGIN RAISE SQLSTATE '{state}'; END$$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER time_out BEFORE INSERT ON lango_message EXECUTE FUNCTION time_out()"
            )
        with pytest.raises(DatabaseUnavailable, match="rolled back: try again"):
            store.append_message("k", message())
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER time_out ON lango_message")
        assert store.append_message("k", message()).seq == 1
