"""Files that are prepared to stop their reader: each is refused soon, and nothing is written."""

import gzip
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.hostile_files import repeat_rows, replace_by_endless_view, run_statements
from support.paths import DATA

from lango_store import Message, Store, interchange
from lango_store.interchange import files
from lango_store.interchange.salvage import salvage

LANGO = DATA / "lango" / "lango.db"
HOSTILE = pytest.mark.parametrize("damage", [replace_by_endless_view, repeat_rows])


@pytest.fixture
def target(make_sqlite: MakeDatabase) -> Iterator[Store]:
    with Store(make_sqlite()) as opened:
        yield opened


# Databases of lango


@HOSTILE
@pytest.mark.parametrize("table", ["sessions", "messages"])
def test_database_of_lango_with_endless_rows_is_refused(
    target: Store, tmp_path: Path, table: str, damage: Callable[[Path, str], None]
) -> None:
    path = Path(shutil.copy(LANGO, tmp_path))
    damage(path, table)
    (report,) = interchange.import_path(target, path)
    assert report.error
    assert target.count(expired=None) == 0


# Salvage


@pytest.mark.slow
@HOSTILE
def test_salvage_skips_a_table_with_endless_rows(
    target: Store, sound_file: Path, tmp_path: Path, damage: Callable[[Path, str], None]
) -> None:
    path = Path(shutil.copy(sound_file, tmp_path / "hostile.db"))
    damage(path, "lango_value")
    report = salvage(path, target)
    assert report.copied > 0
    assert any("lango_value" in each.reason for each in report.missing)


def test_salvage_skips_a_table_whose_row_ids_are_texts(target: Store, sound_file: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(sound_file, tmp_path / "hostile.db"))
    run_statements(path, "ALTER TABLE lango_value ADD COLUMN rowid TEXT")
    report = salvage(path, target)
    assert any("it has a column named rowid" in each.reason for each in report.missing)


# Compressed files


def bomb(path: Path, size: int) -> Path:
    """Write a compressed backup that expands to `size` bytes in one line."""
    with gzip.open(path, "wb") as file:
        file.write(b'{"lango_store":1,"schema":"0106"}\n{"session":{"key":"')
        for _ in range(size >> 20):
            file.write(b"a" * (1 << 20))
    return path


@pytest.mark.slow
def test_compressed_file_that_expands_much_is_refused_before_it_is_expanded(
    target: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNPACKED", 2 << 20)
    path = bomb(tmp_path / "bomb.jsonl.gz", 100 << 20)
    tracemalloc.start()
    try:
        (report,) = interchange.import_path(target, path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "expands to more than" in str(report.error)
    assert peak < 20 << 20


def test_file_that_was_unpacked_by_hand_is_read_whatever_its_size(
    target: Store, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNPACKED", 1 << 20)
    store.create("k", messages=[Message.user("a" * (4 << 20))])
    packed = tmp_path / "backup.jsonl.gz"
    interchange.export(store, packed, "backup", everything=True)
    (refused,) = interchange.import_path(target, packed)
    assert "expands to more than" in str(refused.error)
    plain = tmp_path / "backup.jsonl"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    (report,) = interchange.import_path(target, plain)
    assert report.keys == ["k"]
