"""What the store changed since, and what was never nanobot's, as nanobot's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.factories import message
from support.nanobot_files import HELLO, METADATA, exported, imported, lines
from support.paths import DATA

from lango_store import Message, MessageRole, Store, ToolCall
from lango_store.interchange.nanobot.lines import lines_from_message
from lango_store.interchange.nanobot.names import file_name
from lango_store.testing import Clock


def test_what_changed_in_the_store_shows_in_the_metadata_line_and_nothing_else(
    opened: Store, file: Callable[..., Path], tmp_path: Path, clock: Clock
) -> None:
    source = file(METADATA | {"metadata": {"a": 1, "title": "old"}}, HELLO, HELLO)
    imported(opened, source)
    opened.update("telegram:1", title="new", last_consolidated=1, activity=True)
    after = exported(opened, tmp_path, "telegram:1")
    assert lines(after)[0] == METADATA | {
        "metadata": {"a": 1, "title": "new"},
        "last_consolidated": 1,
        "updated_at": clock().astimezone().replace(tzinfo=None).isoformat(),
    }
    assert after.read_text().splitlines()[1:] == source.read_text().splitlines()[1:]


def test_metadata_of_the_store_replaces_the_lines(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    imported(opened, file(METADATA | {"metadata": {"a": 1, "title": "old"}}, HELLO))
    opened.update("telegram:1", metadata={"b": 2, "title": "newer"})
    assert lines(exported(opened, tmp_path, "telegram:1"))[0]["metadata"] == {"b": 2, "title": "newer"}
    opened.update("telegram:1", title=None)
    (tmp_path / "out" / file_name("telegram:1", "g2")).unlink()
    assert lines(exported(opened, tmp_path, "telegram:1"))[0]["metadata"] == {"b": 2}


def test_new_messages_are_written_as_nanobot_writes_them(
    opened: Store, file: Callable[..., Path], tmp_path: Path, clock: Clock
) -> None:
    source = file(METADATA, HELLO)
    imported(opened, source)
    call = ToolCall(id="call_1", name="get_weather", arguments={"city": "Oslo"})
    opened.append_message("telegram:1", message(None, role="assistant", tool_calls=[call]))
    opened.append_message("telegram:1", message("-3", role="tool", tool_call_id="call_1", name="get_weather"))
    opened.append_message("telegram:1", message("cold", role="model", extra={"mood": "icy"}))
    stamp = {"timestamp": clock().astimezone().replace(tzinfo=None).isoformat()}
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    after = exported(opened, tmp_path, "telegram:1")
    assert lines(after)[1:] == [
        HELLO,
        {
            "role": "assistant",
            "content": None,
            **stamp,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "-3", **stamp, "tool_call_id": "call_1", "name": "get_weather"},
        {"role": "assistant", "content": "cold", **stamp, "mood": "icy"},
    ]
    assert after.read_bytes().startswith(b'{"_type": "metadata", "key": "telegram:1"')


def test_a_session_that_was_never_nanobots_is_written_as_todays(opened: Store, tmp_path: Path, clock: Clock) -> None:
    opened.create("a:b", title="T", metadata={"m": 1}, messages=[message("x"), message("y")])
    opened.update("a:b", last_consolidated=1)
    path = exported(opened, tmp_path, "a:b")
    stamp = clock().astimezone().replace(tzinfo=None).isoformat()
    assert path.name == "YTpi.jsonl"
    assert lines(path) == [
        {
            "_type": "metadata",
            "key": "a:b",
            "created_at": stamp,
            "updated_at": stamp,
            "metadata": {"m": 1, "title": "T"},
            "last_consolidated": 1,
        },
        {"role": "user", "content": "x", "timestamp": stamp},
        {"role": "user", "content": "y", "timestamp": stamp},
    ]


def test_new_messages_of_the_go_port_have_its_times(opened: Store, tmp_path: Path) -> None:
    source = DATA / "nanobot_go" / "cli_direct.jsonl"
    imported(opened, source)
    opened.append_message("cli:direct", message("x"))
    after = exported(opened, tmp_path, "cli:direct").read_text().splitlines()
    assert after[1:] == [
        *source.read_text().splitlines()[1:],
        '{"content":"x","role":"user","timestamp":"2026-11-21T12:00:00Z"}',
    ]


def test_outputs_inside_calls_become_answers_of_their_own(opened: Store, tmp_path: Path) -> None:
    calls = [ToolCall(id=f"c{n}", name="f", arguments="{}", output={"n": n}) for n in range(2)]
    opened.create("k", messages=[message("go", role="assistant", tool_calls=calls), message("thanks")])
    opened.update("k", last_consolidated=1)
    head, asked, *answers, thanks = lines(exported(opened, tmp_path, "k"))
    assert [call["id"] for call in asked["tool_calls"]] == ["c0", "c1"]
    assert [(each["role"], each["content"], each["tool_call_id"]) for each in answers] == [
        ("tool", '{"n": 0}', "c0"),
        ("tool", '{"n": 1}', "c1"),
    ]
    assert (thanks["content"], head["last_consolidated"]) == ("thanks", 3)


@pytest.mark.parametrize("content", [None, "sunny"])
def test_a_tools_answer_in_a_call_is_a_tools_line(content: str | None) -> None:
    call = ToolCall(id="c", name="f", output="rain")
    (line,) = lines_from_message(Message(role=MessageRole.TOOL, content=content, tool_calls=[call]))
    assert line == {"role": "tool", "content": content or "rain", "tool_call_id": "c", "name": "f"}


def test_what_a_summary_replaced_is_consolidated_for_nanobot(opened: Store, tmp_path: Path) -> None:
    session = opened.open("k", messages=[message(str(number)) for number in range(4)])
    session.compact(lambda window: [message("in short: 0 to 3", role="assistant")])
    session.append_message(message("4"))
    head, *log = lines(exported(opened, tmp_path, "k"))
    assert [each["content"] for each in log[head["last_consolidated"] :]] == ["in short: 0 to 3", "4"]
    assert len(log) == 6


@pytest.mark.parametrize("path", [DATA / "nanobot_go" / "cli_direct.jsonl", DATA / "nanobot_g1" / "cli_direct.jsonl"])
def test_a_new_lone_surrogate_is_written_as_an_escape(opened: Store, tmp_path: Path, path: Path) -> None:
    imported(opened, path)
    opened.append_message("cli:direct", message("\ud83d"))
    assert lines(exported(opened, tmp_path, "cli:direct"))[-1]["content"] == "\ud83d"
