"""Distributing and undistributing tables with their rows, atomically."""

import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest
import sqlalchemy as sa
from support.clusters import (
    ALL_KEYS,
    TABLES,
    contents,
    distributed,
    fill,
    foreign_keys,
    is_whole,
    say,
    workers,
)
from support.commands import run, run_on_terminal
from support.databases import MakeDatabase
from support.factories import message
from support.processes import run_program

from lango_store import (
    DatabaseBusy,
    DatabaseUnavailable,
    LangoStoreError,
    Store,
    create_engine,
    schema,
)
from lango_store.schema import Progress

DISTRIBUTE = """
import sys
from lango_store import schema

print(schema.distribute(sys.argv[1], on_progress=lambda progress: print(progress.table, flush=True)))
"""


@pytest.fixture
def cluster(undistributed: str) -> str:
    """The coordinator's URL of a database with rows in tables that are not distributed."""
    fill(undistributed)
    return undistributed


# Distribution and undistribution


@pytest.mark.citus
def test_distribute_and_undistribute_move_the_tables_with_all_rows(cluster: str) -> None:
    rows = contents(cluster)
    assert schema.distribute(cluster)
    assert is_whole(cluster)
    assert contents(cluster) == rows
    assert schema.check(cluster) == []
    assert schema.distribute(cluster) == []

    assert schema.undistribute(cluster)
    assert distributed(cluster) == {}
    assert foreign_keys(cluster) == ALL_KEYS
    assert contents(cluster) == rows
    assert schema.check(cluster) == []
    assert schema.undistribute(cluster) == []


@pytest.mark.citus
def test_dry_run_of_distribution_returns_statements_and_changes_nothing(cluster: str) -> None:
    statements = schema.distribute(cluster, dry_run=True)
    assert distributed(cluster) == {}
    assert foreign_keys(cluster) == ALL_KEYS
    say(cluster, "BEGIN", *statements, "COMMIT")
    assert is_whole(cluster)
    statements = schema.undistribute(cluster, dry_run=True)
    assert is_whole(cluster)
    say(cluster, "BEGIN", *statements, "COMMIT")
    assert (distributed(cluster), foreign_keys(cluster)) == ({}, ALL_KEYS)


@pytest.mark.citus
def test_distribute_and_undistribute_commands_print_where_the_tables_are(cluster: str) -> None:
    environment = {"LANGO_STORE_URL": cluster}
    shown = run("db", "distribute", "--dry-run", environment=environment)
    assert (shown.returncode, shown.stdout.count("create_distributed_table")) == (0, len(TABLES))
    assert shown.stdout.startswith("BEGIN;\nLOCK TABLE")
    assert shown.stdout.endswith(";\nCOMMIT;\n")
    assert not distributed(cluster)
    for words, said in (
        (("db", "distribute"), "the tables are now distributed by session key\n"),
        (("db", "distribute"), "nothing to do: the tables are already distributed by session key\n"),
        (("db", "check"), "the schema matches this release\n"),
        (("db", "undistribute"), "the tables are now on the coordinator\n"),
        (("db", "undistribute"), "nothing to do: the tables are already on the coordinator\n"),
    ):
        done = run(*words, environment=environment)
        assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.citus
def test_distribution_reports_progress_for_each_table(cluster: str) -> None:
    for move in (schema.distribute, schema.undistribute):
        seen: list[Progress] = []
        move(cluster, on_progress=seen.append)
        finished = {each.table: each.total for each in seen if each.rows == each.total}
        assert finished["lango_session"] == 20
        assert next(each for each in seen if each.table == "lango_session") == Progress(
            table="lango_session", rows=0, total=20
        )


@pytest.mark.citus
def test_distribute_command_on_a_terminal_shows_the_table_being_moved(cluster: str) -> None:
    shown, code = run_on_terminal("db", "distribute", "--url", cluster)
    assert code == 0, shown
    assert "moving lango_" in shown  # the shown tables depend on the speed of each move
    assert "the tables are now distributed by session key" in shown


@pytest.mark.citus
def test_distribution_keeps_the_schema_grants_and_options_of_tables(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, "CREATE SCHEMA \"Mr. O''Neil\"".replace("''", "'"))
    there = url + ("&" if "?" in url else "?") + "options=-csearch_path%3D%22Mr.%5C%20O%27Neil%22"
    schema.upgrade(there)
    fill(there)
    say(there, "GRANT SELECT ON lango_message TO PUBLIC", "ALTER TABLE lango_session SET (fillfactor = 70)")
    of_tables = (
        "SELECT relname, relacl::text, reloptions, relowner FROM pg_class WHERE relname LIKE 'lango%' ORDER BY 1"
    )
    rights, rows = say(there, of_tables), contents(there)
    schema.distribute(there)
    assert say(there, of_tables) == rights
    schema.undistribute(there)
    assert say(there, of_tables) == rights
    assert contents(there) == rows


@pytest.mark.citus
def test_distribute_on_callers_connection_does_not_commit(cluster: str) -> None:
    engine = create_engine(cluster)
    with engine.connect() as connection:
        assert schema.distribute(connection)
        connection.rollback()
        assert distributed(cluster) == {}
        assert schema.distribute(connection)
        connection.commit()
    engine.dispose()
    assert is_whole(cluster)


# Interrupted distribution


@pytest.mark.citus
@pytest.mark.parametrize("table", TABLES)
def test_killed_distribution_changes_nothing_and_can_be_repeated(cluster: str, table: str) -> None:
    rows = contents(cluster)
    killing = DISTRIBUTE.replace("print(progress.table, flush=True)", "progress.table == sys.argv[2] and kill()")
    kill = "import os, signal\nkill = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
    done = run_program(kill + killing, cluster, table)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert contents(cluster) == rows  # waits until the server has rolled back
    assert (distributed(cluster), foreign_keys(cluster)) == ({}, ALL_KEYS)
    assert schema.distribute(cluster)
    assert is_whole(cluster)
    assert contents(cluster) == rows


# Concurrent transactions


@pytest.mark.citus
@pytest.mark.parametrize("move", [schema.distribute, schema.undistribute])
def test_distribution_waits_for_a_locked_table_up_to_lock_timeout(cluster: str, move: Callable[..., list[str]]) -> None:
    if move is schema.undistribute:
        schema.distribute(cluster)
    before = distributed(cluster)
    engine = create_engine(cluster if move is schema.distribute else workers(cluster)[0])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lango_message")
        # If a worker's table is locked, Citus reports a failed connection.
        with pytest.raises((DatabaseBusy, DatabaseUnavailable)):
            move(cluster, lock_timeout=0.2)
    engine.dispose()
    assert distributed(cluster) == before
    assert move(cluster)


@pytest.mark.citus
def test_writers_wait_during_distribution_and_lose_nothing(cluster: str) -> None:
    stop = Event()

    def write(number: int) -> int:
        written = 0
        with Store(cluster, retry=timedelta(seconds=60)) as store:
            while not stop.is_set():
                store.append_message(f"k{number}", message(f"{number}:{written}"))
                written += 1
        return written

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, number) for number in range(4)]
        try:
            for move in (schema.distribute, schema.undistribute, schema.distribute):
                until_done(move, cluster)
        finally:
            stop.set()
        written = [writer.result(60) for writer in writers]
    assert min(written) > 0
    assert is_whole(cluster)
    for number, count in enumerate(written):
        texts = say(cluster, f"SELECT text FROM lango_message WHERE session_key = 'k{number}' ORDER BY seq")
        assert [text for (text,) in texts[-count:]] == [f"{number}:{place}" for place in range(count)]
    assert schema.check(cluster) == []


def until_done(move: Callable[[str], list[str]], url: str) -> None:
    """Retry an operation that another transaction blocked, as an operator would."""
    for _ in range(20):
        try:
            assert move(url)
        except DatabaseBusy:
            continue
        return
    raise AssertionError("it found no moment")


@pytest.mark.citus
def test_migration_and_distribution_wait_for_each_other(cluster: str) -> None:
    order: list[str] = []
    migrations: list[Future[None]] = []

    def migrate() -> None:
        schema.stamp(cluster, "head")
        order.append("migration")

    def on_progress(_: Progress) -> None:
        if not order:
            order.append("distribution")
            migrations.append(pool.submit(migrate))

    with ThreadPoolExecutor(1) as pool:
        schema.distribute(cluster, on_progress=on_progress)
        order.append("distributed")
        migrations[0].result(60)
    assert order == ["distribution", "distributed", "migration"]


@pytest.mark.citus
def test_distribution_through_a_worker_is_refused_with_the_coordinators_address(undistributed: str) -> None:
    made = sa.make_url(undistributed)
    for url in workers(undistributed):
        for change in (schema.distribute, schema.undistribute, schema.upgrade):
            with pytest.raises(LangoStoreError, match=rf"worker of a Citus cluster.*{made.host}:{made.port}"):
                change(url)
