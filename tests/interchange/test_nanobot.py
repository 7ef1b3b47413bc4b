"""Files of three generations of nanobot and of its Go port."""

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nanobot_files import G1, G2, HELLO, METADATA, exported, imported, seen
from support.paths import DATA

from lango_store import MessageRole, Store, ToolCall, interchange
from lango_store.interchange.nanobot_lines import file_name, key_of_name

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("key", G2)
def test_current_files_are_read_like_nanobot_does(opened: Store, key: str) -> None:
    golden = G2[key]
    imported(opened, DATA / "nanobot_g2" / golden["filename"])
    info = opened.conversation(key).info()
    assert json.dumps(seen(opened, key)) == json.dumps(golden["messages"])
    assert (info.metadata, info.last_consolidated) == (golden["metadata"], golden["last_consolidated"])
    assert info.created_at == datetime.fromisoformat(golden["created_at"]).astimezone(UTC)
    assert info.updated_at == datetime.fromisoformat(golden["updated_at"]).astimezone(UTC)
    assert file_name(key, "g2") == golden["filename"]


def test_history_of_an_imported_session_is_the_one_that_older_nanobot_makes(opened: Store) -> None:
    golden = G1["telegram:12345678"]
    imported(opened, DATA / "nanobot_g1" / "telegram_12345678.jsonl")
    session = opened.open("telegram:12345678")
    assert json.dumps(seen(opened, "telegram:12345678")) == json.dumps(golden["messages"])
    assert session.info().last_consolidated == golden["last_consolidated"]
    assert session.history(last=500, from_consolidated=True) == golden["history"]
    assert session.history(last=1, from_consolidated=True) == golden["history_1"]
    assert session.history(last=3, from_consolidated=True) == golden["history_3"]


@pytest.mark.parametrize("key", [key for key in G2 if key != "telegram:12345678"])  # that one has images and commands
def test_history_of_an_imported_session_is_the_one_that_current_nanobot_makes(opened: Store, key: str) -> None:
    imported(opened, DATA / "nanobot_g2" / G2[key]["filename"])
    assert opened.open(key).history(from_consolidated=True) == G2[key]["history_default"]


@pytest.mark.parametrize("key", G1["filenames"])
def test_keys_become_file_names_like_in_nanobot(key: str) -> None:
    assert file_name(key, "g1") == G1["filenames"][key]


def test_sessions_in_the_oldest_files_get_the_key_from_the_file_name(opened: Store) -> None:
    reports = interchange.import_path(opened, DATA / "nanobot_g0")
    assert [report.keys for report in reports] == [["cli:direct"], ["telegram:12345678"], ["telegram:a:b"]]
    assert [each["content"] for each in seen(opened, "telegram:12345678")] == [
        "Hello 你好 🌍",
        "Hi there!",
        "weather?",
        "",
        "22.5C",
        "22.5C.",
    ]


def test_files_of_go_port_are_readable(opened: Store) -> None:
    imported(opened, DATA / "nanobot_go" / "telegram_12345678.jsonl")
    info = opened.conversation("telegram:12345678").info()
    assert (info.title, info.metadata, info.last_consolidated) == ("x", {"title": "x"}, 2)
    assert info.updated_at == datetime(2026, 11, 21, 20, 36, 40, tzinfo=UTC)
    assert opened.conversation("telegram:12345678").all_messages()[0].content == "Hello 你好 🌍 <b>&</b>"


def test_tool_calls_are_imported_into_the_tool_calls_field(opened: Store) -> None:
    imported(opened, DATA / "nanobot_g2" / G2["telegram:12345678"]["filename"])
    asked, first = opened.conversation("telegram:12345678").all_messages()[3:5]
    assert asked.tool_calls == [
        ToolCall(id="call_1", name="get_weather", arguments='{"city": "NYC"}'),
        ToolCall(id="call_2", name="get_time", arguments="{}"),
    ]
    assert (first.role, first.tool_call_id, first.name) == (MessageRole.TOOL, "call_1", "get_weather")


def test_extra_of_an_imported_message_has_only_fields_without_a_column(opened: Store) -> None:
    imported(opened, DATA / "nanobot_g2" / G2["telegram:12345678"]["filename"])
    extras = [each.extra for each in opened.conversation("telegram:12345678").all_messages()]
    assert extras[2] == {"timestamp": "2026-11-21T20:35:51.407660", "media": ["/tmp/a.png"]}
    assert list(extras[3]) == ["timestamp", "reasoning_content", "thinking_blocks"]
    assert [each for each in extras if "_nanobot" in each] == []


@pytest.mark.parametrize(
    ("name", "first", "key"),
    [
        ("telegram_a_b", METADATA | {"key": "telegram:a_b"}, "telegram:a_b"),
        ("telegram_a_b", {k: v for k, v in METADATA.items() if k != "key"}, "telegram:a_b"),
        ("telegram_a_b", METADATA | {"key": 7}, "telegram:a_b"),
        ("telegram_a_b", METADATA | {"key": ""}, "telegram:a_b"),
        ("telegram_a_b", METADATA | {"key": "x" * 513}, "telegram:a_b"),
        ("telegram_a_b", HELLO, "telegram:a_b"),
        ("telegram_a_b", {"_type": "metadata", "created_at": "2026-01-01T00:00:00"}, "telegram:a:b"),
        ("dGVsZWdyYW06YTpi", HELLO, "telegram:a:b"),
        ("dGVsZWdyYW06YTpj", METADATA | {"key": None}, "telegram:a:c"),
        ("dGVsZWdyYW06YTpi=", HELLO, "dGVsZWdyYW06YTpi="),
    ],
)
def test_key_comes_from_the_metadata_line_or_else_from_the_file_name(
    opened: Store, file: Callable[..., Path], name: str, first: Any, key: str
) -> None:
    assert imported(opened, file(first, HELLO, name=f"{name}.jsonl")).keys == [key]


@given(key=st.text(min_size=1, max_size=40))
def test_current_file_names_decode_to_keys(key: str) -> None:
    stem = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    assert file_name(key, "g2") == f"{stem}.jsonl"
    assert key_of_name(stem, "g2") == key


def test_current_file_takes_precedence_over_older_file(opened: Store, file: Callable[..., Path]) -> None:
    file(METADATA | {"key": "Z:1"}, HELLO, name=file_name("Z:1", "g1"))
    path = file(METADATA | {"key": "Z:1"}, HELLO, HELLO, name=file_name("Z:1", "g2"))
    reports = interchange.import_path(opened, path.parent, format="nanobot")
    assert [(report.keys, report.already_there) for report in reports] == [(["Z:1"], []), ([], ["Z:1"])]
    assert opened.conversation("Z:1").info().message_count == 2


def test_time_without_zone_is_local_time(
    opened: Store, file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file(METADATA, HELLO, HELLO | {"timestamp": "2026-01-01T00:00:01+02:00"})
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        imported(opened, source)
    time.tzset()
    assert opened.conversation("telegram:1").info().created_at == datetime(2025, 12, 31, 15, tzinfo=UTC)
    tokyo, told = opened.conversation("telegram:1").all_messages()
    assert tokyo.created_at == datetime(2025, 12, 31, 15, 0, 1, tzinfo=UTC)
    assert told.created_at == datetime(2025, 12, 31, 22, 0, 1, tzinfo=UTC)
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()
