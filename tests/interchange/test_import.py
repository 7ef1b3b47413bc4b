"""Imports in every format: files are checked first and never changed, and everything is reported."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from support.drafts import draft
from support.factories import message, messages
from support.paths import DATA
from support.session_checks import assert_sound

from lango_store import InvalidFile, Store, interchange
from lango_store.errors import DatabaseUnavailable
from lango_store.interchange import exporting, format, pieces
from lango_store.interchange.draft import Part
from lango_store.testing import Clock

CONVERSATION = DATA / "nanobot_g1" / "telegram_12345678.jsonl"


def rows(store: Store) -> list[Any]:
    with store.engine.connect() as connection:
        tables = ("lango_session", "lango_turn", "lango_message")
        return [connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1, 2")).all() for table in tables]


def folder_with(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in names:
        shutil.copy(DATA / name, folder)
    return folder


def test_second_import_changes_nothing(opened: Store) -> None:
    first = interchange.import_path(opened, DATA / "nanobot_g1")
    before = rows(opened)
    second = interchange.import_path(opened, DATA / "nanobot_g1")
    assert sum(report.sessions for report in first) == 8
    assert [report.keys for report in second] == [[]] * len(second)
    there = [report.already_there for report in second]
    assert there == [report.keys for report in first]
    assert rows(opened) == before


def test_second_import_reports_a_continued_session_as_already_there(opened: Store) -> None:
    interchange.import_path(opened, CONVERSATION)
    opened.append_message("telegram:12345678", message("and now?"))
    (report,) = interchange.import_path(opened, CONVERSATION)
    assert (report.already_there, report.collided, report.error) == (["telegram:12345678"], [], None)
    assert opened.conversation("telegram:12345678").info().message_count == 7


def test_existing_different_session_is_reported_as_collision_and_kept(opened: Store) -> None:
    opened.create("telegram:12345678", title="mine", messages=[message("something else")])
    before = rows(opened)
    (report,) = interchange.import_path(opened, CONVERSATION)
    assert (report.already_there, report.collided, report.error) == ([], ["telegram:12345678"], None)
    assert (report.sessions, report.messages) == (0, 0)
    assert rows(opened) == before


def test_existing_expired_session_is_reported_as_collision(opened: Store, clock: Clock) -> None:
    opened.create("telegram:12345678", ttl=timedelta(hours=1))
    clock.move(hours=2)
    (report,) = interchange.import_path(opened, CONVERSATION)
    assert report.collided == ["telegram:12345678"]


def test_file_that_grew_after_import_is_reported_as_collision(opened: Store, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "nanobot_g1/cli_direct.jsonl")
    interchange.import_path(opened, folder)
    with (folder / "cli_direct.jsonl").open("a") as file:
        file.write('{"role": "user", "content": "more", "timestamp": "2026-11-21T20:40:00"}\n')
    (report,) = interchange.import_path(opened, folder)
    assert report.collided == ["cli:direct"]


def test_dry_run_of_an_import_returns_the_reports_of_the_real_import(opened: Store, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "nanobot_g1/telegram_a_b.jsonl", "nanobot_g1/cli_direct.jsonl")
    shutil.copy(folder / "telegram_a_b.jsonl", folder / "zz.jsonl")
    (folder / "zz.jsonl").write_text((folder / "zz.jsonl").read_text() + "{}\n[\n")
    (folder / "bad.jsonl").write_text("no\n")
    before = rows(opened)
    planned = interchange.import_path(opened, folder, dry_run=True)
    assert rows(opened) == before
    done = interchange.import_path(opened, folder)
    assert all(report.dry_run for report in planned)
    assert [report.model_copy(update={"dry_run": False}) for report in planned] == done
    assert [(report.sessions, len(report.collided), len(report.skipped), bool(report.error)) for report in done] == [
        (0, 0, 0, True),
        (1, 0, 0, False),
        (1, 0, 0, False),
        (0, 1, 2, False),
    ]


def test_import_never_changes_source_files(opened: Store, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "nanobot_g1/cli_direct.jsonl", "nanobot_g2/corrupt/all_bad.jsonl")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    interchange.import_path(opened, folder)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_report_counts_imported_sessions_and_messages(opened: Store, given: Any) -> None:
    parts = [
        Part([message("be brief", role="system", tokens=3)]),
        Part(
            [message("a", tokens=5), message("b", role="assistant", tokens=7)],
            kind="turn",
            id="t1",
            usage={"input_tokens": 8},
            metadata={"m": 1},
            extra={"e": 1},
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        ),
        Part([], kind="turn"),
        Part([message("in short: a, b", role="assistant", tokens=2)], kind="compaction"),
        Part([message("c")], kind="turn"),
    ]
    path = given(draft("k", *parts, last_consolidated=2, forked_from="j", fields={"agent_id": "me"}))
    (report,) = interchange.import_path(opened, path)
    info = opened.conversation("k").info()
    assert (report.keys, report.messages, info.agent_id, info.forked_from) == (["k"], 5, "me", "j")
    assert (info.last_seq, info.message_count, info.token_count, info.turn_count) == (6, 5, 17, 4)
    assert (info.summary_turn, info.summarized_upto, info.last_consolidated) == (3, 3, 2)
    assert [each.seq for each in opened.conversation("k").all_messages()] == [1, 2, 3, 5, 6]
    assert_sound(opened)
    session = opened.open("k")
    assert [each.content for each in session.messages()] == ["in short: a, b", "c"]
    assert [(each.replaced_upto, len(each.summary)) for each in session.turns.list_compactions()] == [(3, 1)]
    assert (session.info().turn_count, session.total_usage()) == (4, {"input_tokens": 8})
    assert session.save_turn([message("d")]).turn_no == 5
    with opened.engine.connect() as connection:
        assert connection.execute(
            sa.text("SELECT turn_no, kind, first_seq, last_seq, replaced_upto FROM lango_turn ORDER BY turn_no")
        ).all() == [
            (1, "turn", 2, 3, None),
            (2, "turn", 4, 3, None),
            (3, "compaction", 5, 5, 3),
            (4, "turn", 6, 6, None),
            (5, "turn", 7, 7, None),
        ]


def test_imported_session_is_exported_unchanged(opened: Store, given: Any) -> None:
    long = [Part(messages(700)), Part(messages(900), kind="turn", id="long"), Part(messages(2))]
    parts = [*long, Part([], kind="turn", id="none"), Part([message("sum")], kind="compaction"), Part(messages(1))]
    interchange.import_path(opened, given(draft("k", *parts, extra={"given": {"a": "\0"}})))
    with opened._context.snapshot() as connection:
        back = exporting.draft(connection, opened._context.now(connection), "k", "given")
        found = [*back.parts]
    assert back.extra == {"given": {"a": "\0"}}
    assert [(part.kind, part.id, len(part.messages), part.first_seq, part.replaced_upto) for part in found] == [
        *((None, None, 1, seq, None) for seq in range(1, 701)),
        ("turn", "long", 900, 701, None),
        (None, None, 1, 1601, None),
        (None, None, 1, 1602, None),
        ("turn", "none", 0, 1603, None),
        ("compaction", None, 1, 1604, 1602),
        (None, None, 1, 1605, None),
    ]
    there = [each.content for part in found for each in part.messages]
    assert there == [each.content for part in parts for each in part.messages]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([Part(messages(600)), Part([message("a", id="1")]), Part([message("b", id="1")])], "with the same id"),
        ([Part([message("fine"), message({1: "no text"})])], "content: "),
    ],
)
def test_file_with_a_message_that_cannot_be_stored_imports_nothing(
    opened: Store, given: Any, parts: list[Part], reason: str
) -> None:
    before = rows(opened)
    for dry_run in (True, False):
        path = given(draft("first", Part(messages(3))), draft("k", *parts))
        (report,) = interchange.import_path(opened, path, dry_run=dry_run)
        assert reason in str(report.error)
        assert (report.keys, report.messages) == ([], 0)
    assert rows(opened) == before


def test_file_of_many_sessions_is_checked_whole_and_then_written_in_batches(
    opened: Store, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "ROWS", 6)
    committed: list[int] = []
    monkeypatch.setattr(pieces.Pause, "after_batch", lambda _: committed.append(opened.count()))
    sound = [draft(f"k{number}", Part(messages(3))) for number in range(5)]
    (report,) = interchange.import_path(opened, given(*sound, draft("bad", Part([message({1: "no text"})]))))
    assert (report.keys, committed) == ([], [])
    (report,) = interchange.import_path(opened, given(*sound))
    assert (report.sessions, committed) == (5, [2, 4, 5])


def test_import_can_run_in_callers_transaction(opened: Store) -> None:
    with opened.engine.begin() as connection:
        (report,) = interchange.import_path(opened.using(connection), CONVERSATION)
        assert report.sessions == 1
        connection.rollback()
    assert opened.count() == 0


def test_exactly_one_of_two_concurrent_imports_creates_the_session(url: str) -> None:
    together = Barrier(2)

    def run_one() -> list[str]:
        with Store(url) as store:
            store.ping()
            together.wait()
            (report,) = interchange.import_path(store, CONVERSATION)
            return report.keys or [*report.already_there, "twice"]

    with ThreadPoolExecutor(2) as pool:
        found = [each.result() for each in [pool.submit(run_one), pool.submit(run_one)]]
    assert sorted(found) == [["telegram:12345678"], ["telegram:12345678", "twice"]]


def test_imported_sessions_get_default_ttl_and_token_counts(url: str, clock: Clock) -> None:
    ttl = timedelta(days=1)
    with Store(url, clock=clock, default_ttl=ttl, token_counter=lambda each: len(str(each.content))) as store:
        interchange.import_path(store, CONVERSATION)
        info = store.conversation("telegram:12345678").info()
        assert (info.expires_at, info.ttl_seconds) == (clock() + ttl, 86_400)
        assert (
            info.token_count
            == sum(each.tokens or 0 for each in store.conversation("telegram:12345678").all_messages())
            > 0
        )
        (again,) = interchange.import_path(store, CONVERSATION)
        assert again.already_there == ["telegram:12345678"]


def test_import_recognizes_format_of_each_file_in_folder(opened: Store, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "nanobot_g1/cli_direct.jsonl", "nanobot_g1/golden.json")
    (folder / ".hidden").touch()
    (folder / "deeper").mkdir()
    reports = interchange.import_path(opened, folder)
    assert sorted((Path(each.path).name, each.format, each.error) for each in reports) == [
        ("cli_direct.jsonl", "nanobot", None),
        ("golden.json", None, None),
    ]
    assert [each.format for each in interchange.import_path(opened, folder, format="nanobot")] == ["nanobot"]


def test_file_of_unknown_format_is_refused(opened: Store, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for name, reason in (("notes.txt", "the format is unknown"), ("missing", "is not a file or folder")):
        (report,) = interchange.import_path(opened, tmp_path / name)
        assert reason in str(report.error)


@pytest.mark.parametrize("name", ["a.jsonl", ".shepherd_session.openai.json", "lango.db"])
@pytest.mark.parametrize("format", [None, *interchange.FORMATS])
def test_empty_file_is_refused_by_every_format(opened: Store, tmp_path: Path, name: str, format: str | None) -> None:
    for content in ("", "\n\n"):
        (tmp_path / name).write_text(content)
        (report,) = interchange.import_path(opened, tmp_path / name, format=format)
        assert report.error is not None
    assert opened.count(expired=None) == 0


def test_unknown_format_name_raises_value_error(opened: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'foo' is not a format: give one of "):
        interchange.import_path(opened, tmp_path, format="foo")
    with pytest.raises(ValueError, match="'foo' is not a format: give one of "):
        interchange.export(opened, tmp_path, "foo", everything=True)


@pytest.mark.parametrize("format", [None, *interchange.FORMATS])
def test_pipe_or_broken_link_is_refused_without_waiting(opened: Store, tmp_path: Path, format: str | None) -> None:
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("gone.jsonl", "pipe.jsonl"):
        (report,) = interchange.import_path(opened, tmp_path / name, format=format)
        assert "is not a file or folder" in str(report.error)


def test_unreadable_path_raises_store_error(opened: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        interchange.import_path(opened, tmp_path / ("x" * 300))


def test_import_into_unavailable_database_raises_database_unavailable(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/nowhere/a.db") as store, pytest.raises(DatabaseUnavailable):
        interchange.import_path(store, CONVERSATION)


def test_file_with_invalid_utf8_in_its_name_is_imported_and_reported(opened: Store, tmp_path: Path) -> None:
    good, bad = (tmp_path / os.fsdecode(name) for name in (b"\xff_1.jsonl", b"\xff_2.jsonl"))
    good.write_bytes(CONVERSATION.read_bytes())
    bad.write_text("no\n")
    reports = interchange.import_path(opened, tmp_path, format="nanobot")
    assert [(report.keys, bool(report.error)) for report in reports] == [(["telegram:12345678"], False), ([], True)]
    assert all(json.loads(report.model_dump_json())["path"].endswith(".jsonl") for report in reports)
