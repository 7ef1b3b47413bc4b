"""Migrations: upgrade, downgrade, schema checks, and concurrent upgrades."""

import logging
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from support.databases import MakeDatabase
from support.factories import message, messages
from support.pages import blocks
from support.paths import ROOT
from support.processes import Program, run_program
from support.revisions import LATER, add_later_revisions

from lango_store import (
    DatabaseBusy,
    LangoStoreError,
    Message,
    SchemaOutOfDate,
    Store,
    UnknownFeature,
    create_engine,
    schema,
)
from lango_store._operations import revision as revisions
from lango_store.tables import BASELINE, SCHEMA_REVISION, VERSION_TABLE, Base
from lango_store.testing import Clock

REVISIONS = [script.revision for script in ScriptDirectory(str(ROOT / "migrations")).walk_revisions()][::-1]


def test_schema_revision_is_the_newest_migration() -> None:
    assert schema.head() == SCHEMA_REVISION == REVISIONS[-1]
    assert sorted(REVISIONS) == REVISIONS
    assert REVISIONS[0] == BASELINE


@pytest.mark.slow
def test_every_migration_revision_upgrades_and_downgrades_with_rows(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    engine = create_engine(empty_url)
    revisions = [*REVISIONS, *LATER]
    for number, revision in enumerate(revisions):
        assert schema.upgrade(engine, revision) == revision
        if number == 0:
            with engine.begin() as connection:
                connection.exec_driver_sql(
                    "INSERT INTO lango_session (key, created_at, updated_at, last_seq, message_count) "
                    "VALUES ('k', '2026-01-01 00:00:00.000000+00:00', '2026-01-01 00:00:00.000000+00:00', 1, 1)"
                )
                connection.exec_driver_sql(
                    "INSERT INTO lango_message (session_key, seq, role, text, created_at) "
                    "VALUES ('k', 1, 'user', 'hi', '2026-01-01 00:00:00.000000+00:00')"
                )
            continue
        assert schema.downgrade(engine, revisions[number - 1]) == revisions[number - 1]
        assert schema.upgrade(engine, revision) == revision
    assert schema.downgrade(engine, SCHEMA_REVISION) == SCHEMA_REVISION
    assert schema.check(engine) == []
    with Store(engine) as store:
        assert [m.content for m in store.get("k").messages] == ["hi"]
        assert store.append_message("k", message()).seq == 2
    assert schema.downgrade(engine, "base") is None
    assert set(sa.inspect(engine).get_table_names()) <= {VERSION_TABLE}
    assert schema.upgrade(engine) == LATER[-1]
    engine.dispose()


def test_upgrade_marks_the_turns_that_forks_copied(url: str) -> None:
    clock = Clock()
    with Store(url, clock=clock) as store:
        store.open("a").save_turn([message()], {"input_tokens": 1})
        clock.move(hours=1)
        store.conversation("a").fork("b").save_turn([message()], {"input_tokens": 10})
    schema.downgrade(url, "0106")
    schema.upgrade(url)
    with Store(url) as store:
        assert [row.input_tokens for row in store.usage()] == [11]


def test_indexes_do_not_depend_on_the_collation_library(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres())
    with engine.connect() as connection:
        query = (
            "SELECT indexrelid::regclass::text, collname FROM pg_index, unnest(indcollation) AS number "
            "JOIN pg_collation c ON c.oid = number WHERE starts_with(indrelid::regclass::text, 'lango_')"
        )
        collations = dict(map(tuple, connection.exec_driver_sql(query)))
    assert {name for name, collation in collations.items() if collation != "C"} == {"lango_store_version_pkc"}
    assert collations["uq_lango_message_id"] == collations["ix_lango_session_user_id"] == "C"
    engine.dispose()


@pytest.mark.slow
def test_upgrade_to_revision_0108_keeps_tables_and_rebuilds_the_indexes_of_identifiers(undistributed: str) -> None:
    schema.downgrade(undistributed, "0107")
    engine = create_engine(undistributed)

    def files() -> dict[str, int]:
        with engine.connect() as connection:
            query = "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname ~ 'lango_'"
            return dict(map(tuple, connection.exec_driver_sql(query)))

    before = files()
    schema.upgrade(engine, "0108")
    changed = {name for name, number in files().items() if number != before.get(name, number)}
    assert changed == {
        "ix_lango_message_taken_by",
        "ix_lango_session_agent_id",
        "ix_lango_session_user_id",
        "uq_lango_inbox_id",
        "uq_lango_message_id",
        "uq_lango_turn_id",
    }
    engine.dispose()


@pytest.mark.slow
def test_upgrade_to_revision_0108_succeeds_after_the_statements_that_remove_repeated_ids(undistributed: str) -> None:
    (statements,) = blocks("UPGRADING.md", "sql")
    with Store(undistributed) as store:
        store.open("k").save_turn([Message.user("x", id="a"), message()], id="t")
        store.open("k").save_turn([Message.user("y", id="b")], id="u")
        store.create("other", messages=[Message.user("z", id="a")])
        schema.downgrade(store.engine, "0107")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP INDEX uq_lango_message_id; DROP INDEX uq_lango_turn_id")
            connection.exec_driver_sql("UPDATE lango_message SET id = 'a'; UPDATE lango_turn SET id = 't'")
            for statement in statements.rstrip().split(";")[:-1]:
                connection.exec_driver_sql(statement)
            for table in ("lango_message", "lango_turn"):
                create = f"CREATE UNIQUE INDEX uq_{table}_id ON {table} (session_key, id) WHERE id IS NOT NULL"
                connection.exec_driver_sql(create)
        schema.upgrade(store.engine)
        conversation = store.open("k")
        assert [each.id for each in conversation.all_messages()] == ["a", None, None]
        assert [turn.id for turn in conversation.turns.list()] == ["t", None]
        assert [each.id for each in store.conversation("other").messages()] == ["a"]
        assert schema.check(store.engine) == []


def test_error_for_a_missing_schema_names_the_upgrade_command(empty_url: str) -> None:
    with Store(empty_url) as store:
        for _ in range(2):
            with pytest.raises(SchemaOutOfDate, match="lango-store db upgrade") as raised:
                store.create("k")
        assert (raised.value.found, raised.value.needed) == (None, SCHEMA_REVISION)
        schema.upgrade(store.engine)
        store.create("k")


def test_error_for_an_older_schema_names_both_revisions(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch, needed=True)
    with Store(url) as store, pytest.raises(SchemaOutOfDate, match=f"{SCHEMA_REVISION}.*{LATER[-1]}.*db upgrade"):
        store.ping()
    assert "lango-store db upgrade" in schema.check(url)[0]
    with Store(url, migrate=True) as store:
        store.create("k", messages=messages(2))
    assert schema.current(url) == LATER[-1]


def opened(url: str, *, migrate: bool = False) -> None:
    with Store(url, migrate=migrate) as store:
        store.ping()


WAYS: dict[str, Callable[[str], object]] = {
    "open": opened,
    "open and migrate": lambda url: opened(url, migrate=True),
    "upgrade": schema.upgrade,
    "downgrade": lambda url: schema.downgrade(url, "base"),
    "stamp": lambda url: schema.stamp(url, SCHEMA_REVISION),
    "sql": schema.sql,
}


@pytest.mark.parametrize("way", WAYS)
def test_database_of_an_unknown_older_migration_revision_is_refused(url: str, way: str) -> None:
    number = "0005"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '{number}'")
    with pytest.raises(LangoStoreError, match=number):
        WAYS[way](url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar() == number
    engine.dispose()


def test_newer_schema_works_with_one_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_store_version SET version_num = '9999'")
        connection.exec_driver_sql("ALTER TABLE lango_message ADD COLUMN mood TEXT DEFAULT 'fine' NOT NULL")
        connection.exec_driver_sql("ALTER TABLE lango_session ADD COLUMN mood TEXT DEFAULT 'fine' NOT NULL")
    with Store(engine) as store, caplog.at_level(logging.WARNING, "lango_store"):
        store.create("k", messages=messages(3))
        assert len(store.get("k").messages) == 3
    assert [record.name for record in caplog.records] == ["lango_store"]
    assert "9999" in caplog.text
    assert "upgrade the package" in schema.check(engine)[0]
    assert schema.upgrade(engine) == "9999"  # an old replica that restarts migrates nothing
    with Store(url, migrate=True) as store:
        assert len(store.get("k").messages) == 3
    engine.dispose()


@pytest.mark.slow
def test_database_with_an_unknown_feature_is_refused_at_first_call_and_at_ping(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(url) as running, Store(url) as late:
        running.create("k")
        with running.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO lango_feature (name) VALUES ('moods')")
        with pytest.raises(UnknownFeature, match=r"uses moods, which .*: upgrade lango-store") as refused:
            late.append_message("k", message())
        assert refused.value.features == ("moods",)
        with late.engine.begin() as connection, pytest.raises(UnknownFeature):
            late.using(connection).append_message("k", message())
        running.append_message("k", message())  # it began before the feature was switched on
        for call in (running.ping, lambda: running.append_message("k", message())):
            with pytest.raises(UnknownFeature):
                call()
        assert (schema.features(url), schema.check(url)) == (["moods", "payloads"], [str(refused.value)])
        monkeypatch.setattr(revisions, "KNOWN_FEATURES", {"moods", "payloads"})
        late.ping()
        assert (len(late.get("k").messages), schema.check(url)) == (1, [])


def test_open_connections_keep_working_when_a_column_is_added(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        store.create("k")
        for _ in range(10):  # often enough for the driver to prepare its statements
            store.append_message("k", message())
            store.get("k")
        other = create_engine(url, poolclass=sa.NullPool)
        with other.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE lango_message ADD COLUMN mood TEXT DEFAULT 'fine' NOT NULL")
        store.append_message("k", message())
        assert len(store.get("k").messages) == 11
    engine.dispose()


def test_open_connections_keep_working_when_the_collation_of_a_column_changes(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with Store(url) as store:
        store.create("k")
        for _ in range(10):  # often enough for the driver to prepare its statements
            store.append_message("k", message())
            store.get("k")
        other = create_engine(url, poolclass=sa.NullPool)
        with other.begin() as connection:
            connection.exec_driver_sql('ALTER TABLE lango_message ALTER COLUMN id TYPE TEXT COLLATE "default"')
        assert len(store.get("k").messages) == 10
        assert store.append_message("k", message()).seq == 11


def test_store_with_migrate_upgrades_the_schema_at_the_first_call(empty_url: str) -> None:
    store = Store(empty_url, migrate=True)
    assert schema.current(empty_url) is None
    store.ping()
    assert schema.current(empty_url) == SCHEMA_REVISION
    store.close()


def test_first_call_in_callers_transaction_does_not_migrate(empty_url: str) -> None:
    with Store(empty_url, migrate=True) as store:
        with store.engine.begin() as connection, pytest.raises(SchemaOutOfDate, match=r"call ping\(\)") as raised:
            store.using(connection).create("k")
        assert "migrate=True)" not in str(raised.value)
        store.ping()
        with store.engine.begin() as connection:
            store.using(connection).create("k")


@pytest.mark.slow
def test_four_concurrent_upgrades_succeed(empty_url: str) -> None:
    program = "import sys; from lango_store import schema; print(schema.upgrade(sys.argv[1]))"
    running = [Program(program, empty_url) for _ in range(4)]
    results = [process.communicate(timeout=120) for process in running]
    assert results == [(f"{SCHEMA_REVISION}\n", "")] * 4
    assert schema.check(empty_url) == []


@pytest.mark.slow
def test_migration_of_a_locked_table_raises_database_busy_after_lock_timeout(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in Base.metadata.tables:
            connection.exec_driver_sql(f"SELECT count(*) FROM {table}")
        with pytest.raises(DatabaseBusy, match="lock timeout"):
            schema.downgrade(url, "base", lock_timeout=0.2)
    assert schema.current(engine) == SCHEMA_REVISION
    assert schema.downgrade(url, "base") is None
    engine.dispose()


@pytest.mark.slow
def test_failed_migration_changes_nothing(empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host (n INTEGER)")
        connection.exec_driver_sql("CREATE INDEX ix_lango_suspension_open ON host (n)")
    with pytest.raises(LangoStoreError, match="already exists"):
        schema.upgrade(engine)
    assert schema.current(engine) is None
    assert not sa.inspect(engine).has_table("lango_session")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE host")
    assert schema.upgrade(engine) == SCHEMA_REVISION
    with Store(engine) as store:
        store.create("k", messages=messages(2))
        assert store.delete("k")
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM lango_message").scalar() == 0
    engine.dispose()


DRIFTS = {
    "a missing index": ("DROP INDEX ix_lango_session_updated_bucket", "ix_lango_session_updated_bucket"),
    "a missing table": ("DROP TABLE lango_turn", "lango_turn"),
    "a missing column": ("ALTER TABLE lango_session DROP COLUMN forked_from", "forked_from"),
    "a column too many": ("ALTER TABLE lango_session ADD COLUMN mood TEXT", "mood"),
    "an index without its predicate": (
        "DROP INDEX uq_lango_message_id; CREATE UNIQUE INDEX uq_lango_message_id ON lango_message (session_key, id)",
        "WHERE",
    ),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_schema_check_reports_differences(url: str, drift: str) -> None:
    engine = create_engine(url)
    statements, named = DRIFTS[drift]
    with engine.begin() as connection:
        for statement in statements.split(";"):
            connection.exec_driver_sql(statement)
    differences = schema.check(engine)
    assert differences
    assert all(named in difference for difference in differences)
    engine.dispose()


@pytest.mark.parametrize("change", ["DROP", "CHECK (text IS NULL OR content IS NULL)"])
def test_schema_check_reports_a_dropped_or_different_constraint(url: str, change: str) -> None:
    engine = create_engine(url)
    name = "ck_lango_message_content"
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"ALTER TABLE lango_message DROP CONSTRAINT {name}")
            if change != "DROP":
                connection.exec_driver_sql(f"ALTER TABLE lango_message ADD CONSTRAINT {name} {change}")
        else:
            ours = f"CONSTRAINT {name} CHECK ((text IS NULL) <> (content IS NULL))"
            other = "CHECK (1)" if change == "DROP" else f"CONSTRAINT {name} {change}"
            connection.exec_driver_sql("PRAGMA writable_schema = ON")
            connection.exec_driver_sql(f"UPDATE sqlite_master SET sql = replace(sql, '{ours}', '{other}')")
            connection.exec_driver_sql("PRAGMA writable_schema = RESET")
    (difference,) = schema.check(engine)
    assert name in difference
    engine.dispose()


@pytest.mark.slow
def test_schema_sql_returns_the_statements_of_missing_revisions(
    make_database: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    url = make_database(migrated=False)
    script = schema.sql(url)
    assert "CREATE TABLE lango_session" in script
    assert "CREATE TABLE lango_turn" in script
    schema.upgrade(url, SCHEMA_REVISION)
    assert "CREATE TABLE lango_session" not in schema.sql(url)
    assert "CREATE TABLE lango_mood_0998" in schema.sql(url)
    assert "CREATE TABLE lango_session" in schema.sql("postgresql://nobody@localhost:1/none", start="base")
    by_hand = make_database(migrated=False)
    engine = create_engine(by_hand)
    with engine.begin() as connection:
        script = schema.sql(by_hand, SCHEMA_REVISION)
        for statement in re.split(r";(?! END)", script):  # a trigger ends with "; END"
            plain = "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
            if plain and plain not in ("BEGIN", "COMMIT"):
                connection.exec_driver_sql(plain)
    assert schema.check(engine) == []
    engine.dispose()


def test_migration_ignores_orphaned_rows_in_tables_of_the_application(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite(migrated=False))
    with engine.connect() as connection:
        connection.connection.dbapi_connection.executescript(  # type: ignore[union-attr]
            "PRAGMA foreign_keys = OFF; CREATE TABLE parent (id INTEGER PRIMARY KEY);"
            "CREATE TABLE child (id INTEGER REFERENCES parent); INSERT INTO child VALUES (7);"
        )
    engine.dispose()
    assert schema.upgrade(engine) == SCHEMA_REVISION
    engine.dispose()


def test_stamp_sets_the_migration_revision(empty_url: str) -> None:
    assert schema.stamp(empty_url, SCHEMA_REVISION) == SCHEMA_REVISION
    assert schema.current(empty_url) == SCHEMA_REVISION


def test_upgrade_to_unknown_revision_is_refused(empty_url: str) -> None:
    with pytest.raises(LangoStoreError, match="nonsense"):
        schema.upgrade(empty_url, "nonsense")


@pytest.mark.slow
def test_migration_runs_on_a_plain_engine_of_the_application(empty_url: str) -> None:
    engine = sa.create_engine(empty_url)
    assert schema.upgrade(engine) == SCHEMA_REVISION
    assert schema.check(engine) == []
    engine.dispose()


@pytest.mark.slow
def test_alembic_command_in_checkout_migrates(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_url)

    def alembic(*words: str) -> subprocess.CompletedProcess[str]:
        return run_program("import sys; from alembic.config import main; main(sys.argv[1:])", *words, folder=ROOT)

    assert alembic("upgrade", "head").returncode == 0
    assert schema.check(empty_url) == []
    assert SCHEMA_REVISION in alembic("current").stdout
    assert alembic("check").returncode == 0
    assert alembic("downgrade", "base").returncode == 0
    assert schema.current(empty_url) is None
    monkeypatch.delenv("DATABASE_URL")
    assert "LANGO_STORE_URL" in alembic("current").stderr


def test_alembic_ini_is_ascii_because_alembic_reads_it_in_the_encoding_of_the_locale() -> None:
    assert (ROOT / "alembic.ini").read_bytes().isascii()


def test_invalid_revision_in_version_table_is_refused(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite())
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = x'01'")
    with pytest.raises(LangoStoreError, match="is not a revision: `lango-store db stamp`"):
        Store(engine).exists("k")
    engine.dispose()
