"""SQLite files: permissions of new files, and read-only files."""

import os
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import run
from support.factories import messages
from support.processes import run_program

from lango_store import DatabaseUnavailable, Store


@pytest.mark.slow
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o600), (0o000, 0o600), (0o177, 0o600)])
def test_new_database_and_archive_are_not_accessible_to_other_users(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        past = datetime.now(UTC) - timedelta(days=9)
        with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True, clock=lambda: past) as store:
            store.create("k", ttl=timedelta(days=1), messages=messages(1))
            files = ["agent.db", "agent.db-shm", "agent.db-wal"]
            assert sorted(path.name for path in tmp_path.iterdir()) == files
            assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in files} == {mode}
        with Store(f"sqlite:///{tmp_path}/agent.db") as store:
            assert store.expire(archive=tmp_path / "cold.db").sessions == 1
        assert stat.S_IMODE((tmp_path / "cold.db").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_existing_database_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "agent.db").touch(mode=0o640)
    (tmp_path / "agent.db").chmod(0o640)
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        store.create("k")
    assert stat.S_IMODE((tmp_path / "agent.db").stat().st_mode) == 0o640


COMMANDS = [
    ("sessions", "list"),
    ("sessions", "show", "k"),
    ("sessions", "touch", "k"),
    ("sessions", "delete", "k", "--yes"),
    ("turns",),
    ("turns", "release", "k", "--yes"),
    ("stats",),
    ("doctor",),
    ("expire",),
    ("import", "."),
    ("export", "k", "--to", "out"),
    ("db", "check"),
    ("db", "current"),
    ("db", "sql"),
    ("db", "downgrade", "base", "--yes"),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_command_with_a_mistyped_path_creates_no_file(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"sqlite:///{tmp_path}/agnet.db", f"sqlite:///file:{tmp_path}/agnet.db?uri=true"):
        done = run(*words, "--url", url, environment={"COLUMNS": "1000"})  # an error in one line, whatever the path
        assert done.returncode == 2, done
        assert f"database {tmp_path}/agnet.db does not exist" in done.stderr
        assert "lango-store db upgrade" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Path]:
    """A folder that a test can make read-only."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    yield folder
    folder.chmod(0o755)


BOUND_BY_RIGHTS = """
import ctypes, os
if os.geteuid() == 0:  # root reads and writes what it likes, unless it gives that up
    class Set(ctypes.Structure):
        _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]
    header, sets, libc = (ctypes.c_uint32 * 2)(0x20080522, 0), (Set * 2)(), ctypes.CDLL(None)
    assert libc.capget(header, sets) == 0
    sets[0].effective &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
from lango_store.cli import main
main()
"""


def _bound(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user to whom file permissions apply."""
    return run_program(BOUND_BY_RIGHTS, *words)


@pytest.mark.slow
def test_list_command_on_a_read_only_file_shows_writes_of_another_process(shelf: Path) -> None:
    path = shelf / "agent.db"
    with Store(f"sqlite:///{path}", migrate=True) as store:
        store.create("k")
        for each in shelf.iterdir():
            each.chmod(0o444)
        store.create("new")
        done = _bound("sessions", "list", "--url", f"sqlite:///{path}")
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["new", "k"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file:", "file://", "file://localhost", "link"])
def test_new_file_of_a_uri_or_behind_a_link_is_private(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "new.db"
    url = f"sqlite:///{kind}{file}?uri=true"
    if kind == "link":
        (tmp_path / "link.db").symlink_to(file)
        url = f"sqlite:///{tmp_path / 'link.db'}"
    before = os.umask(0o022)
    try:
        with Store(url, migrate=True) as store:
            store.create("k", messages=messages(1))
            assert {path.stat().st_mode & 0o777 for path in (file, Path(f"{file}-wal"))} == {0o600}
            (tmp_path / "cold.db").symlink_to(tmp_path / "target.db")
            store.expire(older_than=timedelta(0), archive=tmp_path / "cold.db")
    finally:
        os.umask(before)
    assert (tmp_path / "target.db").stat().st_mode & 0o777 == 0o600


def test_uri_that_must_not_create_a_file_creates_none(tmp_path: Path) -> None:
    with (
        Store(f"sqlite:///file:{tmp_path / 'no.db'}?mode=rw&uri=true", migrate=True) as store,
        pytest.raises(DatabaseUnavailable),
    ):
        store.ping()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file::memory:", "file:"])
def test_uri_of_a_database_in_memory_creates_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store(f"sqlite:///{name}?uri=true", migrate=True) as store:
        store.create("k")
        assert store.exists("k")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_name_that_looks_like_a_uri_is_a_file_name_without_uri_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store("sqlite:///file:a.db", migrate=True) as store:
        store.create("k")
        assert [path.name for path in tmp_path.glob("*.db")] == ["file:a.db"]
    done = run("sessions", "list", "--url", "sqlite:///file:a.db")
    assert (done.returncode, done.stdout[:1]) == (0, "k")
