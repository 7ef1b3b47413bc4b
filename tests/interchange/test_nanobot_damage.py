"""Damaged nanobot files: what can be read is, and the rest is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.nanobot_files import CORRUPT, HELLO, METADATA, exported, imported, lines
from support.paths import DATA

from lango_store import MessageRole, Store, interchange
from lango_store.interchange.nanobot.lines import line_from_message
from lango_store.testing import Clock


@pytest.mark.parametrize("name", [name for name, expected in CORRUPT.items() if expected is not None])
def test_damaged_files_are_read_as_nanobot_reads_them(opened: Store, clock: Clock, name: str) -> None:
    expected = CORRUPT[name]
    (key,) = imported(opened, DATA / "nanobot_g2" / "corrupt" / f"{name}.jsonl").keys
    assert key == ("empty" if name == "empty" else "k:1")
    info = opened.info(key)
    assert seen_without_times(opened, key) == expected["messages"]
    assert (info.metadata, info.last_consolidated) == (expected["metadata"], expected["last_consolidated"])
    assert (info.created_at != clock()) is expected["created_is_2026_01_01"]


def seen_without_times(store: Store, key: str) -> list[Any]:
    found = store.conversation(key).all_messages()
    return [line_from_message(each.model_copy(update={"created_at": None})) for each in found]


def test_a_file_without_a_line_that_can_be_read_makes_no_session(opened: Store) -> None:
    assert CORRUPT["all_bad"] is None
    (report,) = interchange.import_path(opened, DATA / "nanobot_g2" / "corrupt" / "all_bad.jsonl")
    assert "holds no line that can be read; line 1: is not JSON" in str(report.error)
    assert opened.count() == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("nonsense", "is not JSON"),
        ('{"role": "user", "content": "cut', "is not JSON"),
        ('{"role": "user"} {"role": "user"}', "is not JSON"),
        ('{"role": "user", "content": "\0"}', "is not JSON"),
        ("[1, 2]", "is not a JSON object (list)"),
        ("null", "is not a JSON object (NoneType)"),
        ('{"content": ' + "1" * 5_000 + "}", "cannot be read (Exceeds"),
        ('{"content": ' + "[" * 100_000 + "}", "is nested more than 201 levels deep"),
        ('{"content": ' + '{"":' * 400 + "1" + "}" * 401, "is nested more than 201 levels deep"),
    ],
)
def test_bad_lines_are_skipped_and_reported(opened: Store, file: Callable[..., Path], bad: str, reason: str) -> None:
    report = imported(opened, file(METADATA | {"last_consolidated": 2}, HELLO, bad, HELLO))
    ((line, told),) = [(each.line, each.reason) for each in report.skipped]
    assert (line, told[: len(reason)], report.messages) == (3, reason, 2)
    assert opened.info("telegram:1").last_consolidated == 2


def test_bytes_that_are_no_text_are_skipped_and_reported(opened: Store, file: Callable[..., Path]) -> None:
    path = file(METADATA, HELLO, '{"role": "user", "content": "é"}', HELLO)
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xe9"))
    report = imported(opened, path)
    assert [(each.line, each.reason[:12]) for each in report.skipped] == [(3, "is not UTF-8")]
    assert report.messages == 2


def test_what_no_column_can_hold_is_reported_and_comes_back(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    source = file(METADATA, '{"role": "assistant", "content": "x", "score": NaN}')
    report = imported(opened, source)
    assert [(each.line, each.reason[:21]) for each in report.skipped] == [(2, "stored as text only: ")]
    (kept,) = opened.conversation("telegram:1").all_messages()
    assert (kept.role, kept.content) == (MessageRole.ASSISTANT, "x")
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("consolidated", ["2", True, -1, 3, 1.0, None, [], 10**30])
def test_a_bad_count_is_nothing_and_is_mended_on_the_way_out(
    opened: Store, file: Callable[..., Path], tmp_path: Path, consolidated: Any
) -> None:
    report = imported(opened, file(METADATA | {"last_consolidated": consolidated}, HELLO, HELLO))
    assert [each.line for each in report.skipped] == [1]
    assert (opened.info("telegram:1").last_consolidated, report.messages) == (0, 2)
    assert lines(exported(opened, tmp_path, "telegram:1"))[0] == METADATA


@pytest.mark.parametrize("metadata", [None, [], "x", 1])
def test_metadata_that_is_not_an_object_is_empty(
    opened: Store, file: Callable[..., Path], tmp_path: Path, metadata: Any
) -> None:
    report = imported(opened, file(METADATA | {"metadata": metadata}, HELLO))
    assert [each.line for each in report.skipped] == [1]
    assert opened.info("telegram:1").metadata == {}
    assert lines(exported(opened, tmp_path, "telegram:1"))[0] == METADATA


@pytest.mark.parametrize("time", ["yesterday", None, 1767225600, "0001-01-01T00:00:00", "9999-12-31T23:59:59", []])
def test_a_bad_date_is_now(opened: Store, file: Callable[..., Path], clock: Clock, tmp_path: Path, time: Any) -> None:
    imported(opened, file(METADATA | {"created_at": time, "updated_at": time}, HELLO | {"timestamp": time}))
    info = opened.info("telegram:1")
    assert (info.created_at, info.updated_at) == (clock(), clock())
    (kept,) = opened.conversation("telegram:1").all_messages()
    assert kept.created_at == clock()
    assert lines(exported(opened, tmp_path, "telegram:1"))[1]["timestamp"] == time


def test_the_last_of_several_metadata_lines_counts(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    last = METADATA | {"metadata": {"title": "late"}, "last_consolidated": 1}
    report = imported(opened, file(METADATA, HELLO, last))
    assert [(each.line, each.reason) for each in report.skipped] == [(1, "metadata: a later line says otherwise")]
    info = opened.info("telegram:1")
    assert (info.title, info.last_consolidated) == ("late", 1)
    assert lines(exported(opened, tmp_path, "telegram:1")) == [HELLO, last]


def test_metadata_that_no_column_can_hold_comes_back(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    source = file(METADATA | {"metadata": {"score": float("nan")}}, HELLO)
    report = imported(opened, source)
    assert [each.line for each in report.skipped] == [1]
    assert opened.info("telegram:1").metadata == {}
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()
