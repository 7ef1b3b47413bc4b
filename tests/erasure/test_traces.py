"""After an erasure, the files of the database contain nothing of the person."""

import os
from pathlib import Path

import pytest
from support.databases import CITUS, LeavesDeletedTexts, MakeDatabase
from support.factories import message
from support.planted import WORD, files_with, plant, plant_shared

from lango_store import Message, Store, create_engine, schema
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
    plant_shared(store, SCOPE)
    store.search("bob")  # fills the index


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
            remains = erase(store)
            commands = remains[0].partition("table: ")[2].split("; ")
            assert all(f"{table}," in f"{commands[1]}," for table in Base.metadata.tables)
            for command in commands:
                connection.exec_driver_sql(command)
            connection.exec_driver_sql("CHECKPOINT")
            assert files_with(WORD, Path(folder).iterdir()) == []


def test_erase_reports_a_reader_that_keeps_the_log(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("a", user_id="ann", messages=[message()])
        with store.snapshot() as view:
            assert view.exists("a")
            receipt = store.erase("ann")
            assert "this process reads an earlier state" in receipt.remains[0]
        assert len(store.erase("ann").remains) == 1
