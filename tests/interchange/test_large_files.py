"""Large files: long lines are refused, and import time grows linearly."""

import sys
from pathlib import Path

import pytest
from support.databases import MakeDatabase

from lango_store import Message, Store, interchange
from lango_store.interchange import files

MB = 1 << 20


HEADS = {
    "nanobot": b'{"_type":"metadata","key":"a"}\n',
    "dive": b'{"line_type":"header","data":{"id":"a"}}\n',
    "jsonl": b'{"lango_store":1,"schema":"0100"}\n',
}


FORMATS = ["nanobot", "dive", "shepherd", "jsonl"]


def exported(url: str, folder: Path, format: str, texts: list[str]) -> Path:
    """Write a session of these messages to a file."""
    with Store(url) as store:
        store.create(folder.name, messages=[Message.user(text) for text in texts])
        interchange.export(store, folder, format, keys=[folder.name])
        store.delete(folder.name)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


@pytest.mark.parametrize("name", [*HEADS, "shepherd"])
def test_line_above_limit_is_refused_before_parsing(
    make_sqlite: MakeDatabase, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", MB)
    path = tmp_path / ("a.jsonl" if name in HEADS else ".shepherd_session.openai.json")
    path.write_bytes(HEADS.get(name, b"") + b"[" * (2 * MB))
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
