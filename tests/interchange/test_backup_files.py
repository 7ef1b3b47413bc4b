"""Backups: every stored row is in the file, and a damaged file is refused as a whole."""

import json
import random
import signal
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.backup_lines import sealed
from support.databases import MakeDatabase
from support.factories import message, messages
from support.json_values import json_values
from support.processes import run_program
from support.rows import ODD_TEXTS, MessageRowFactory, SessionRowFactory, all_fields, all_rows, fill, put
from support.waiting import assert_waiting, stream_and_enqueue

from lango_store import InvalidFile, Store
from lango_store._operations import paging
from lango_store.interchange import backups, export, import_path, pieces
from lango_store.interchange.backup_reading import load
from lango_store.interchange.backup_writing import first_line, last_line, session_lines
from lango_store.interchange.pieces import Outcome
from lango_store.rows import transfer
from lango_store.tables import SCHEMA_REVISION


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for exports, which has no database."""
    return tmp_path / "out"


@pytest.mark.slow
def test_backup_is_one_file_with_live_and_expired_sessions(source: Store, target: Store, folder: Path) -> None:
    fill(source)
    done = export(source, folder, "backup", everything=True)
    (path,) = (folder).iterdir()
    assert {each.path for each in done} == {str(path)}
    assert {each.key for each in done} == all_rows(source).keys()
    (report,) = import_path(target, folder)
    assert (report.format, report.sessions, report.error) == ("backup", 3, None)
    assert report.messages == len(ODD_TEXTS) + 2
    assert all_fields(target) == all_fields(source)
    assert exported(target) == exported(source)
    before = all_rows(target)
    (again,) = import_path(target, folder)
    assert (again.sessions, len(again.already_there)) == (0, 3)
    assert all_rows(target) == before


def test_backup_of_single_session_has_a_fixed_file_name(source: Store, target: Store, folder: Path) -> None:
    for key in ("../../etc/passwd", "b"):
        source.create(key, messages=messages(1))
    (done,) = export(source, folder, "backup", keys=["../../etc/passwd"])
    assert [str(path) for path in folder.iterdir()] == [done.path]
    assert import_path(target, folder)[0].keys == ["../../etc/passwd"]


@pytest.mark.parametrize("rest", [b"\xff\xfe", b"\n\n \n\x80", b"more", b'{"sessions":0}\n'])
def test_backup_with_bytes_after_last_line_is_refused(source: Store, target: Store, folder: Path, rest: bytes) -> None:
    source.create("a", messages=messages(2))
    export(source, folder, "backup", everything=True)
    path = folder / backups.FILE_NAME
    path.write_bytes(path.read_bytes() + rest)
    (report,) = import_path(target, folder)
    assert "continues after its last line" in str(report.error)
    assert target.count() == 0


def test_dry_run_reports_what_an_import_does_and_writes_nothing(source: Store, target: Store, folder: Path) -> None:
    for key in ("a", "b", "c"):
        source.create(key, messages=messages(2))
    export(source, folder, "backup", everything=True)
    import_path(target, folder)
    target.delete("a")
    target.append_message("b", message())
    before = all_rows(target)
    (dry,) = import_path(target, folder, dry_run=True)
    assert (dry.keys, dry.messages, dry.collided, dry.already_there) == (["a"], 2, ["b"], ["c"])
    assert all_rows(target) == before
    (wet,) = import_path(target, folder)
    assert wet == dry.model_copy(update={"dry_run": False})


def dumped(connection: sa.Connection, keys: Sequence[str]) -> Iterator[bytes]:
    yield first_line()
    for key in keys:
        yield from session_lines(connection, key)
    yield last_line(len(keys))


def exported(store: Store) -> list[bytes]:
    with store._context.snapshot() as connection:
        return list(dumped(connection, [key for key, _ in transfer.heads(connection, "", 1000)]))


def imported(store: Store, lines: Iterable[bytes]) -> list[Outcome]:
    with store._context.transaction() as connection:
        found = load(connection, "backup.jsonl", lines)
        return [each for each in found if each.name is None]


def test_backup_has_drafts_and_inbox_but_no_lease(source: Store, target: Store, folder: Path) -> None:
    stored = stream_and_enqueue(source)
    export(source, folder, "backup", everything=True)
    (report,) = import_path(target, folder)
    assert (report.keys, report.error) == (["k"], None)
    assert_waiting(target, stored)
    assert exported(target) == exported(source)


def test_export_includes_sessions_with_drafts_of_turns_with_generated_ids(source: Store, folder: Path) -> None:
    for number in range(30):
        source.open(f"k{number}").turn().begin().write("half")
    assert [each.error for each in export(source, folder, "backup", everything=True)] == [None] * 30


def test_backup_lines_are_standard_json(source: Store) -> None:
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


@pytest.mark.slow
@given(st.lists(json_values(max_leaves=15).filter(lambda value: value is not None), max_size=4))
def test_backup_restores_any_value_unchanged(values: list[object]) -> None:
    with Store("sqlite://", migrate=True) as source, Store("sqlite://", migrate=True) as target:
        source.create("k", messages=[message(value) for value in values], metadata={"values": values})
        imported(target, exported(source))
        own = {"revision": source.conversation("k").info().revision}
        assert target.get("k").model_copy(update=own) == source.get("k")


def test_file_cut_to_any_length_is_refused(source: Store, folder: Path, make_sqlite: MakeDatabase) -> None:
    source.create("a", messages=messages(1))
    export(source, folder, "backup", everything=True)
    path = folder / backups.FILE_NAME
    whole = path.read_bytes()
    with Store(make_sqlite()) as target:
        for length in range(len(whole) - 1):  # a file that only lacks its last newline is complete
            path.write_bytes(whole[:length])
            (report,) = import_path(target, path)
            assert report.error is not None
        assert target.count() == 0


def test_file_with_missing_duplicate_or_swapped_line_is_refused(source: Store, make_sqlite: MakeDatabase) -> None:
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


def test_file_with_any_character_changed_is_refused(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", title="Oslo", messages=messages(2))
    text = b"\n".join(exported(source)).decode()
    chance = random.Random(1)
    with Store(make_sqlite()) as target:
        for _ in range(300):
            place = chance.randrange(text.index("\n") + 1, len(text))
            changed = text[:place] + chance.choice([c for c in 'x7"{}:,' if c != text[place]]) + text[place + 1 :]
            with pytest.raises(InvalidFile):
                imported(target, changed.encode().split(b"\n"))
        assert target.count() == 0


def export_of_20(source: Store, folder: Path) -> Path:
    for number in range(20):
        source.create(f"k{number:02}", messages=messages(3))
    export(source, folder, "backup", everything=True)
    return folder / backups.FILE_NAME


KILLED = """
import os, signal, sys
from lango_store import Store
from lango_store.interchange import import_path, pieces

pieces.ROWS = 16
batches = 0
write = pieces.Writer.write

def write_and_die(*arguments):
    global batches
    yield from write(*arguments)
    batches += 1
    if batches == 3:
        os.kill(os.getpid(), signal.SIGKILL)

pieces.Writer.write = write_and_die
with Store(sys.argv[2]) as target:
    import_path(target, sys.argv[1])
"""


@pytest.mark.slow
def test_killed_import_keeps_committed_batches_and_can_be_continued(source: Store, target: Store, folder: Path) -> None:
    path = export_of_20(source, folder)
    done = run_program(KILLED, str(path), target.engine.url.render_as_string(hide_password=False))
    assert done.returncode == -signal.SIGKILL
    assert target.count() == 8  # two batches of four sessions, each with three messages
    (report,) = import_path(target, path)
    assert (report.sessions, len(report.already_there)) == (12, 8)
    assert all_fields(target) == all_fields(source)


def test_file_is_validated_to_its_end_before_the_first_batch_is_stored(
    source: Store, target: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 16)
    path = export_of_20(source, folder)
    whole = path.read_text().splitlines()
    assert sum(line.startswith('{"session"') for line in whole) == 20
    other = {"message": {"seq": 3, "role": "user", "content": "more", "created_at": "2026-11-21T12:00:00+00:00"}}
    *rows, end, last = whole
    for broken, reason in (
        ([*rows, end], "the file is cut off"),
        ([*rows, end.replace('"messages":3', '"messages":4'), last], "do not match its counts"),
        (sealed([*rows, end, *whole[1:6], '{"sessions":21}']), "session 'k00' occurs twice"),
        (sealed([*rows, json.dumps(other), end, last]), "seq: 3 follows 3"),
    ):
        path.write_text("\n".join(broken))
        (report,) = import_path(target, path)
        assert reason in str(report.error)
        assert "nothing of this file was imported" in str(report.error)
        assert (target.count(), report.keys) == (0, [])


@pytest.mark.slow
def test_append_between_import_batches_does_not_wait(
    source: Store, target: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ROWS", 16)
    path = export_of_20(source, folder)
    target.create("live")
    seen: list[int] = []

    def append(_: object) -> None:
        with Store(target.engine.url.render_as_string(hide_password=False)) as other:
            other.append_message("live", message())
            seen.append(other.count())

    monkeypatch.setattr(pieces.Pause, "after_batch", append)
    import_path(target, path)
    assert seen == [5, 9, 13, 17, 21, 21]


def test_backup_with_crlf_line_ends_is_accepted(source: Store, target: Store) -> None:
    source.create("a", messages=messages(2))
    imported(target, [line + b"\r\n" for line in exported(source)])
    assert all_rows(target) == all_rows(source)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ('{"lango_store":2,"schema":"0100"}', "upgrade the package"),
        ('{"lango_store":1,"schema":"9999"}', "upgrade the package"),
        ('{"lango_store":1,"schema":"0004"}', "schema"),
        ("{}", "not a backup of lango_store"),
        ("[1]", "not a backup of lango_store"),
        ("hello", "not a backup of lango_store"),
    ],
)
def test_backup_with_invalid_first_line_is_refused(target: Store, first: str, reason: str) -> None:
    with pytest.raises(InvalidFile, match=reason):
        imported(target, [first.encode(), b'{"sessions":0}'])


@pytest.mark.slow
def test_export_and_import_never_hold_a_whole_long_session_in_memory(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "ROWS", 20)
    monkeypatch.setattr(pieces, "ROWS", 10)

    def copied(key: str) -> None:
        with source._context.snapshot() as found, target._context.transaction() as writing:
            list(load(writing, "backup.jsonl", dumped(found, [key])))

    put(
        source,
        SessionRowFactory(key="short", last_seq=1, message_count=1),
        MessageRowFactory(session_key="short", seq=1),
    )
    copied("short")  # compiles the statements
    put(source, SessionRowFactory(key="k", last_seq=900, message_count=900))
    put(source, *(MessageRowFactory(seq=seq, content=f'"{"x" * 10_000}"') for seq in range(1, 901)))
    tracemalloc.start()
    try:
        copied("k")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert target.conversation("k").info().message_count == 900
    assert peak < 3_000_000  # of 9,000,000
