"""Our own format: whatever a database keeps is in the file, and comes back from it into either database."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from commands import run
from conftest import MakeDatabase
from factories import message, messages
from hypothesis import given
from hypothesis import strategies as st
from rows import ODD_TEXTS, all_rows, fill, message_row, put, session_row

from lango_store import InvalidFile, Store
from lango_store.backup.lines import read_row, row_line
from lango_store.backup.reading import Outcome, load
from lango_store.backup.writing import first_line, last_line, session_lines
from lango_store.interchange import backups, export, files_of, import_path
from lango_store.operations import transfer
from lango_store.operations.binds import MESSAGE
from lango_store.tables import SCHEMA_REVISION

KINDS = ["sqlite", "postgresql"]


def dumped(connection: sa.Connection, keys: Sequence[str]) -> Iterator[str]:
    yield first_line()
    for key in keys:
        yield from session_lines(connection, key)
    yield last_line(len(keys))


def exported(store: Store) -> list[str]:
    with store.access.snapshot() as connection:
        return list(dumped(connection, transfer.keys(connection, "", 1000)))


def imported(store: Store, lines: Iterable[str]) -> list[Outcome]:
    with store.access.transaction() as connection:
        return list(load(connection, "backup.jsonl", lines))


@pytest.fixture
def source(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database()) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest) -> Iterator[Store]:
    make: MakeDatabase = request.getfixturevalue(
        {"sqlite": "make_sqlite", "postgresql": "make_postgres"}[request.param]
    )
    with Store(make()) as opened:
        yield opened


def test_every_column_of_every_row_comes_back_in_either_database(source: Store, target: Store) -> None:
    fill(source)
    imported(target, exported(source))
    assert all_rows(target) == all_rows(source)
    assert exported(target) == exported(source)


def test_a_line_is_json_that_other_programs_read(source: Store) -> None:
    source.create("k", settings={"thinking": "high"}, title="Oslo")
    source.append_message("k", message({"text": "hé", "n": 1.5}, id="m-1"))
    first, session, line, end, last = map(json.loads, exported(source))
    assert first == {"lango_store": 1, "schema": SCHEMA_REVISION}
    assert (session["session"]["key"], session["session"]["settings"]) == ("k", {"thinking": "high"})
    assert line["message"]["content"] == {"text": "hé", "n": 1.5}
    assert (line["message"]["seq"], line["message"]["id"], line["message"]["role"]) == (1, "m-1", "user")
    assert "author" not in line["message"]
    assert end["end"]["messages"] == 1
    assert last == {"sessions": 1}


def test_json_that_cannot_stand_inside_a_line_is_quoted_and_said_to_be(source: Store) -> None:
    put(source, session_row("k", last_seq=1, message_count=1), message_row("k", 1, content="[1,\n2]", extra='{"a":1}'))
    line = json.loads(exported(source)[2])
    assert line["message"]["content"] == "[1,\n2]"
    assert line["message"]["extra"] == {"a": 1}
    assert line["quoted"] == ["content"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
texts_as_kept = st.one_of(
    json_values.map(json.dumps),
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1)),
    json_values.map(lambda value: f" {json.dumps(value)}\t"),
    st.sampled_from(ODD_TEXTS),
    st.text(),
)
plain_texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(texts_as_kept, plain_texts), max_size=5))
def test_any_text_comes_back_as_it_was(given: list[tuple[str, str]]) -> None:
    lines = [
        row_line(MESSAGE, message_row("k", seq, content=content, extra=content, author=text, id=text))
        for seq, (content, text) in enumerate(given, 1)
    ]
    for seq, (line, (content, text)) in enumerate(zip(lines, given, strict=True), 1):
        assert "\n" not in line
        row = read_row(MESSAGE, line)
        expected = message_row("k", seq, content=content, extra=content, author=text, id=text)
        assert row | {"session_key": "k"} == expected


@given(st.lists(json_values.filter(lambda value: value is not None), max_size=4))
def test_any_value_that_the_store_takes_is_the_same_after_a_journey(values: list[object]) -> None:
    with Store("sqlite://", migrate=True) as source, Store("sqlite://", migrate=True) as target:
        source.create("k", messages=[message(value) for value in values], metadata={"values": values})
        imported(target, exported(source))
        assert target.get("k") == source.get("k")


def test_a_second_import_changes_nothing(source: Store, target: Store) -> None:
    fill(source)
    lines = exported(source)
    assert {each.state for each in imported(target, lines)} == {"imported"}
    before = all_rows(target)
    assert {each.state for each in imported(target, lines)} == {"already there"}
    assert all_rows(target) == before


def test_a_key_that_holds_something_else_is_left_alone_and_the_others_are_imported(
    source: Store, target: Store
) -> None:
    source.create("a", messages=messages(2))
    source.create("b", messages=messages(2))
    target.create("a", messages=messages(1))
    found = imported(target, exported(source))
    assert [(each.key, each.state) for each in found] == [("a", "collided"), ("b", "imported")]
    assert [each.content for each in target.messages("a")] == ["message 0"]
    assert len(target.messages("b")) == 2


def test_a_file_cut_off_after_any_line_is_noticed_and_nothing_is_imported(source: Store, target: Store) -> None:
    source.create("a", messages=messages(2))
    source.create("b", messages=messages(1))
    source.create("c")
    lines = exported(source)
    for length in range(len(lines)):
        with pytest.raises(InvalidFile):
            imported(target, lines[:length])
        assert target.count() == 0
    imported(target, lines)
    assert target.count() == 3


def test_a_file_cut_off_within_any_line_is_noticed(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", messages=messages(1))
    lines = exported(source)
    with Store(make_sqlite()) as target:
        for place, line in enumerate(lines):
            for length in range(len(line)):
                with pytest.raises(InvalidFile):
                    imported(target, [*lines[:place], line[:length]])
        assert target.count() == 0


def test_a_file_with_any_line_left_out_doubled_or_swapped_is_noticed(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", messages=messages(3))
    source.create("b", messages=messages(2))
    lines = exported(source)
    broken = [lines[:place] + lines[place + 1 :] for place in range(len(lines))]
    broken += [[*lines[: place + 1], *lines[place:]] for place in range(len(lines))]
    broken += [
        [*lines[:place], second, first, *lines[place + 2 :]] for place, (first, second) in enumerate(pairwise(lines))
    ]
    with Store(make_sqlite()) as target:
        for each in broken:
            with pytest.raises(InvalidFile, match=r"line \d+: .*nothing of this file was imported"):
                imported(target, each)
        assert target.count() == 0


def test_a_file_with_any_character_changed_is_noticed(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", title="Oslo", messages=messages(2))
    text = "\n".join(exported(source))
    chance = random.Random(1)
    with Store(make_sqlite()) as target:
        for _ in range(300):
            place = chance.randrange(text.index("\n") + 1, len(text))
            changed = text[:place] + chance.choice([c for c in 'x7"{}:,' if c != text[place]]) + text[place + 1 :]
            with pytest.raises(InvalidFile):
                imported(target, changed.split("\n"))
        assert target.count() == 0


def test_a_file_that_went_through_windows_is_the_same_file(source: Store, target: Store) -> None:
    source.create("a", messages=messages(2))
    imported(target, [line + "\r\n" for line in exported(source)])
    assert all_rows(target) == all_rows(source)


@pytest.mark.parametrize("first", ['{"lango_store":2,"schema":"0003"}', '{"lango_store":1,"schema":"9999"}'])
def test_a_file_of_a_newer_release_says_so(target: Store, first: str) -> None:
    with pytest.raises(InvalidFile, match="upgrade the package"):
        imported(target, [first, '{"sessions":0}'])


@pytest.mark.parametrize("first", ["", "{}", "[1]", '"lango_store"', "hello", '{"_type": "metadata"}'])
def test_another_systems_file_is_refused(target: Store, first: str) -> None:
    with pytest.raises(InvalidFile, match="not an export of lango_store"):
        imported(target, [first, '{"sessions":0}'])


def test_an_export_of_nothing_is_a_whole_file(target: Store) -> None:
    lines = exported(target)
    assert len(lines) == 2
    assert imported(target, lines) == []


def test_a_long_session_is_never_in_memory_as_a_whole(source: Store, target: Store) -> None:
    content = "x" * 10_000
    put(source, session_row("k", last_seq=3000, message_count=3000))
    for start in range(1, 3001, 500):
        put(source, *(message_row("k", seq, content=f'"{content}"') for seq in range(start, start + 500)))
    tracemalloc.start()
    try:
        with source.access.snapshot() as reading, target.access.transaction() as writing:
            list(load(writing, "backup.jsonl", dumped(reading, ["k"])))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert target.info("k").message_count == 3000
    assert peak < 15_000_000  # of 30,000,000


# As files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for exports, where no database lies."""
    return tmp_path / "out"


def test_an_export_is_one_file_of_all_sessions_expired_ones_too(source: Store, target: Store, folder: Path) -> None:
    fill(source)
    done = export(source, folder, "jsonl", everything=True)
    (path,) = (folder).iterdir()
    assert {each.path for each in done} == {str(path)}
    assert {each.key for each in done} == all_rows(source).keys()
    (report,) = import_path(target, folder)
    assert (report.format, report.sessions, report.error) == ("jsonl", 3, None)
    assert report.messages == len(ODD_TEXTS) + 2
    assert all_rows(target) == all_rows(source)


def test_the_same_store_gives_the_same_file_and_a_changed_one_never_replaces_it(source: Store, folder: Path) -> None:
    source.create("a", messages=messages(1))
    source.create("b")
    export(source, folder, "jsonl", everything=True)
    before = (folder / backups.FILE_NAME).read_bytes()
    export(source, folder, "jsonl", everything=True)
    source.append_message("a", message())
    with pytest.raises(InvalidFile, match="other content"):
        export(source, folder, "jsonl", everything=True)
    assert (folder / backups.FILE_NAME).read_bytes() == before


def test_one_session_by_itself_is_a_file_too(source: Store, target: Store, folder: Path) -> None:
    for key in ("../../etc/passwd", "b"):
        source.create(key, messages=messages(1))
    (done,) = export(source, folder, "jsonl", keys=["../../etc/passwd"])
    assert [str(path) for path in folder.iterdir()] == [done.path]
    assert import_path(target, folder)[0].keys == ["../../etc/passwd"]


def test_what_cannot_be_exported_is_told_of_and_the_rest_is_a_whole_file(
    make_sqlite: MakeDatabase, target: Store, folder: Path
) -> None:
    with Store(make_sqlite()) as source:
        for key in ("a", "b", "c"):
            source.create(key, messages=messages(2))
        with source.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE lango_message SET created_at = 'yesterday' WHERE session_key = 'b' AND seq = 2"
            )
        done = export(source, folder, "jsonl", keys=["a", "b", "c", "nobody"])
    assert [each.key for each in done if each.error is None] == ["a", "c"]
    assert "created_at" in str(done[1].error)
    assert "no session 'nobody'" in str(done[3].error)
    assert import_path(target, folder)[0].keys == ["a", "c"]


def test_a_damaged_file_is_an_error_in_its_report_and_the_next_file_is_imported(
    source: Store, target: Store, folder: Path
) -> None:
    source.create("a", messages=messages(2))
    source.create("b", messages=messages(2))
    export(source, folder, "jsonl", keys=["b"])
    whole = folder / backups.FILE_NAME
    whole.rename(folder / "b.jsonl")
    export(source, folder, "jsonl", keys=["a"])
    (folder / "a.jsonl").write_bytes(whole.read_bytes()[:-20] + b"\xff")
    whole.unlink()
    first, second = import_path(target, folder)
    assert first.keys == []
    assert f"{folder}/a.jsonl: line 5" in str(first.error)
    assert second.keys == ["b"]
    assert target.count() == 1


@pytest.mark.parametrize("rest", [b"\xff\xfe", b"\n\n \n\x80", b"more", b'{"sessions":0}\n'])
def test_bytes_after_the_last_line_fail_the_file(source: Store, target: Store, folder: Path, rest: bytes) -> None:
    source.create("a", messages=messages(2))
    export(source, folder, "jsonl", everything=True)
    path = folder / backups.FILE_NAME
    path.write_bytes(path.read_bytes() + rest)
    (report,) = import_path(target, folder)
    assert "goes on after its last line" in str(report.error)
    assert target.count() == 0


def test_a_dry_run_says_what_an_import_would_do_and_writes_nothing(source: Store, target: Store, folder: Path) -> None:
    for key in ("a", "b", "c"):
        source.create(key, messages=messages(2))
    export(source, folder, "jsonl", everything=True)
    import_path(target, folder)
    target.delete("a")
    target.append_message("b", message())
    before = all_rows(target)
    (dry,) = import_path(target, folder, dry_run=True)
    assert (dry.keys, dry.messages, dry.collided, dry.already_there) == (["a"], 2, ["b"], ["c"])
    assert all_rows(target) == before
    (wet,) = import_path(target, folder)
    assert wet == dry.model_copy(update={"dry_run": False})


def test_other_files_of_json_lines_are_not_ours(folder: Path) -> None:
    folder.mkdir()
    (folder / "other.jsonl").write_text('{"_type": "metadata", "key": "k"}\n')
    assert [name for _, name in files_of(folder)] == ["nanobot"]


def test_the_commands_export_and_import(source: Store, target: Store, folder: Path) -> None:
    fill(source)
    where = source.engine.url.render_as_string(hide_password=False)
    done = run("export", "--url", where, "--all", "--format", "jsonl", "--to", str(folder))
    assert done.returncode == 0, done.stderr
    where = target.engine.url.render_as_string(hide_password=False)
    done = run("import", "--url", where, str(folder))
    assert done.returncode == 0, done.stderr
    assert all_rows(target) == all_rows(source)
