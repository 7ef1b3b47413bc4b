"""Backups as files: one for a whole store or for a session, never replaced, read as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message, messages
from support.rows import ODD_TEXTS, all_fields, all_rows, fill

from lango_store import InvalidFile, Store
from lango_store.interchange import backups, export, files_of, import_path


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
    assert all_fields(target) == all_fields(source)


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


def test_what_cannot_be_exported_is_reported_and_the_rest_is_a_whole_file(
    make_sqlite: MakeDatabase, target: Store, folder: Path
) -> None:
    with Store(make_sqlite()) as source:
        for key in ("a", "b", "c", "d"):
            source.create(key, messages=messages(2))
        with source.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET created_at = 'yesterday' WHERE key = 'd'")
            connection.exec_driver_sql(
                "UPDATE lango_message SET created_at = 'yesterday' WHERE session_key = 'b' AND seq = 2"
            )
        done = export(source, folder, "jsonl", keys=["a", "b", "c", "nobody", "d"])
    assert [each.key for each in done if each.error is None] == ["a", "c"]
    assert "created_at" in str(done[1].error)
    assert "no session 'nobody'" in str(done[3].error)
    assert str(done[4].error).startswith("session 'd' cannot be read, created_at")
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
    assert "continues after its last line" in str(report.error)
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
    assert all_fields(target) == all_fields(source)
