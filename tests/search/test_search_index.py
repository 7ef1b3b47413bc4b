"""The search index: creation, damage, database roles and schemas."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from support.databases import MakeDatabase
from support.factories import message, messages
from support.postgres_server import PostgresServer
from support.revisions import LATER, add_later_revisions
from support.searches import findings, found, waiting
from support.sqlite_modules import engine_without_fts5

from lango_store import DamagedMessage, LangoStoreError, SearchUnavailable, Store, create_engine, schema
from lango_store.tables import SCHEMA_REVISION, Base
from lango_store.testing import Clock


@pytest.fixture
def filled(url: str, clock: Clock) -> Iterator[Store]:
    """Yield a store with thirty messages in three sessions and no search index."""
    with Store(url, clock=clock) as store:
        for number in range(3):
            store.create(f"chat:{number}", messages=[message(f"oslo {n} in {number}") for n in range(10)])
        yield store


def execute(store: Store, statement: str) -> None:
    store.engine.dispose()  # otherwise FTS5 writes its cached data later
    with store.engine.begin() as connection:
        connection.exec_driver_sql(statement)
    store.engine.dispose()


def objects(engine: sa.Engine) -> set[str]:
    """Return the names of the tables, indexes, functions and triggers of the search index."""
    query = {
        "sqlite": "SELECT name FROM sqlite_master WHERE name LIKE 'lango@_search%' ESCAPE '@'",
        "postgresql": "SELECT relname::text FROM pg_class WHERE relname::text ~ 'lango_search' "
        "UNION SELECT proname::text FROM pg_proc WHERE starts_with(proname::text, 'lango_search') "
        "UNION SELECT tgname::text FROM pg_trigger WHERE starts_with(tgname::text, 'lango_search')",
    }[engine.dialect.name]
    with engine.connect() as connection:
        return set(connection.exec_driver_sql(query).scalars())


# Creation


def test_enable_search_indexes_existing_messages(filled: Store) -> None:
    assert schema.search_status(filled.engine).state == "disabled"
    status = schema.enable_search(filled.engine)
    assert (status.state, status.indexed, status.waiting) == ("ready", 30, 0)
    assert len(found(filled, "oslo")) == 30
    assert schema.search_status(filled.engine) == status == schema.enable_search(filled.engine)


def test_disable_search_removes_every_object_of_the_index(filled: Store) -> None:
    schema.enable_search(filled.engine)
    assert schema.disable_search(filled.engine)
    assert objects(filled.engine) == set()
    assert not schema.disable_search(filled.engine)


class Killed(BaseException):
    """Raised in place of a killed process."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "übung",
        "u\u0308bung",
        "straße",
        "zwölfÜbungen",
        "x²beyond",
        "ɐbeyond",
        "中文beyond",
        "e\u200dbeyond",
        "naïve_beyond",
    ],
)
def test_examine_finds_no_fault_in_an_index_of_non_ascii_words(store: Store, text: str) -> None:
    store.create("a", messages=[message(text)])
    schema.enable_search(store.engine)
    assert findings(store) == []


@pytest.mark.slow
def test_enable_search_resumes_after_a_kill(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lango_store._operations.pace._FIRST", 10)

    def kill(_: schema.Progress) -> None:
        raise Killed

    with pytest.raises(Killed):
        schema.enable_search(filled.engine, on_progress=kill)
    filled.append_message("chat:0", message("oslo afterwards"))
    assert waiting(filled) == 21
    progress: list[schema.Progress] = []
    status = schema.enable_search(filled.engine, on_progress=progress.append)
    assert (status.indexed, status.waiting, progress[0].total) == (31, 0, 21)
    assert len(found(filled, "oslo")) == 31


@pytest.mark.slow
def test_incomplete_index_refuses_searches_until_it_is_enabled_again(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr("lango_store._rooms.search.index.SearchIndex.fill_queue", kill)
        with pytest.raises(Killed):
            schema.enable_search(filled.engine)
    filled.append_message("chat:0", message("oslo afterwards"))
    with pytest.raises(SearchUnavailable, match="search rebuild"):
        filled.search("oslo")
    assert "lango_search" in findings(filled)[0]
    assert schema.enable_search(filled.engine).indexed == 31


@pytest.mark.slow
def test_enable_search_during_writes_misses_no_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lango_store._operations.pace._FIRST", 50)
    with Store(url) as store:
        for key in ("a", "b"):
            store.create(key, messages=[message(f"oslo {number}") for number in range(100)])
        ended = threading.Event()

        def write() -> None:
            number = 0
            while not ended.is_set() or number < 20:
                number += 1
                store.append_message("a", message("oslo meanwhile"))
                store.conversation("b").pop_message()

        writer = threading.Thread(target=write)
        writer.start()
        schema.enable_search(url)
        ended.set()
        writer.join()
        schema.enable_search(url)
        assert (waiting(store), findings(store)) == (0, [])
        assert (
            schema.search_status(url).indexed
            == store.conversation("a").info().message_count + store.conversation("b").info().message_count
        )


def test_enable_search_is_rolled_back_with_the_callers_transaction(filled: Store) -> None:
    with filled.engine.connect() as connection, connection.begin() as transaction:
        assert schema.enable_search(connection).indexed == 30
        transaction.rollback()
    assert objects(filled.engine) == set()
    with filled.engine.begin() as connection:
        schema.enable_search(connection)
    assert len(found(filled, "oslo")) == 30


@pytest.mark.slow
def test_search_index_is_ignored_by_autogenerate_and_dropped_by_downgrade(filled: Store) -> None:
    schema.enable_search(filled.engine)
    assert schema.check(filled.engine) == []
    with filled.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": schema.include_name})
        assert compare_metadata(context, sa.MetaData()) == []
    schema.downgrade(filled.engine, "base")
    assert objects(filled.engine) == set()


@pytest.mark.slow
def test_search_index_works_after_an_upgrade_but_needs_a_rebuild_after_a_sqlite_downgrade(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(url) as store:
        store.create("a", messages=[message("oslo"), message("bergen")])
        schema.enable_search(url)
        add_later_revisions(tmp_path / "later", monkeypatch)
        assert schema.upgrade(url) == LATER[-1]
        store.append_message("a", message("oslo again"))
        assert found(store, "oslo") == [("a", 1), ("a", 3)]
        schema.downgrade(url, SCHEMA_REVISION)
        store.append_message("a", message("oslo again"))
        if store.engine.dialect.name == "sqlite":  # SQLite copies the table without its triggers
            with pytest.raises(SearchUnavailable, match="search rebuild"):
                store.search("oslo")
            schema.rebuild_search(url)
        assert found(store, "oslo") == [("a", 1), ("a", 3), ("a", 4)]


# Damage

DAMAGES = {
    "sqlite": [
        "UPDATE lango_search_data SET block = zeroblob(20) WHERE id > 10",
        "UPDATE lango_search_data SET block = x'00' WHERE id = 10",
        "DELETE FROM lango_search_data",
        "DROP TABLE lango_search_data",
        "DROP TABLE lango_search_docsize",
        "DROP TABLE lango_search",
        "DROP TRIGGER lango_search_inserted",
        "UPDATE lango_search_config SET v = 99",
    ],
    "postgresql": [
        "DROP TABLE lango_search",
        "DELETE FROM lango_search",
        "ALTER TABLE lango_search RENAME COLUMN entry TO words",
        "ALTER TABLE lango_message DISABLE TRIGGER lango_search_inserted",
        "DROP FUNCTION lango_search_enqueue() CASCADE",
    ],
}
UNNOTICED = (DAMAGES["sqlite"][0], DAMAGES["sqlite"][2], DAMAGES["postgresql"][1])
"""Damage that `examine` finds, but a search does not always notice."""


@pytest.mark.slow
def test_damaged_index_makes_only_searches_fail_and_can_be_rebuilt(
    filled: Store, caplog: pytest.LogCaptureFixture
) -> None:
    schema.enable_search(filled.engine)
    seq = 10
    for damage in DAMAGES[filled.engine.dialect.name]:
        execute(filled, damage)
        seq += 1
        assert filled.append_message("chat:0", message("oslo, still there")).seq == seq, damage
        assert filled.conversation("chat:1").pop_message(), damage
        filled.conversation("chat:2").edits.redact(1)
        filled.expire()
        if damage not in UNNOTICED:
            assert "search rebuild" in caplog.text, damage
            with pytest.raises(SearchUnavailable, match="search rebuild"):
                filled.search("oslo")
        assert findings(filled), damage
        assert schema.rebuild_search(filled.engine).state == "ready", damage
        remaining = {
            (f"chat:{n}", each.seq) for n in range(3) for each in filled.conversation(f"chat:{n}").all_messages()
        }
        assert set(found(filled, "oslo")) == remaining - {("chat:2", 1)}, damage
        assert findings(filled) == [], damage
        caplog.clear()


@pytest.mark.slow
def test_damaged_index_pages_on_postgresql_raise_search_unavailable(postgres_server: PostgresServer) -> None:
    engine = create_engine(postgres_server.url())
    schema.upgrade(engine)
    with Store(engine) as store:
        store.create("a", messages=[message(f"oslo number{n}") for n in range(1_000)])
        schema.enable_search(engine)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("SELECT gin_clean_pending_list('ix_lango_search_entry')")
            connection.exec_driver_sql("CHECKPOINT")
            query = "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('ix_lango_search_entry')"
            path = Path(connection.exec_driver_sql(query).scalar_one())
        engine.dispose()
        postgres_server.interrupt()
        with path.open("r+b") as file:
            for page in range(1, path.stat().st_size // 8192):
                file.seek(page * 8192 + 24)
                file.write(b"\xaa" * 8000)
        postgres_server.resume()
        assert store.append_message("a", message("oslo, still there")).seq == 1_001
        with pytest.raises(SearchUnavailable, match="search rebuild"):
            store.search("number7")
        schema.rebuild_search(engine)
        assert found(store, "number7") == [("a", 8)]
    engine.dispose()


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """Start a separate PostgreSQL server."""
    server = PostgresServer()
    yield server
    server.stop()


def test_error_of_a_search_names_the_damaged_message(store: Store, url: str) -> None:
    schema.enable_search(url)
    store.create("k", messages=[message("bergen"), message("oslo")])
    execute(store, "UPDATE lango_message SET role = 'nobody' WHERE seq = 2")
    assert found(store, "bergen") == [("k", 1)]
    with pytest.raises(DamagedMessage) as raised:
        store.search("oslo")
    assert (raised.value.key, raised.value.seq, raised.value.field) == ("k", 2, "role")


@pytest.mark.slow
def test_locked_index_is_not_reported_as_damaged(make_postgres: MakeDatabase) -> None:
    url = f"{make_postgres()}&options=-clock_timeout%3D200"
    schema.enable_search(url)
    with Store(url) as store, store.engine.connect() as holder:
        holder.exec_driver_sql("LOCK TABLE lango_search IN ACCESS EXCLUSIVE MODE")
        assert "check failed" in {each.name for each in store.maintenance.examine()}
        assert findings(store) == []


# Roles and schemas


@pytest.mark.slow
def test_role_without_grants_on_the_search_index_can_write_but_not_search(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    schema.enable_search(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE lango_writer LOGIN")
    try:
        with engine.begin() as connection:
            tables = ", ".join((*Base.metadata.tables, "lango_store_version"))
            connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO lango_writer")
        with Store(f"{url}&options=-crole%3Dlango_writer") as store:
            store.create("a", messages=[message("oslo"), message("bergen")])
            store.conversation("a").pop_message()
            with pytest.raises(LangoStoreError, match="permission denied"):
                store.search("oslo")
            for rights, hits in (("SELECT", []), ("INSERT, UPDATE, DELETE", [("a", 1)])):
                with engine.begin() as connection:
                    connection.exec_driver_sql(f"GRANT {rights} ON lango_search, lango_search_queue TO lango_writer")
                assert (found(store, "oslo"), found(store, "bergen")) == (hits, [])
                assert waiting(store) == (0 if hits else 3)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY lango_writer; DROP ROLE lango_writer")
        engine.dispose()


@pytest.mark.slow
def test_each_schema_has_its_own_search_index(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Tenant B"')
    tenant = create_engine(url, connect_args={"options": '-csearch_path="Tenant\\ B",public'})
    schema.enable_search(url)
    schema.upgrade(tenant)
    with Store(tenant) as tenant_store, Store(engine) as public_store:
        assert schema.search_status(tenant).state == "disabled"
        schema.enable_search(tenant)
        tenant_store.create("a", messages=[message("oslo of tenant")])
        public_store.create("a", messages=[message("oslo of public")])
        assert [hit.snippet for hit in tenant_store.search("oslo").items] == ["oslo of tenant"]
        assert [hit.snippet for hit in public_store.search("oslo").items] == ["oslo of public"]
        schema.disable_search(url)
        assert schema.search_status(tenant).state == "ready"
    for each in (engine, tenant):
        each.dispose()


# SQLite without FTS5


@pytest.fixture
def without_fts5(make_sqlite: MakeDatabase) -> Iterator[Store]:
    """Yield a store with one message, on a SQLite that has no FTS5."""
    engine = engine_without_fts5(make_sqlite())
    with Store(engine) as store:
        store.create("a", messages=[message("oslo")])
        yield store
    engine.dispose()


@pytest.mark.parametrize("build", [schema.enable_search, schema.rebuild_search])
def test_enable_search_without_fts5_is_refused_and_leaves_nothing(
    without_fts5: Store, build: Callable[..., schema.SearchStatus]
) -> None:
    with pytest.raises(LangoStoreError, match=r"no FTS5.*use a Python whose SQLite has FTS5"):
        build(without_fts5.engine)
    assert objects(without_fts5.engine) == set()
    assert schema.search_status(without_fts5.engine).state == "disabled"
    assert findings(without_fts5) == []


@pytest.mark.slow
def test_index_without_fts5_is_reported_and_can_be_dropped(without_fts5: Store) -> None:
    url = str(without_fts5.engine.url)
    schema.enable_search(url)
    for leftover in (False, True):
        if leftover:  # as after a failed creation
            schema.enable_search(url)
            with create_engine(url).begin() as connection:
                connection.exec_driver_sql("DROP TABLE lango_search")
        without_fts5.append_message("a", message("oslo again"))
        with pytest.raises(SearchUnavailable, match=r"no FTS5.*search disable"):
            without_fts5.search("oslo")
        status = schema.search_status(without_fts5.engine)
        assert (status.state, "search disable" in str(status.reason)) == ("unusable", True)
        assert "no FTS5" in findings(without_fts5)[0]
        assert "no FTS5" in schema.check(without_fts5.engine)[0]
        assert schema.disable_search(without_fts5.engine)
        assert objects(without_fts5.engine) == set()


def test_purge_reads_few_pages_of_the_queue_after_an_index_of_many_messages(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with Store(url) as store:
        store.create("k", messages=messages(5_000))
        schema.enable_search(url)
        sent: list[str] = []
        with Store(url, on_statement=lambda statement, _: sent.append(statement)) as other:
            other.expire()
        (counting,) = (statement for statement in sent if "count(*) FROM lango_search_queue" in statement)
        with store.engine.connect() as connection:
            (plan,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {counting}").scalar_one()
    assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] <= 4
