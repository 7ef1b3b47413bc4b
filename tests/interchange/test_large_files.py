"""Large and hostile files: refused or read within a bound of memory, in time that grows as they do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.processes import run_program

from lango_store import Message, Store, interchange

MB = 1 << 20

LIMITED = """
import resource, sys
from lango_store import Store, interchange
url, path, longest, room = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Store(url) as store:
    store.ping()
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + room, now + room))
    (report,) = interchange.import_path(store, path, longest_line=longest)
print(report.model_dump_json())
"""


def imported_within(room: int, make_database: Callable[..., str], path: Path, *, longest: int = 4 * MB) -> str:
    """Import a file in a process that may take this much more memory."""
    done = run_program(LIMITED, make_database(), path, longest, room, timeout=120)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


HEADS = {
    "nanobot": b'{"_type":"metadata","key":"a"}\n',
    "dive": b'{"line_type":"header","data":{"id":"a"}}\n',
    "jsonl": b'{"lango_store":1,"schema":"0100"}\n',
}


@pytest.mark.parametrize("name", HEADS)
def test_a_line_above_the_bound_is_refused_in_little_more_memory(
    make_sqlite: Callable[..., str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(HEADS[name] + b'{"role":"user","content":"' + b"x" * (200 * MB) + b'"}\n')
    told = imported_within(64 * MB, make_sqlite, path)
    assert "line 2 has more than 4,194,304 bytes" in told
    assert '"keys":[]' in told


@pytest.mark.parametrize("name", HEADS)
def test_a_file_with_a_hole_is_refused_at_its_beginning(
    make_sqlite: Callable[..., str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(HEADS[name])
        file.truncate(2_000 * MB)
    told = imported_within(64 * MB, make_sqlite, path, longest=interchange.LONGEST_LINE)
    assert "line 2 is long and holds NUL bytes" in told


def test_file_without_lines_above_the_bound_is_refused(make_sqlite: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / ".shepherd_session.openai.json"
    path.write_bytes(b'{"version":1,"messages":[{"content":"' + b"x" * (100 * MB) + b'"}]}')
    assert "has more than 4,194,304 bytes" in imported_within(96 * MB, make_sqlite, path)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("place", ["head", "line"])
def test_brackets_without_end_are_refused_before_a_parser_meets_them(
    make_sqlite: Callable[..., str], tmp_path: Path, name: str, place: str
) -> None:
    path = tmp_path / "a.jsonl"
    brackets = b"[" * (8 * MB)
    if place == "line":
        path.write_bytes(HEADS[name] + brackets + b"\n")
    else:
        path.write_bytes(HEADS[name].replace(b'"a"', brackets).replace(b'"0100"', brackets))
    with Store(make_sqlite()) as store:
        (report,) = interchange.import_path(store, path)
    assert report.error or report.skipped
    assert report.messages == 0


MEASURING = """
import ctypes
import sys
from pathlib import Path
from lango_store import Store, interchange
# glibc gives blocks of this size back at once only if told to; those of 32 MB and more it always does.
assert ctypes.CDLL(None).mallopt(-3, 1_000_000) == 1  # M_MMAP_THRESHOLD
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
def taken(work, *given):
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before = memory("VmRSS")
    done = work(*given)
    return memory("VmHWM") - before, done
"""

IMPORTING = (
    MEASURING
    + """
url, path, small = sys.argv[1:]
with Store(url) as store:
    interchange.import_path(store, small)
    most, (report,) = taken(interchange.import_path, store, path)
    print(most, report.messages, report.skipped, report.error)
"""
)

READING = (
    MEASURING
    + """
url, path, small, format = sys.argv[1:]
with Store(url) as store:
    def export(key):
        return interchange.export(store, f"{path}.{key}", format, keys=[key])
    for first in (small, path):
        (report,) = interchange.import_path(store, first)
        again, (second,) = taken(interchange.import_path, store, first)
        out, (exported,) = taken(export, report.keys[0])
    print(again, out, second.already_there == report.keys, exported.error)
"""
)

TEXTS = {
    "plain": lambda size: "x" * size,
    "quoted": lambda size: 'say "hello" twice\n' * (size // 20),
    "Chinese": lambda size: "\u4e2d" * (size // 3),
    "mixed": lambda size: "\U0001f600" + "x" * size,
}
TIMES = {"mixed": 11}
"""How many times its largest line an import takes, if not 4: one such letter, and Python has four bytes for each."""
FORMATS = ["nanobot", "dive", "shepherd", "jsonl"]


def exported(url: str, folder: Path, format: str, texts: list[str]) -> Path:
    """Write a session of these messages to a file."""
    with Store(url) as store:
        store.create(folder.name, messages=[Message.user(text) for text in texts])
        interchange.export(store, folder, format, keys=[folder.name])
        store.delete(folder.name)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_import_of_a_backup_takes_at_most_four_times_its_largest_line(
    make_sqlite: MakeDatabase, make_postgres: MakeDatabase, tmp_path: Path, text: str
) -> None:
    large = TEXTS[text](6 * MB)
    small = exported(make_sqlite(), tmp_path / "small", "jsonl", ["hello"])
    path = exported(make_sqlite(), tmp_path / "large", "jsonl", [large, large, "hello"])
    largest = max(map(len, path.read_bytes().splitlines()))
    for url in (make_sqlite(), make_postgres()):
        done = run_program(IMPORTING, url, path, small, timeout=120)
        taken, told = done.stdout.split(" ", 1)
        assert told == "3 [] None\n", done.stderr
        times = int(taken) / largest
        assert int(taken) < TIMES.get(text, 4) * largest + 3 * MB, f"{url}: {times:.1f} times the largest line"


def test_export_and_second_import_of_a_backup_take_at_most_five_times_its_largest_line(
    make_sqlite: MakeDatabase, make_postgres: MakeDatabase, tmp_path: Path
) -> None:
    small = exported(make_sqlite(), tmp_path / "small", "jsonl", ["hello"])
    path = exported(make_sqlite(), tmp_path / "large", "jsonl", ["x" * (4 * MB)] * 4)
    for url in (make_sqlite(), make_postgres()):
        done = run_program(READING, url, path, small, "jsonl", timeout=120)
        again, out, told = done.stdout.split(" ", 2)
        assert told == "True None\n", done.stderr
        for taken in int(again), int(out):
            assert taken < 5 * 4 * MB + 4 * MB, f"{url}: {taken / (4 * MB):.1f} times the largest line"


@pytest.mark.parametrize("format", FORMATS)
def test_the_work_of_an_import_grows_as_its_lines_do(make_database: MakeDatabase, tmp_path: Path, format: str) -> None:
    def work(count: int) -> tuple[int, int]:
        """Import so many messages, and count the calls of functions and the statements."""
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

    work(10)  # what is compiled and loaded once
    few, many = work(400), work(1_200)
    assert many[0] < 3.1 * few[0]
    assert many[1] <= 3 * few[1]
