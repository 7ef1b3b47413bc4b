"""Files that SQLCipher encrypts, opened with an engine as on the page about encryption."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages
from support.pages import blocks
from support.processes import Program, run_program

from lango_store import DatabaseUnavailable, LangoStoreError, Store, create_engine, schema

pytestmark = pytest.mark.slow

SECRET = "pineapple"
OPEN, ENCRYPT = blocks("docs/howto/encryption.md", "python")


def encrypted_engine(file: Path, key: str = 'it\'s "secret"', **options: Any) -> sa.Engine:
    url = sa.URL.create("sqlite+pysqlcipher", password=key, database=str(file))
    engine = sa.create_engine(url, **{"poolclass": sa.QueuePool} | options)

    @sa.event.listens_for(engine, "connect")
    def settings(driver: Any, _: object) -> None:
        driver.execute("PRAGMA foreign_keys = ON")
        driver.execute("PRAGMA journal_mode = WAL")

    return engine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "encrypted.db"


@pytest.fixture
def engine(file: Path) -> Iterator[sa.Engine]:
    created = encrypted_engine(file)
    schema.upgrade(created)
    yield created
    created.dispose()


def test_no_file_of_an_encrypted_store_contains_the_stored_text(file: Path, engine: sa.Engine) -> None:
    schema.enable_search(engine)
    with Store(engine) as store:
        store.create("k", title=SECRET, messages=[message(f"{SECRET} {n}" * 100) for n in range(50)])
        assert len(store.search(SECRET, limit=100).items) == 50
        for suffix in ("", "-wal", "-shm"):
            content = Path(f"{file}{suffix}").read_bytes()
            assert content
            assert not any(text in content for text in (SECRET.encode(), b"lango_session", b"SQLite format"))
    engine.dispose()
    assert SECRET.encode() not in file.read_bytes()
    again = encrypted_engine(file)
    assert len(Store(again).get("k").messages) == 50
    again.dispose()


def test_encrypted_store_reads_snapshots_and_is_sound(engine: sa.Engine) -> None:
    with Store(engine) as store:
        store.create("k", messages=messages(2))
        with store.snapshot() as before:
            assert before.conversation("k").info().last_seq == 2
            store.append_message("k", message())
            assert before.conversation("k").info().last_seq == 2
        assert store.conversation("k").info().last_seq == 3
        assert (store.maintenance.examine(), schema.check(engine)) == ([], [])


def test_every_migration_revision_upgrades_an_encrypted_file(file: Path) -> None:
    engine = encrypted_engine(file)
    assert schema.upgrade(engine, "0100") == "0100"
    with engine.begin() as connection:
        schema.upgrade(connection)
    assert schema.check(engine) == []
    assert schema.downgrade(engine, "base") is None
    engine.dispose()


@pytest.mark.parametrize("key", ["wrong", None])
def test_encrypted_file_is_refused_without_its_key(engine: sa.Engine, file: Path, key: str | None) -> None:
    Store(engine).ping()
    engine.dispose()
    other = create_engine(f"sqlite:///{file}") if key is None else encrypted_engine(file, key)
    with Store(other) as store, pytest.raises(DatabaseUnavailable, match="if it is encrypted, give the right key"):
        store.ping()


def test_pool_with_one_connection_per_thread_is_refused(engine: sa.Engine, file: Path) -> None:
    other = encrypted_engine(file, poolclass=sa.SingletonThreadPool)
    with Store(other) as store, pytest.raises(LangoStoreError, match="poolclass=QueuePool"):
        store.ping()
    other.dispose()


@pytest.mark.parametrize("call", [create_engine, Store])
def test_url_of_sqlcipher_is_refused_and_an_engine_is_suggested(call: Any) -> None:
    with pytest.raises(ValueError, match=r"sqlalchemy\.create_engine\(url, poolclass=QueuePool\)") as raised:
        call("sqlite+pysqlcipher://:pineapple@/chat.db")
    assert SECRET not in str(raised.value)


WRITER = """
import os
from lango_store import Message
for number in range(50):
    store.append_message("k", Message.user(f"{os.getpid()} {number}"))
"""


def test_two_processes_append_to_one_encrypted_file(tmp_path: Path) -> None:
    assert run_program(OPEN, folder=tmp_path, strict=True).stderr == ""
    writers = [Program(OPEN + WRITER, folder=tmp_path) for _ in range(2)]
    assert [writer.communicate() for writer in writers] == [("", "")] * 2
    engine = encrypted_engine(tmp_path / "chat.db", "only for this example")
    assert Store(engine).conversation("k").info().last_seq == 103
    engine.dispose()


def test_program_of_the_page_encrypts_an_existing_file(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    url = make_sqlite()
    with Store(url) as store:
        schema.enable_search(store.engine)
        store.create("k", messages=[message(SECRET), message(f"{SECRET} " * 10_000)])
        before = store.get("k")
        store.engine.dispose()
    Path(url.removeprefix("sqlite:///")).rename(tmp_path / "agent.db")
    assert run_program(ENCRYPT, folder=tmp_path, strict=True).stderr == ""
    file = tmp_path / "chat.db"
    assert SECRET.encode() not in file.read_bytes()
    engine = encrypted_engine(file, "only for this example")
    with Store(engine) as store:
        assert store.get("k") == before
        store.append_message("k", message(SECRET))
        assert len(store.search(SECRET).items) == 3
        assert store.maintenance.examine() == []
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM INTO '{tmp_path}/copy.db'")
    engine.dispose()
    copied = encrypted_engine(tmp_path / "copy.db", "only for this example")
    assert len(Store(copied).get("k").messages) == 3
    copied.dispose()
    assert SECRET.encode() not in (tmp_path / "copy.db").read_bytes()
