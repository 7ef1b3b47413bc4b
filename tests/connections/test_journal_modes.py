"""SQLite without WAL mode: file systems without shared memory, and engines of a host with another journal mode."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.factories import message
from support.journal_modes import host_engine
from support.processes import Program

from lango_store import DatabaseUnavailable, Store, UnsupportedDatabase
from lango_store._dialect.sqlite import SQLite

ADVICE = "use a local disk or PostgreSQL, or give the store an engine of SQLAlchemy with another journal mode"
WITHOUT_SHARED_MEMORY = ["unix-dotfile", "unix-none"]
"""VFSs of SQLite without methods for shared memory, like a file system that does not have it."""


@pytest.fixture
def file(make_sqlite: MakeDatabase) -> Path:
    """Return a migrated file that is not in WAL mode."""
    path = Path(make_sqlite().removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.mark.parametrize("vfs", WITHOUT_SHARED_MEMORY)
def test_file_that_cannot_be_switched_to_wal_mode_is_refused(file: Path, vfs: str) -> None:
    with (
        Store(f"sqlite:///file:{file}?vfs={vfs}&uri=true") as store,
        pytest.raises(UnsupportedDatabase, match=f"stays in journal mode 'delete'.*{ADVICE}"),
    ):
        store.ping()
    with Store(f"sqlite:///{file}") as store:
        assert store.append_message("k", message(), create=True).seq == 1


@pytest.mark.parametrize("vfs", WITHOUT_SHARED_MEMORY)
def test_file_in_wal_mode_on_a_file_system_without_shared_memory_is_refused(file: Path, vfs: str) -> None:
    with Store(f"sqlite:///{file}") as store:
        store.ping()
        store.engine.dispose()
    with (
        Store(f"sqlite:///file:{file}?vfs={vfs}&uri=true") as store,
        pytest.raises(DatabaseUnavailable, match=f"unable to open database file.*{ADVICE}"),
    ):
        store.ping()


@pytest.mark.parametrize("name", ["SQLITE_PROTOCOL", "SQLITE_IOERR_SHMMAP", "SQLITE_IOERR_SHMOPEN"])
def test_error_of_shared_memory_names_the_alternatives(name: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, name)
    translated = SQLite().translate_error(error)
    assert isinstance(translated, DatabaseUnavailable)
    assert ADVICE in str(translated)


def test_immutable_file_without_wal_mode_can_be_read(file: Path) -> None:
    before = file.read_bytes()
    with Store(f"sqlite:///file:{file}?immutable=1&uri=true") as store:
        assert store.count() == 0
    assert file.read_bytes() == before


WRITER = """
import sys
from support.journal_modes import host_engine
from lango_store import Message, Store
url, mode, name = sys.argv[1:]
store = Store(host_engine(url, mode))
for number in range(100):
    store.append_message("k", Message.user("hello", id=f"{name} {number}"))
    store.get("k")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "vfs"), [("delete", "unix"), ("truncate", "unix"), ("delete", "unix-dotfile")])
def test_two_processes_write_with_the_hosts_engine_in_another_journal_mode(file: Path, mode: str, vfs: str) -> None:
    url = f"sqlite:///file:{file}?vfs={vfs}&uri=true"
    engine = host_engine(url, mode)
    with Store(engine) as store:
        store.create("k")
        writers = [Program(WRITER, url, mode, number) for number in range(2)]
        for _ in range(20):
            session = store.get("k")
            assert session.last_seq == len(session.messages)
        assert [writer.communicate() for writer in writers] == [("", "")] * 2
        assert [each.seq for each in store.conversation("k").messages()] == list(range(1, 201))
        (finding,) = store.maintenance.examine()
        assert f"journal_mode is {mode}" in finding.detail
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == mode
    engine.dispose()
    assert not Path(f"{file}-wal").exists()
