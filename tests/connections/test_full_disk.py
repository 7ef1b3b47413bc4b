"""A SQLite file on a full disk: what troubleshooting.md says that still works."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.commands import run
from support.factories import message

from lango_store import DatabaseUnavailable, Store

pytestmark = [pytest.mark.slow, pytest.mark.one_database]


def mount(folder: Path, options: str) -> bool:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None or not mount(folder, "size=8m"):
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def append_until_it_fails(store: Store, text: str) -> int:
    """Append messages until there is no room; return the number of stored ones."""
    for number in itertools.count():
        try:
            store.append_message(f"k{number % 9}", message(text), create=True)
        except DatabaseUnavailable:
            return number
    raise AssertionError


def test_full_disk_refuses_writes_and_allows_reads_until_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{small_disk}/agent.db"
    with Store(url, migrate=True) as store:
        number = append_until_it_fails(store, "x" * 20_000)
        with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(512))
        number += append_until_it_fails(store, "")  # the log may still have room
        for write in (lambda: store.delete("k1"), lambda: store.append_message("k0", message())):
            with pytest.raises(DatabaseUnavailable, match="make room"):
                write()
        assert run("sessions", "delete", "k0", "--yes", "--url", url).returncode == 3
        assert store.stats().messages == number
        messages = {key: len(store.get(key).messages) for key in ("k0", "k1")}
        assert run("export", "--all", "--to", str(tmp_path / "out"), "--format", "backup", "--url", url).returncode == 0

        moved = tmp_path / "moved"
        shutil.copytree(small_disk, moved)
        with Store(f"sqlite:///{moved}/agent.db") as copied:
            assert copied.stats().messages == number
            assert copied.delete("k0")

        log = (small_disk / "agent.db-wal").stat().st_size
        assert mount(small_disk, f"remount,size={8 * 2**20 + log}")
        assert store.delete("k1")
        store.append_message("k0", message())
        assert len(store.get("k0").messages) == messages["k0"] + 1
        assert store.stats().messages == number - messages["k1"] + 1
