"""Tables spread over the nodes of a cluster and brought back: with their rows, and all or nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest
import sqlalchemy as sa
from clusters import TABLES, contents, distributed, fill, foreign_keys, say, workers
from commands import run, run_on_terminal
from conftest import MakeDatabase
from factories import message
from processes import run_program

from lango_store import (
    DatabaseBusy,
    DatabaseUnavailable,
    LangoStoreError,
    SchemaOutOfDate,
    Store,
    create_engine,
    schema,
)
from lango_store.schema import Progress

KEPT = ["fk_lango_message_session", "fk_lango_turn_session"]
ALL_KEYS = [*KEPT, "fk_lango_value_session"]

DISTRIBUTE = """
import sys
from lango_store import schema

print(schema.distribute(sys.argv[1], on_progress=lambda progress: print(progress.table, flush=True)))
"""


@pytest.fixture
def cluster(make_postgres: MakeDatabase) -> str:
    """The coordinator's URL of a database with rows in our tables, which are not distributed."""
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    fill(url)
    return url


@pytest.fixture
def empty_cluster(make_postgres: MakeDatabase) -> str:
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    return url


def is_whole(url: str) -> bool:
    """Whether our tables are distributed as they should be, and have no rows on the coordinator."""
    placed = distributed(url)
    columns = {"lango_session": "key", "lango_value": "scope"}
    return (
        {table: placed[table][0] for table in TABLES} == {table: columns.get(table, "session_key") for table in TABLES}
        and len({placed[table][1] for table in TABLES}) == 1
        and placed["lango_store_version"][0] is None
        and say(url, f"SELECT {' + '.join(f'pg_relation_size({table!r})' for table in TABLES)}") == [(0,)]
        and foreign_keys(url) == KEPT
    )


# Without a cluster


def test_a_file_is_not_distributed(make_sqlite: MakeDatabase) -> None:
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(LangoStoreError, match="lango-store copy"):
            move(make_sqlite())


def test_without_citus_the_next_step_is_said(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, "DROP EXTENSION IF EXISTS citus CASCADE")
    schema.upgrade(url)
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(LangoStoreError, match="CREATE EXTENSION citus"):
            move(url)
    done = run("db", "distribute", "--dry-run", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "CREATE EXTENSION citus" in done.stderr


# There and back


@pytest.mark.citus
def test_the_tables_are_distributed_by_the_session_and_brought_back(cluster: str) -> None:
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
def test_a_dry_run_changes_nothing_and_gives_the_statements(cluster: str) -> None:
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
def test_commands_do_what_the_functions_do(cluster: str) -> None:
    environment = {"LANGO_STORE_URL": cluster}
    shown = run("db", "distribute", "--dry-run", environment=environment)
    assert (shown.returncode, shown.stdout.count("create_distributed_table")) == (0, len(TABLES))
    assert shown.stdout.startswith("BEGIN;\nLOCK TABLE")
    assert shown.stdout.endswith(";\nCOMMIT;\n")
    assert not distributed(cluster)
    for words, said in (
        (("db", "distribute"), "the tables are distributed by the session's key now\n"),
        (("db", "distribute"), "nothing to do: the tables are distributed by the session's key already\n"),
        (("db", "check"), "the schema is the one this release needs\n"),
        (("db", "undistribute"), "the tables are not distributed now\n"),
        (("db", "undistribute"), "nothing to do: the tables are not distributed already\n"),
    ):
        done = run(*words, environment=environment)
        assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.citus
def test_progress_is_told_table_by_table(cluster: str) -> None:
    for move in (schema.distribute, schema.undistribute):
        seen: list[Progress] = []
        move(cluster, on_progress=seen.append)
        finished = {each.table: each.total for each in seen if each.rows == each.total}
        assert finished["lango_session"] == 20
        assert next(each for each in seen if each.table == "lango_session") == Progress("lango_session", 0, 20)


@pytest.mark.citus
def test_a_terminal_shows_which_table_is_moved(cluster: str) -> None:
    shown, code = run_on_terminal("db", "distribute", "--url", cluster)
    assert code == 0, shown
    assert "moving lango_message" in shown
    assert "the tables are distributed by the session's key now" in shown


@pytest.mark.citus
def test_a_schema_of_ones_own_and_the_rights_in_it_stay(make_postgres: MakeDatabase) -> None:
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
def test_on_a_callers_connection_the_caller_commits(cluster: str) -> None:
    engine = create_engine(cluster)
    with engine.connect() as connection:
        assert schema.distribute(connection)
        connection.rollback()
        assert distributed(cluster) == {}
        assert schema.distribute(connection)
        connection.commit()
    engine.dispose()
    assert is_whole(cluster)


# Half done


@pytest.mark.citus
@pytest.mark.parametrize("table", TABLES)
def test_killed_in_the_middle_nothing_is_done_and_the_next_one_does_it(cluster: str, table: str) -> None:
    rows = contents(cluster)
    killing = DISTRIBUTE.replace("print(progress.table, flush=True)", "progress.table == sys.argv[2] and kill()")
    kill = "import os, signal\nkill = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
    done = run_program(kill + killing, cluster, table)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert contents(cluster) == rows  # which waits until the server has noticed
    assert (distributed(cluster), foreign_keys(cluster)) == ({}, ALL_KEYS)
    assert schema.distribute(cluster)
    assert is_whole(cluster)
    assert contents(cluster) == rows


BY_HAND = [
    "ALTER TABLE lango_value DROP CONSTRAINT fk_lango_value_session",
    "SELECT create_distributed_table('lango_session', 'key')",
    "SELECT create_distributed_table('lango_message', 'session_key', colocate_with => 'lango_session')",
    "SELECT create_distributed_table('lango_value', 'scope', colocate_with => 'lango_session')",
    "SELECT create_reference_table('lango_store_version')",
]


@pytest.mark.citus
@pytest.mark.parametrize("number", range(1, len(BY_HAND) + 1))
def test_what_was_begun_by_hand_is_finished_or_undone(cluster: str, number: int) -> None:
    rows = contents(cluster)
    say(cluster, *BY_HAND[:number])
    assert schema.distribute(cluster)
    assert is_whole(cluster)
    assert contents(cluster) == rows
    schema.undistribute(cluster)
    say(cluster, *BY_HAND[:number])
    assert schema.undistribute(cluster)
    assert (distributed(cluster), foreign_keys(cluster)) == ({}, ALL_KEYS)
    assert contents(cluster) == rows


# What stands in the way

TRIGGER = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'"
OBSTACLES = {
    "a trigger": (TRIGGER, "CREATE TRIGGER t BEFORE INSERT ON lango_session FOR EACH ROW EXECUTE FUNCTION f()"),
    "a rule": ("CREATE RULE r AS ON DELETE TO lango_message DO ALSO NOTIFY gone",),
    "a policy with a query": ("CREATE POLICY p ON lango_turn USING (id IN (SELECT rolname FROM pg_roles))",),
    "a foreign key into our tables": ("CREATE TABLE ticket (chat text REFERENCES lango_session (key))",),
    "a foreign key out of our tables": (
        "CREATE TABLE person (id text PRIMARY KEY)",
        "INSERT INTO person SELECT user_id FROM lango_session WHERE user_id IS NOT NULL",
        "ALTER TABLE lango_session ADD CONSTRAINT of_a_person FOREIGN KEY (user_id) REFERENCES person (id)",
    ),
}
REMEDY = r"(?:DROP TRIGGER \w+ ON \w+|DROP RULE \w+ ON \w+|ALTER TABLE \w+ DROP CONSTRAINT \w+)"


@pytest.mark.citus
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES.keys())
def test_what_stands_in_the_way_is_refused_with_the_way_out(empty_cluster: str, obstacle: tuple[str, ...]) -> None:
    say(empty_cluster, *obstacle)
    with pytest.raises(LangoStoreError) as refused:
        schema.distribute(empty_cluster)
    with pytest.raises(LangoStoreError, match=re.escape(str(refused.value))):
        schema.distribute(empty_cluster, dry_run=True)
    assert distributed(empty_cluster) == {}
    assert foreign_keys(empty_cluster)[-len(ALL_KEYS) :] == ALL_KEYS or "of_a_person" in foreign_keys(empty_cluster)
    remedies = re.findall(REMEDY, str(refused.value)) or ["DROP POLICY p ON lango_turn"]
    say(empty_cluster, *remedies)
    schema.distribute(empty_cluster)
    assert is_whole(empty_cluster)


@pytest.mark.citus
def test_all_that_stands_in_the_way_is_said_at_once(empty_cluster: str) -> None:
    for obstacle in OBSTACLES.values():
        say(empty_cluster, *obstacle)
    with pytest.raises(LangoStoreError) as refused:
        schema.distribute(empty_cluster)
    for name in ("trigger t", "rule r", "policy p", "ticket_chat_fkey", "of_a_person"):
        assert name in str(refused.value)


@pytest.mark.citus
def test_a_foreign_key_of_a_host_stands_in_the_way_back_too(cluster: str) -> None:
    schema.distribute(cluster)
    say(
        cluster,
        'CREATE TABLE ticket (chat text COLLATE "C", number integer)',
        "SELECT create_distributed_table('ticket', 'chat', colocate_with => 'lango_session')",
        "ALTER TABLE ticket ADD CONSTRAINT of_a_chat FOREIGN KEY (chat) REFERENCES lango_session (key)",
    )
    with pytest.raises(LangoStoreError, match="ALTER TABLE ticket DROP CONSTRAINT of_a_chat"):
        schema.undistribute(cluster)
    assert "ticket" in distributed(cluster)
    assert is_whole(cluster)


@pytest.mark.citus
def test_the_search_index_stands_in_the_way(cluster: str) -> None:
    schema.enable_search(cluster)
    with pytest.raises(LangoStoreError, match="lango-store search disable"):
        schema.distribute(cluster)
    schema.disable_search(cluster)
    schema.distribute(cluster)
    assert is_whole(cluster)
    for make in (schema.enable_search, schema.rebuild_search):
        with pytest.raises(LangoStoreError, match="tables are distributed"):
            make(cluster)
    assert schema.disable_search(cluster) is False
    schema.undistribute(cluster)
    assert schema.enable_search(cluster).state == "ready"


@pytest.mark.citus
def test_tables_of_another_revision_are_not_distributed(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(SchemaOutOfDate, match="lango-store db upgrade"):
            move(url)
    schema.upgrade(url)
    say(url, "UPDATE lango_store_version SET version_num = '9999'")
    with pytest.raises(SchemaOutOfDate, match="upgrade the package"):
        schema.distribute(url)


@pytest.mark.citus
def test_who_does_not_own_the_tables_is_told_so(cluster: str, request: pytest.FixtureRequest) -> None:
    say(cluster, "DROP ROLE IF EXISTS lango_visitor", "CREATE ROLE lango_visitor LOGIN")
    request.addfinalizer(lambda: say(cluster, "DROP OWNED BY lango_visitor", "DROP ROLE lango_visitor"))
    say(cluster, "GRANT ALL ON ALL TABLES IN SCHEMA public TO lango_visitor")
    visitor = sa.make_url(cluster).set(username="lango_visitor").render_as_string(hide_password=False)
    with pytest.raises(LangoStoreError, match="does not own lango_message"):
        schema.distribute(visitor)


@pytest.mark.citus
def test_the_owner_of_the_tables_need_not_be_a_superuser(
    make_postgres: MakeDatabase, request: pytest.FixtureRequest
) -> None:
    url = make_postgres(migrated=False)
    say(url, "CREATE ROLE lango_owner LOGIN")
    request.addfinalizer(lambda: say(url, "DROP OWNED BY lango_owner", "DROP ROLE lango_owner"))
    say(url, "GRANT CREATE ON SCHEMA public TO lango_owner")
    owner = sa.make_url(url).set(username="lango_owner").render_as_string(hide_password=False)
    schema.upgrade(owner)
    fill(owner)
    rows = contents(owner)
    schema.distribute(owner)
    assert is_whole(owner)
    assert contents(owner) == rows
    schema.undistribute(owner)
    assert contents(owner) == rows


@pytest.mark.citus
def test_without_a_node_for_rows_the_next_step_is_said(cluster: str) -> None:
    say(cluster, "SELECT citus_set_node_property(nodename, nodeport, 'shouldhaveshards', false) FROM pg_dist_node")
    with pytest.raises(LangoStoreError, match="citus_add_node"):
        schema.distribute(cluster)


@pytest.mark.citus
def test_values_without_a_session_stand_in_the_way_back_until_doctor_has_deleted_them(cluster: str) -> None:
    schema.distribute(cluster)
    say(cluster, "INSERT INTO lango_value VALUES ('gone', 'mood', '1', 'gone', now())")
    with pytest.raises(LangoStoreError, match=r"1 rows of lango_value belong to no session.*doctor --repair"):
        schema.undistribute(cluster)
    assert is_whole(cluster)
    with Store(cluster) as store:
        (found,) = [each for each in store.examine(repair=True) if each.name == "orphans"]
    assert found.repaired
    schema.undistribute(cluster)
    assert foreign_keys(cluster) == ALL_KEYS


# Beside others


@pytest.mark.citus
@pytest.mark.parametrize("move", [schema.distribute, schema.undistribute])
def test_a_table_in_use_is_waited_for_as_long_as_was_said(cluster: str, move: Callable[..., list[str]]) -> None:
    if move is schema.undistribute:
        schema.distribute(cluster)
    before = distributed(cluster)
    engine = create_engine(cluster if move is schema.distribute else workers(cluster)[0])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lango_message")
        with pytest.raises(
            (DatabaseBusy, DatabaseUnavailable)
        ):  # by way of a worker, Citus says what it calls essential
            move(cluster, lock_timeout=0.2)
    engine.dispose()
    assert distributed(cluster) == before
    assert move(cluster)


@pytest.mark.citus
def test_writers_wait_and_lose_nothing(cluster: str) -> None:
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
        assert [text for (text,) in texts[7:]] == [f"{number}:{place}" for place in range(count)]
    assert schema.check(cluster) == []


def until_done(move: Callable[[str], list[str]], url: str) -> None:
    """Try again what another transaction was in the way of, as an operator would."""
    for _ in range(20):
        try:
            assert move(url)
        except DatabaseBusy:
            continue
        return
    raise AssertionError("it found no moment")


@pytest.mark.citus
def test_a_migration_and_a_distribution_wait_for_each_other(cluster: str) -> None:
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
def test_a_worker_is_refused_with_the_coordinators_name(empty_cluster: str) -> None:
    made = sa.make_url(empty_cluster)
    for url in workers(empty_cluster):
        for change in (schema.distribute, schema.undistribute, schema.upgrade):
            with pytest.raises(LangoStoreError, match=rf"worker of a Citus cluster.*{made.host}:{made.port}"):
                change(url)


# Doctor


def findings(url: str) -> list[tuple[str, str]]:
    with Store(url) as store:
        return [(each.detail, each.remedy) for each in store.examine() if each.name == "distribution"]


APART = {
    "the revision is not everywhere": (
        "SELECT undistribute_table('lango_store_version')",
        "lango_store_version is not distributed",
        "db distribute",
    ),
    "one is not": ("SELECT undistribute_table('lango_value')", "lango_value is not distributed", "db distribute"),
    "another group": (
        "SELECT alter_distributed_table('lango_value', colocate_with => 'none')",
        "lango_value is not colocated with lango_session",
        "db undistribute",
    ),
    "another column": (
        "SELECT alter_distributed_table('lango_value', distribution_column => 'name')",
        "lango_value is distributed by name, not by scope",
        "db undistribute",
    ),
}


@pytest.mark.citus
def test_doctor_names_rows_that_a_distribution_by_hand_has_left_behind(cluster: str) -> None:
    say(cluster, *BY_HAND)
    told = findings(cluster)
    assert "lango_message has rows on the coordinator that nobody sees" in dict(told)
    schema.distribute(cluster)
    assert findings(cluster) == []


@pytest.mark.citus
@pytest.mark.parametrize("change", APART.values(), ids=APART.keys())
def test_doctor_names_a_table_that_is_not_distributed_like_the_others(cluster: str, change: tuple[str, ...]) -> None:
    assert findings(cluster) == []
    schema.distribute(cluster)
    assert findings(cluster) == []
    statement, detail, remedy = change
    say(cluster, statement)
    ((found, next_),) = findings(cluster)
    assert detail in found
    assert remedy in next_
    if remedy == "db undistribute":
        with pytest.raises(LangoStoreError, match=detail):
            schema.distribute(cluster)
        schema.undistribute(cluster)
    schema.distribute(cluster)
    assert findings(cluster) == []
    assert is_whole(cluster)
