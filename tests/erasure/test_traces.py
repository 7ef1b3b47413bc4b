"""After an erasure, the files of the database contain nothing of the person."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import CITUS, LeavesDeletedTexts, MakeDatabase
from support.factories import message
from support.planted import WORD, files_with, plant, plant_shared
from support.polling import until

from lango_store import Message, Store, create_engine, schema
from lango_store._rooms.erasure import traces
from lango_store.tables import Base

ANN = f"{WORD} ann"
SCOPE = f"user:{WORD}"


def fill(store: Store) -> None:
    """Store sessions of a person and of others, in tables and in the search index."""
    schema.enable_search(store.engine)
    for number in range(60):
        store.create(f"bob:{number}", user_id="bob", messages=[message(f"of bob {n}") for n in range(9)])
    for number in range(5):
        plant(store, f"{WORD}:{number}", ANN)
        store.create(f"{WORD}:{number}/child", messages=[Message.user(f"{WORD} in a child") for _ in range(9)])
    plant(store, f"{WORD}:live", ANN, expires_at=None)
    store.append_message("bob:0", Message.user(f"{WORD} written", author=ANN, name=WORD))
    store.conversation("bob:1").inbox.put(Message.user(f"{WORD} waits", author=ANN))
    store.conversation("bob:2").share(by=ANN)
    plant_shared(store, SCOPE, holder=f"{WORD}:live")
    store.search("bob")  # fills the index


def plant_samples(engine: sa.Engine) -> None:
    """Create the table in which ANALYZE of some builds of SQLite keeps values of indexes."""
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE samples (tbl, idx, neq, nlt, ndlt, sample)",
            f"INSERT INTO samples VALUES ('lango_session', 'pk', '1', '0', '0', '{WORD}')",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_master SET name = 'sqlite_stat4', tbl_name = 'sqlite_stat4', "
            "sql = replace(sql, 'samples', 'sqlite_stat4') WHERE name = 'samples'",
            "PRAGMA writable_schema = OFF",
            "PRAGMA schema_version = 1000",
        ):
            connection.exec_driver_sql(statement)


def erase(store: Store, *archives: Path) -> list[str]:
    receipt = store.erase(ANN, scopes=[SCOPE], authors=True, archives=archives)
    assert receipt.complete
    assert WORD not in receipt.model_dump_json()
    return receipt.remains


def test_erase_leaves_nothing_in_sqlite_files(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    # Most builds of SQLite would leave deleted texts in the file.
    engine = create_engine(make_sqlite(), connect_args={"factory": LeavesDeletedTexts})
    store = Store(engine)
    cold = tmp_path / "cold.db"
    plant(store, f"{WORD}:archived", ANN)
    store.expire(archive=cold)
    fill(store)
    plant_samples(engine)
    paths = [*Path(str(engine.url.database)).parent.glob("*.db*")]
    assert {*files_with(WORD, paths)} >= {"cold.db"}
    assert len(files_with(WORD, paths)) >= 2
    remains = erase(store, cold)
    assert files_with(WORD, Path(str(engine.url.database)).parent.rglob("*")) == []
    assert remains == [
        "backups and exports contain the rows until they are deleted; repeat the erasure on a restored backup"
    ]
    assert store.count(user_id="bob") == 60


@pytest.mark.slow
@pytest.mark.skipif(bool(CITUS or os.environ.get("LANGO_STORE_TEST_POSTGRES")), reason="needs the files of the server")
def test_erase_and_vacuum_leave_nothing_in_postgresql_files(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        fill(store)
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")
            folder = connection.exec_driver_sql(
                "SELECT current_setting('data_directory') || '/base/' || oid FROM pg_database "
                "WHERE datname = current_database()"
            ).scalar_one()
            assert files_with(WORD, Path(folder).iterdir())
            with store.engine.begin() as earlier:
                earlier.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                earlier.exec_driver_sql("SELECT FROM pg_class")
                remains = erase(store)
                assert "all transactions have ended that are open now" in remains[0]
                connection.exec_driver_sql("VACUUM FULL lango_message")
                connection.exec_driver_sql("CHECKPOINT")
                assert files_with(WORD, Path(folder).iterdir())
            commands = remains[0].partition("table: ")[2].split("; ")
            assert all(f"{table}," in f"{commands[1]}," for table in Base.metadata.tables)
            # An older transaction in another database keeps rows too: the snapshot of VACUUM FULL counts it.
            erased = connection.exec_driver_sql("SELECT CAST(pg_current_xact_id() AS text)").scalar_one()
            is_oldest = f"SELECT pg_snapshot_xmin(pg_current_snapshot()) >= CAST('{erased}' AS xid8)"
            until(lambda: connection.exec_driver_sql(is_oldest).scalar_one(), 250)
            for command in commands:
                connection.exec_driver_sql(command)
            connection.exec_driver_sql("CHECKPOINT")
            assert files_with(WORD, Path(folder).iterdir()) == []


def test_erase_reports_a_reader_that_keeps_the_log(
    make_sqlite: MakeDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = create_engine(make_sqlite())
    driver = engine.dialect.connect
    hosts = sa.create_engine("sqlite://", poolclass=sa.QueuePool, creator=lambda: driver(str(engine.url.database)))
    sa.event.listen(hosts, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    monkeypatch.setattr(traces, "_WAIT", 100)
    for store, locks in (
        (Store(engine), traces._LOCKS),
        (Store(hosts), traces._LOCKS),
        (Store(engine), tmp_path / "no"),
    ):
        monkeypatch.setattr(traces, "_LOCKS", locks)
        store.create("a", user_id="ann", messages=[message()])
        with store.snapshot() as view:
            assert view.exists("a")
            reader = "another connection" if locks.name == "no" else "this process"
            assert f"because {reader} reads an earlier state" in str(store.erase("ann").remains)
        assert "write-ahead log" not in str(store.erase("ann").remains)
    hosts.dispose()


def test_erase_names_the_tables_to_vacuum_with_their_schema(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres(migrated=False), connect_args={"options": '-csearch_path="Tenant\\ A"'})
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Tenant A"')
    vacuum = Store(engine, migrate=True).erase("ann").remains[0]
    assert '"Tenant A".lango_message, "Tenant A".lango_payload, ' in vacuum
    assert "lango_search" not in vacuum
