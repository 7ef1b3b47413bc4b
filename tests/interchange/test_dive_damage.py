"""Damaged files of Dive, and files of other systems: what can be told is told, the rest is an error that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from interchange.dive_files import event, file, header, read, user
from interchange.session_files import assert_only_our_errors, messages
from support.paths import DATA

from lango_store.errors import InvalidFile
from lango_store.interchange.dive import DIVE
from lango_store.interchange.draft import Skipped
from lango_store.interchange.source import Source


def test_a_torn_last_line_is_dropped_and_reported(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user()), json.dumps(event(user(content="é")), ensure_ascii=False))
    whole = path.read_bytes()
    for cut in (whole[:-2], whole[: whole.rindex("é".encode()) + 1], whole[: whole.rindex(b"\n", 0, -1) + 2]):
        path.write_bytes(cut)
        skipped: list[Skipped] = []
        (draft,) = DIVE.read(path, skipped)
        assert [each.line for each in skipped] == [3]
        assert len(messages(draft)) == 1
        assert path.read_bytes() == cut


@pytest.mark.parametrize("last", ['{"line_type":"event","data":1e999}', "[" * 300 + "]" * 300, "{}"])
def test_a_last_line_that_is_whole_is_never_dropped(last: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="line 2"):
        read(file(tmp_path, header(), last))


def test_a_last_line_without_its_end_is_whole_if_it_can_be_read(tmp_path: Path) -> None:
    assert len(messages(read(file(tmp_path, header(), event(user()), end="")))) == 1


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "nonsense",
        "[]",
        "{}",
        '{"line_type":"event"}',
        '{"line_type":"event","data":{"messages":[1]}}',
        '{"line_type":"event","data":{"messages":{"role":"user"}}}',
        '{"line_type":"event","data":{"usage":[1]}}',
        '{"line_type":"event","data":{"metadata":"x"}}',
        '{"line_type":"event","data":{"metadata":{"a":NaN}}}',
        '{"line_type":"event","data":{"metadata":{"a":1e999}}}',
        "[" * 100_000,
    ],
)
def test_a_bad_line_elsewhere_is_an_error_that_names_it(bad: str, tmp_path: Path) -> None:
    path = file(tmp_path, header(), bad, event(user()))
    before = path.read_bytes()
    with pytest.raises(InvalidFile, match="line 2") as raised:
        read(path)
    assert raised.value.path == str(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("first", [{"line_type": "note", "data": {}}, event(user()), "{", ""])
def test_a_file_without_a_header_is_an_error(first: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="header"):
        read(file(tmp_path, first))


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        read(tmp_path / "none.jsonl")


def test_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user()))
    rest = Source(path).lines()
    next(rest)
    with path.open("a") as more:
        more.write(json.dumps(event(user(), id="evt-2")) + "\n")
    with pytest.raises(InvalidFile, match="import again"):
        list(rest)


@pytest.mark.parametrize("name", ["tools", "compacted-once"])
def test_damaged_files_give_our_errors_only(name: str, tmp_path: Path) -> None:
    original = (DATA / "dive" / f"{name}.jsonl").read_bytes()
    assert_only_our_errors(DIVE.read, original, tmp_path / "s.jsonl", rounds=300, write=DIVE.write)


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    for name, start in (("a.jsonl", '{"_type": "metadata"}'), ("a.json", '{"line_type":"header"}'), ("b.jsonl", "")):
        (tmp_path / name).write_text(start)
        assert not DIVE.recognises(tmp_path / name)
