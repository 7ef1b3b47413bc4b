"""Imports of plain messages: CSV, and OpenAI's lines."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.databases import MakeDatabase

from lango_store import Message, Store, ToolCall, interchange
from lango_store.errors import InvalidFile
from lango_store.interchange import plain
from lango_store.interchange.format import FileReport

TABLE = '''\
Role,content,session,time,mood
user,"Hello,
""World""",chat:1,2026-11-21T12:00:00+01:00,
assistant,Hi,chat:1,2026-11-21 11:00:05,glad
user,Other,chat:2,,
'''


def import_text(store: Store, folder: Path, name: str, text: str | bytes, **options: Any) -> FileReport:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    (report,) = interchange.import_path(store, folder / name, **options)
    return report


def test_csv_is_a_session_for_each_value_of_its_column(store: Store, tmp_path: Path) -> None:
    report = import_text(store, tmp_path, "chats.csv", TABLE)
    assert (report.format, report.keys, report.messages, report.error) == ("csv", ["chat:1", "chat:2"], 3, None)
    first, second = store.conversation("chat:1").messages()
    assert (first.role, first.content, first.extra) == ("user", 'Hello,\n"World"', {})
    assert (second.role, second.content, second.extra) == ("assistant", "Hi", {"csv": {"mood": "glad"}})
    times = [datetime(2026, 11, 21, 11, 0, second, tzinfo=UTC) for second in (0, 5)]
    assert [first.created_at, second.created_at] == times
    info = store.conversation("chat:1").info()
    assert [info.created_at, info.updated_at] == times


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_of_spreadsheets_has_the_name_of_its_file_as_key(
    store: Store, tmp_path: Path, separator: str, mark: str, end: str
) -> None:
    lines = [["content", "ROLE "], ["Füße\n\ngut", "User"], ["yes", "assistant"]]
    text = mark + "".join(separator.join(f'"{each}"' for each in line) + end for line in lines)
    report = import_text(store, tmp_path, "my chat.CSV", text)
    assert (report.keys, report.error) == (["my chat"], None)
    assert [each.content for each in store.conversation("my chat").messages()] == ["Füße\n\ngut", "yes"]


def test_openai_lines_are_sessions_with_tools(store: Store, tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "When?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Noon.", "weight": 0},
    ]
    tools = [{"type": "function", "function": {"name": "clock"}}]
    lines = [{"messages": messages, "tools": tools, "split": "train"}, {"messages": [{"role": "user", "content": ""}]}]
    text = "\n\n".join(map(json.dumps, lines))
    report = import_text(store, tmp_path, "train.jsonl", text)
    assert (report.format, report.keys, report.error) == ("openai", ["train:1", "train:3"], None)
    conversation = store.conversation("train:1")
    assert [each.to_openai() for each in conversation.messages()] == messages
    assert conversation.info().tools == tools
    assert conversation.values.get("openai")["openai"] == {"key": "train:1", "extra": {"split": "train"}}


def test_export_as_openai_can_be_imported(store: Store, tmp_path: Path, make_sqlite: MakeDatabase) -> None:
    calls = [ToolCall(id="a", name="clock", arguments={})]
    answers = [Message.assistant(tool_calls=calls), Message.tool("noon", tool_call_id="a"), Message.assistant("Noon.")]
    store.create("chat", messages=[Message.user("When?"), *answers])
    interchange.export(store, tmp_path / "lines.jsonl", "openai", everything=True)
    with Store(make_sqlite()) as target:
        (report,) = interchange.import_path(target, tmp_path / "lines.jsonl")
        interchange.export(target, tmp_path / "again.jsonl", "openai", everything=True)
    assert report.keys == ["lines:1"]
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "lines.jsonl").read_bytes()


def test_file_with_a_message_for_each_line_is_a_session(store: Store, tmp_path: Path) -> None:
    lines = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    report = import_text(store, tmp_path, "chat.jsonl", "\n".join(map(json.dumps, lines)))
    assert report.error is None
    (key,) = report.keys
    assert store.conversation(key).history() == lines


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "role,content\nbot,hi\n", "line 2: the role 'bot' is unknown: use system, user"),
        ("a.csv", "role,content\nuser,hi\nrecord,hi\n", "line 3: the role 'record' is unknown"),
        ("a.csv", "role,content\nuser,hi\n\nuser,a,b\n", "line 4: has 3 values for 2 columns"),
        ("a.csv", "role,content,role\nuser,hi,user\n", "line 1: needs the columns role and content"),
        ("a.csv", "roles,contents\nuser,hi\n", "line 1: needs the columns role and content"),
        ("a.csv", 'role,content\nuser,"hi\n', "line 2: unexpected end of data"),
        ("a.csv", "role,content,time\nuser,hi,yesterday\n", "line 2: the time 'yesterday' is not in ISO 8601"),
        ("a.csv", f"role,content\nuser,ok\nuser,{'x' * 10_000_000}\n", "line 3: field larger than field limit"),
        ("a.csv", b"role,content\nuser,\xff\n", "line 1: 'utf-8' codec can't decode"),
        ("a.csv", "role,content,session\nuser,hi,a\nuser,hi,a\0b\n", "session key: holds a NUL"),
        ("a.csv", "a role,content\n", "needs the columns role and content"),
        ("a.jsonl", '{"messages": [{"role": "bot", "content": 1}]}', "line 1: the role 'bot' is unknown"),
        ("a.jsonl", '{"messages": [1]}', "line 1: the role None is unknown"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "a", "name": 1}]}', "not in OpenAI's form"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "tool_calls": [1]}]}', "not in OpenAI's form"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "tool_calls": [{"function": 1}]}]}', "not in OpenAI's form"),
        ("a.jsonl", '{"messages": []}\n{"messages": 1}', 'line 2: is not an object with a list "messages"'),
        ("a.jsonl", '{"messages": []}\n[]', 'line 2: is not an object with a list "messages"'),
        ("a.jsonl", '{"messages": [{"role": "user"', "line 1: is not JSON"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": NaN}]}', "line 1: cannot be read"),
        ("a.jsonl", b'{"messages": []}\n\xff', "line 2: 'utf-8' codec can't decode"),
    ],
)
def test_damaged_file_is_refused_and_writes_nothing(
    store: Store, tmp_path: Path, name: str, text: str | bytes, reason: str
) -> None:
    format = {"a.csv": "csv", "a.jsonl": "openai"}[name]
    report = import_text(store, tmp_path, name, text, format=format)
    assert reason in str(report.error)
    assert (report.keys, store.count()) == ([], 0)


def test_text_with_a_nul_is_stored_unchanged(store: Store, tmp_path: Path) -> None:
    assert import_text(store, tmp_path, "a.csv", "role,content\nuser,a\0b\n").error is None
    assert [each.content for each in store.conversation("a").messages()] == ["a\0b"]


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", TABLE), ("a.jsonl", '{"messages": [{"role": "user", "content": "Hello"}]}')]
)
def test_repeated_import_changes_nothing(store: Store, tmp_path: Path, name: str, text: str) -> None:
    planned = import_text(store, tmp_path, name, text, dry_run=True)
    assert store.count() == 0
    first = import_text(store, tmp_path, name, text)
    revisions = [each.revision for each in store.list_sessions().items]
    again = import_text(store, tmp_path, name, text)
    assert planned.keys == first.keys == again.already_there
    assert (again.keys, again.collided) == ([], [])
    assert [each.revision for each in store.list_sessions().items] == revisions
    changed = import_text(store, tmp_path, name, text.replace("Hello", "Bye"))
    assert changed.collided == first.keys[:1]


def test_other_tables_of_a_folder_are_skipped(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "prices.csv").write_text("item,price\ntea,2\n")
    (folder / "chat.csv").write_text("role,content\nuser,hi\n")
    reports = interchange.import_path(store, folder)
    assert sorted((each.format or "", each.error) for each in reports) == [("", None), ("csv", None)]
    (alone,) = interchange.import_path(store, folder / "prices.csv")
    assert "csv: with the columns role and content" in str(alone.error)


@pytest.mark.one_database
@given(st.text() | st.binary())
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.csv"
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    for read, before in ((plain.read_csv, b"role,content,session\n"), (plain.read_lines, b'{"messages":[]}\n')):
        for start in (b"", before):
            path.write_bytes(start + data)
            try:
                list(read(path, []))
            except InvalidFile:
                continue
