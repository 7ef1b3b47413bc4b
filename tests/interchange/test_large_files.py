"""Large files: long lines are refused, time grows linearly, and memory does not grow with the file."""

import shutil
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.paths import DATA

from lango_store import Message, Store, interchange
from lango_store.interchange import files

pytestmark = pytest.mark.slow

MB = 1 << 20


HEADS = {
    "nanobot": b'{"_type":"metadata","key":"a"}\n',
    "dive": b'{"line_type":"header","data":{"id":"a"}}\n',
    "backup": b'{"lango_store":1,"schema":"0100"}\n',
    "shepherd": b'{"messages":[{"content":"',
}


FORMATS = ["nanobot", "dive", "shepherd", "backup"]


def exported(url: str, folder: Path, format: str, texts: list[str]) -> Path:
    """Write a session of these messages to a file."""
    with Store(url) as store:
        store.create(folder.name, messages=[Message.user(text) for text in texts])
        interchange.export(store, folder, format, keys=[folder.name])
        store.delete(folder.name)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


@pytest.mark.parametrize("name", HEADS)
def test_line_above_limit_is_refused_before_parsing(
    make_sqlite: MakeDatabase, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", MB)
    path = tmp_path / (".shepherd_session.openai.json" if name == "shepherd" else "a.jsonl")
    path.write_bytes(HEADS[name] + b"[" * (2 * MB))
    with Store(make_sqlite()) as store:
        (report,) = interchange.import_path(store, path)
    assert "has more than 1,048,576 bytes" in str(report.error)


@pytest.mark.parametrize("format", FORMATS)
def test_work_of_an_import_grows_linearly_with_the_number_of_messages(
    make_database: MakeDatabase, tmp_path: Path, format: str
) -> None:
    def work(count: int) -> tuple[int, int]:
        """Import a number of messages, and count function calls and statements."""
        path = exported(make_database(), tmp_path / f"s{count}", format, [f"message {n}" for n in range(count)])
        calls, statements = 0, 0

        def called(_: object, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        def executed(_: str, __: float) -> None:
            nonlocal statements
            statements += 1

        with Store(make_database(), on_statement=executed) as store:
            store.ping()
            before = sys.getprofile()
            sys.setprofile(called)
            try:
                (report,) = interchange.import_path(store, path)
            finally:
                sys.setprofile(before)
        assert report.messages == count
        return calls, statements

    work(10)  # compiles statements and loads modules
    few, many = work(400), work(1_200)
    assert many[0] < 3.1 * few[0]
    assert many[1] <= 3 * few[1]


# Memory


LARGE = ["word " * 800] * 3_000
"""The texts of a session of 12 MB."""


def peak(call: Callable[[], object]) -> int:
    """Return the largest number of bytes that a call allocates at the same time."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("format", ["nanobot", "dive", "shepherd"])
def test_memory_of_an_export_and_an_import_is_small_compared_with_the_file(
    make_database: MakeDatabase, tmp_path: Path, format: str
) -> None:
    with Store(make_database()) as store:
        store.create("k", messages=[Message.user(text) for text in LARGE])
        exporting = peak(lambda: interchange.export(store, tmp_path / "out", format, keys=["k"]))
    (path,) = (tmp_path / "out").iterdir()
    size = path.stat().st_size
    with Store(make_database()) as store:
        store.ping()
        would_import = peak(lambda: interchange.import_path(store, path, dry_run=True))
        importing = peak(lambda: interchange.import_path(store, path))
        comparing = peak(lambda: interchange.import_path(store, path))
        assert store.stats().messages == len(LARGE)
    assert size > 12_000_000
    assert max(exporting, would_import, importing, comparing) < size // 2


def test_memory_of_an_import_of_lango_is_small_compared_with_the_database(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    path = Path(shutil.copy(DATA / "lango" / "lango.db", tmp_path))
    values = [("user", text, "2026-04-01 10:00:00+00:00", 6) for text in LARGE]
    with closing(sqlite3.connect(path)) as connection, connection:
        insert = "INSERT INTO messages (role, content, timestamp, session_messages) VALUES (?, ?, ?, ?)"
        connection.executemany(insert, values)
    with Store(make_database()) as store:
        store.ping()
        importing = peak(lambda: interchange.import_path(store, path))
        assert store.conversation("partial").info().message_count == len(LARGE)
    assert importing < path.stat().st_size // 2
