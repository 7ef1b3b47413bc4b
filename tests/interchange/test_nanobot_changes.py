"""Damaged nanobot files, and exports of changed sessions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.factories import message
from support.nanobot_files import CORRUPT, HELLO, METADATA, exported, imported, lines
from support.paths import DATA

from lango_store import Message, MessageRole, Store, ToolCall, interchange
from lango_store.interchange.nanobot_lines import file_name, line_from_message, lines_from_message
from lango_store.testing import Clock

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("name", [name for name, expected in CORRUPT.items() if expected and name != "empty"])
def test_damaged_files_are_read_like_nanobot_does(opened: Store, clock: Clock, name: str) -> None:
    expected = CORRUPT[name]
    (key,) = imported(opened, DATA / "nanobot_g2" / "corrupt" / f"{name}.jsonl").keys
    assert key == "k:1"
    info = opened.conversation(key).info()
    assert seen_without_times(opened, key) == expected["messages"]
    assert (info.metadata, info.last_consolidated) == (expected["metadata"], expected["last_consolidated"])
    assert (info.created_at != clock()) is expected["created_is_2026_01_01"]


def seen_without_times(store: Store, key: str) -> list[Any]:
    found = store.conversation(key).all_messages()
    return [line_from_message(each.model_copy(update={"created_at": None})) for each in found]


def test_file_without_readable_lines_creates_no_session(opened: Store) -> None:
    assert CORRUPT["all_bad"] is None
    (report,) = interchange.import_path(opened, DATA / "nanobot_g2" / "corrupt" / "all_bad.jsonl")
    assert "has no readable line; line 1: is not JSON" in str(report.error)
    assert opened.count() == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("nonsense", "is not JSON"),
        ('{"role": "user", "content": "cut', "is not JSON"),
        ('{"role": "user"} {"role": "user"}', "is not JSON"),
        ('{"role": "user", "content": "\0"}', "is not JSON"),
        ('{"role": "user", "content": "\udce9"}', "is not UTF-8"),
        ("[1, 2]", "is not a JSON object (list)"),
        ("null", "is not a JSON object (NoneType)"),
        ('{"content": ' + "1" * 5_000 + "}", "cannot be read (Exceeds"),
        ('{"content": ' + "[" * 100_000 + "}", "is nested more than 201 levels deep"),
        ('{"content": ' + '{"":' * 400 + "1" + "}" * 401, "is nested more than 201 levels deep"),
    ],
)
def test_invalid_lines_are_skipped_and_reported(
    opened: Store, file: Callable[..., Path], bad: str, reason: str
) -> None:
    report = imported(opened, file(METADATA | {"last_consolidated": 2}, HELLO, bad, HELLO))
    ((line, told),) = [(each.line, each.reason) for each in report.skipped]
    assert (line, told[: len(reason)], report.messages) == (3, reason, 2)
    assert opened.conversation("telegram:1").info().last_consolidated == 2


def test_unstorable_fields_are_reported_and_exported_again(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    source = file(METADATA, '{"role": "assistant", "content": "x", "score": NaN}')
    report = imported(opened, source)
    assert [(each.line, each.reason[:21]) for each in report.skipped] == [(2, "stored as text only: ")]
    (kept,) = opened.conversation("telegram:1").all_messages()
    assert (kept.role, kept.content) == (MessageRole.ASSISTANT, "x")
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("last_consolidated", each) for each in ("2", True, -1, 3, 1.0, None, 10**30)],
        *[("metadata", each) for each in (None, "x", 1, {"score": float("nan")})],
    ],
)
def test_invalid_last_consolidated_or_metadata_is_reported_and_exported_as_0_or_empty(
    opened: Store, file: Callable[..., Path], tmp_path: Path, name: str, value: Any
) -> None:
    report = imported(opened, file(METADATA | {name: value}, HELLO, HELLO))
    assert {each.line for each in report.skipped} == {1}
    info = opened.conversation("telegram:1").info()
    assert (info.last_consolidated, info.metadata, report.messages) == (0, {}, 2)
    written = lines(exported(opened, tmp_path, "telegram:1"))[0]
    assert (written["last_consolidated"], written["metadata"]) == (0, {})


@pytest.mark.parametrize("time", ["yesterday", None, 1767225600, "0001-01-01T00:00:00", "9999-12-31T23:59:59", []])
def test_invalid_date_is_imported_as_current_time(
    opened: Store, file: Callable[..., Path], clock: Clock, tmp_path: Path, time: Any
) -> None:
    imported(opened, file(METADATA | {"created_at": time, "updated_at": time}, HELLO | {"timestamp": time}))
    info = opened.conversation("telegram:1").info()
    assert (info.created_at, info.updated_at) == (clock(), clock())
    (kept,) = opened.conversation("telegram:1").all_messages()
    assert kept.created_at == clock()
    assert lines(exported(opened, tmp_path, "telegram:1"))[1]["timestamp"] == time


def test_valid_time_of_a_metadata_line_that_cannot_be_stored_is_exported(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    imported(opened, file(METADATA | {"created_at": float("inf")}, HELLO))
    path = exported(opened, tmp_path, "telegram:1")
    assert lines(path)[0]["updated_at"] == METADATA["updated_at"]
    assert imported(opened, path).already_there == ["telegram:1"]


def test_last_of_several_metadata_lines_is_used(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    last = METADATA | {"metadata": {"title": "late"}, "last_consolidated": 1}
    report = imported(opened, file(METADATA, HELLO, last))
    assert [(each.line, each.reason) for each in report.skipped] == [(1, "metadata: replaced by a later line")]
    info = opened.conversation("telegram:1").info()
    assert (info.title, info.last_consolidated) == ("late", 1)
    assert lines(exported(opened, tmp_path, "telegram:1")) == [last, HELLO]


def test_exported_metadata_line_differs_only_by_changes_made_in_the_store(
    opened: Store, file: Callable[..., Path], tmp_path: Path, clock: Clock
) -> None:
    source = file(METADATA | {"metadata": {"a": 1, "title": "old"}}, HELLO, HELLO)
    imported(opened, source)
    opened.conversation("telegram:1").update(title="new", last_consolidated=1, activity=True)
    after = exported(opened, tmp_path, "telegram:1")
    assert lines(after)[0] == METADATA | {
        "metadata": {"a": 1, "title": "new"},
        "last_consolidated": 1,
        "updated_at": clock().astimezone().replace(tzinfo=None).isoformat(),
    }
    assert after.read_text().splitlines()[1:] == source.read_text().splitlines()[1:]


def test_metadata_set_in_the_store_replaces_imported_metadata_in_the_export(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    imported(opened, file(METADATA | {"metadata": {"a": 1, "title": "old"}}, HELLO))
    opened.conversation("telegram:1").update(metadata={"b": 2, "title": "newer"})
    assert lines(exported(opened, tmp_path, "telegram:1"))[0]["metadata"] == {"b": 2, "title": "newer"}
    opened.conversation("telegram:1").update(title=None)
    (tmp_path / "out" / file_name("telegram:1", "g2")).unlink()
    assert lines(exported(opened, tmp_path, "telegram:1"))[0]["metadata"] == {"b": 2}


@pytest.mark.slow
def test_new_messages_are_exported_like_nanobot_writes_them(
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


def test_session_not_from_nanobot_is_exported_in_current_nanobot_format(
    opened: Store, tmp_path: Path, clock: Clock
) -> None:
    opened.create("a:b", title="T", metadata={"m": 1}, messages=[message("x"), message("y")])
    opened.conversation("a:b").update(last_consolidated=1)
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


def test_readable_names_are_those_of_earlier_nanobot(opened: Store, tmp_path: Path) -> None:
    keys = ["telegram:12345678", "a/b: c "]
    for key in keys:
        opened.create(key, messages=[message("x")])
    folder = tmp_path / "out"
    done = interchange.export(opened, folder, "nanobot", keys=keys, names="readable")
    assert [Path(str(each.path)).name for each in done] == ["telegram_12345678.jsonl", "a_b_ c.jsonl"]
    assert [each.collided for each in interchange.import_path(opened, folder)] == [["a/b: c "], [keys[0]]]
    for wrong in ({"format": "dive", "names": "readable"}, {"format": "nanobot", "names": "short"}):
        with pytest.raises(ValueError, match="names="):
            interchange.export(opened, folder, keys=keys, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("replace", [False, True])
def test_second_session_with_the_same_readable_name_is_not_exported(
    opened: Store, tmp_path: Path, replace: bool
) -> None:
    keys = ["telegram:a_b", "telegram:a:b"]
    for key in keys:
        opened.create(key, messages=[message(key)])
    (tmp_path / "telegram_a_b.jsonl").write_text("old")
    first, second = interchange.export(opened, tmp_path, "nanobot", keys=keys, names="readable", replace=replace)
    assert (first.error is None, "exists with different content" in str(second.error)) == (replace, True)
    assert ("telegram:a_b" in (tmp_path / "telegram_a_b.jsonl").read_text()) == replace


def test_new_messages_of_go_port_sessions_are_exported_in_go_time_format(opened: Store, tmp_path: Path) -> None:
    source = DATA / "nanobot_go" / "cli_direct.jsonl"
    imported(opened, source)
    opened.append_message("cli:direct", message("x"))
    after = exported(opened, tmp_path, "cli:direct").read_text().splitlines()
    assert after[1:] == [
        *source.read_text().splitlines()[1:],
        '{"content":"x","role":"user","timestamp":"2026-11-21T12:00:00Z"}',
    ]


def test_outputs_stored_in_tool_calls_are_exported_as_tool_messages(opened: Store, tmp_path: Path) -> None:
    calls = [ToolCall(id=f"c{n}", name="f", arguments="{}", output={"n": n}) for n in range(2)]
    opened.create("k", messages=[message("go", role="assistant", tool_calls=calls), message("thanks")])
    opened.conversation("k").update(last_consolidated=1)
    head, asked, *answers, thanks = lines(exported(opened, tmp_path, "k"))
    assert [call["id"] for call in asked["tool_calls"]] == ["c0", "c1"]
    assert [(each["role"], each["content"], each["tool_call_id"]) for each in answers] == [
        ("tool", '{"n": 0}', "c0"),
        ("tool", '{"n": 1}', "c1"),
    ]
    assert (thanks["content"], head["last_consolidated"]) == ("thanks", 3)


def test_blocks_of_other_programs_are_exported_in_the_form_of_openai() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    asked = [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c", "name": "ls", "input": {"a": 1}}]
    answered = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "done"}, picture]}
    log = [Message.user([picture]), Message.assistant(asked), Message.user([answered])]
    question, call, result = (line for each in log for line in lines_from_message(each))
    assert question["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    assert call["content"] == asked[:1]
    assert call["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"a": 1}'}
    texts = [block["text"] for block in result["content"]]
    assert (texts, result["tool_call_id"]) == (["done", "[image/png attachment]"], "c")


@pytest.mark.parametrize("content", [None, "sunny"])
def test_tool_message_with_an_output_is_exported_as_one_tool_line(content: str | None) -> None:
    call = ToolCall(id="c", name="f", output="rain")
    (line,) = lines_from_message(Message(role=MessageRole.TOOL, content=content, tool_calls=[call]))
    assert line == {"role": "tool", "content": content or "rain", "tool_call_id": "c", "name": "f"}


def test_compacted_messages_are_exported_as_consolidated(opened: Store, tmp_path: Path) -> None:
    session = opened.open("k", messages=[message(str(number)) for number in range(4)])
    session.compact(lambda window: [message("in short: 0 to 3", role="assistant")])
    session.append_message(message("4"))
    head, *log = lines(exported(opened, tmp_path, "k"))
    assert [each["content"] for each in log[head["last_consolidated"] :]] == ["in short: 0 to 3", "4"]
    assert len(log) == 6


@pytest.mark.parametrize("path", [DATA / "nanobot_go" / "cli_direct.jsonl", DATA / "nanobot_g1" / "cli_direct.jsonl"])
def test_lone_surrogate_in_a_new_message_is_exported_as_an_escape(opened: Store, tmp_path: Path, path: Path) -> None:
    imported(opened, path)
    opened.append_message("cli:direct", message("\ud83d"))
    assert lines(exported(opened, tmp_path, "cli:direct"))[-1]["content"] == "\ud83d"
