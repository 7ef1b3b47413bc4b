"""Shepherd's session files, a list of messages with their tokens: exported byte for byte as imported."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interchange.session_files import carried
from support.databases import MakeDatabase
from support.json_values import json_values
from support.paths import DATA

from lango_store import Message, ToolCall
from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange import shepherd
from lango_store.interchange.draft import Part, SessionDraft

pytestmark = pytest.mark.one_database

FILE = DATA / "shepherd" / ".shepherd_session.openai.json"
FILE_NAMES: dict[str, str] = json.loads((DATA / "shepherd" / "cases.json").read_text())["file_names"]


def read(path: Path) -> SessionDraft:
    (draft,) = shepherd.read(path, [])
    return draft


def session(*sent: dict[str, Any], **members: Any) -> dict[str, Any]:
    def last(role: str) -> int:
        return max((index for index, message in enumerate(sent) if message.get("role") == role), default=-1)

    return {
        "last_assistant_message_index": last("assistant"),
        "last_user_message_index": last("user"),
        "messages": list(sent),
        "model": "gpt-x",
        "provider": "openai",
        "timestamp": "2026-11-21T20:43:13",
        "version": 1,
    } | members


def written(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def file(folder: Path, value: Any) -> Path:
    path = folder / ".shepherd_session.openai.json"
    path.write_text(value if isinstance(value, str) else written(value), errors="surrogateescape")
    return path


@pytest.mark.parametrize(("provider", "name"), FILE_NAMES.items())
def test_exported_file_is_named_after_the_provider(tmp_path: Path, provider: str, name: str) -> None:
    draft = read(file(tmp_path, session(provider=provider)))
    assert draft.key == f"shepherd:{provider}"
    assert shepherd.write(draft, tmp_path / "out").name == name


def test_imported_session_has_the_values_of_the_file() -> None:
    draft = read(FILE)
    assert shepherd.recognizes(FILE)
    assert not shepherd.recognizes(FILE.with_name("session.json"))
    assert (draft.key, draft.fields) == ("shepherd:openai", {"model": "gpt-x"})
    assert draft.updated_at == datetime(2026, 11, 21, 20, 43, 13).astimezone(UTC)
    found = [*draft.messages]
    assert [(message.role.value, message.content, message.tokens) for message in found] == [
        ("user", "hello 你好 <b>", 5),
        ("assistant", "", 9),
        ("tool", "a.txt", 3),
        ("function", "legacy", 2),
        ("user", "[context] q", 7),
    ]
    assert found[1].tool_calls == [ToolCall(id="call_1", name="ls", arguments="{}")]
    assert (found[2].tool_call_id, found[2].name) == ("call_1", "ls")


@pytest.mark.slow
def test_file_is_unchanged_after_two_round_trips(tmp_path: Path, make_database: MakeDatabase) -> None:
    assert carried(make_database, FILE, tmp_path, "shepherd").read_bytes() == FILE.read_bytes()


def test_fields_without_a_column_survive_two_round_trips(tmp_path: Path, make_database: MakeDatabase) -> None:
    path = file(
        tmp_path,
        session(
            {"role": "oracle", "content": None, "tokens": -1, "tool_name": "a\0", "tool_call_id": ""},
            {"role": "assistant", "content": [1.0], "tool_calls_json": '[{"parts": [1]}]'},
            {
                "role": "assistant",
                "content": "",
                "tokens": 0,
                "tool_calls_json": '[ {"id":"c","function":{"name":"f"}}]',
            },
            {"content": "\0", "tokens": True},
            model="",
            more={"b": [], "a": {}},
            timestamp="yesterday",
        ),
    )
    assert carried(make_database, path, tmp_path / "out", "shepherd").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        *((text, []) for text in ("nonsense", "[]", '{"a":1}', "[1]", '[{"id":1,"function":{"name":"f"}}]')),
        (
            '[{"function": {"arguments": "{}", "name": "ls"}, "id": "c", "type": "function"}]',
            [ToolCall(id="c", name="ls", arguments="{}")],
        ),
    ],
)
def test_any_text_in_tool_calls_json_is_exported_unchanged(tmp_path: Path, text: str, calls: list[ToolCall]) -> None:
    path = file(tmp_path, session({"role": "assistant", "content": "", "tokens": 1, "tool_calls_json": text}))
    draft = read(path)
    (message,) = draft.messages
    assert message.tool_calls == calls
    assert shepherd.write(draft, tmp_path / "out").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (session(version=2), "version 2"),
        (session(version=True), "version True"),
        (session(version=None), "version None"),
        (session(provider=None), "provider"),
        (session(provider="x" * 600), "key"),
        (session(messages={}), "no messages"),
        (session(messages=[1]), "not objects"),
        ({"version": 1, "provider": "x"}, "no messages"),
        ([], "it is list"),
        ("", "not JSON"),
        ("{", "not a session"),
        ("\udcff", "utf-8"),
        (written(session()) + "}", "Extra data"),
        ('{"messages":[],"messages":[],"version":1,"provider":"x"}', "twice"),
        ('{"messages":[],"version":1,"provider":"x","a":NaN}', "NaN"),
        ('{"messages":[],"version":1,"provider":"x","a":1e999}', "1e999"),
        ('{"messages":[],{}:1}', "not a text"),
        ('{"messages":' + "[" * 100_000, "nested"),
    ],
)
def test_damaged_file_is_refused_and_not_changed(damage: Any, reason: str, tmp_path: Path) -> None:
    path = file(tmp_path, damage)
    before = path.read_bytes()
    with pytest.raises(InvalidFile, match=reason):
        read(path)
    assert path.read_bytes() == before


def test_key_too_long_for_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidKey, match="too long"):
        shepherd.write(SessionDraft("x" * 300, []), tmp_path)


def test_export_has_changes_made_after_import(tmp_path: Path) -> None:
    draft = read(FILE)
    draft.fields, draft.updated_at = {"model": "gpt-y"}, datetime(2027, 1, 2, 3, 4, 5, 678).astimezone(UTC)
    out = json.loads(shepherd.write(draft, tmp_path).read_text())
    assert (out["model"], out["timestamp"]) == ("gpt-y", "2027-01-02T03:04:05")


def test_messages_of_other_programs_are_exported_in_shepherd_format(tmp_path: Path) -> None:
    made = [
        Message(role="developer", content="be brief"),
        Message(role="model", tool_calls=[ToolCall(id="c", name="ls", arguments={"a": 1})], tokens=4),
        Message(role="tool", content="ok", tool_calls=[ToolCall(id="c", name="ls", output="ok")], tokens=2),
        Message(role="assistant", content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        Message(role="user", content={"a": 1}),
    ]
    out = json.loads(shepherd.write(SessionDraft("kernel", [Part(made)]), tmp_path).read_text())
    assert out == {
        "last_assistant_message_index": 3,
        "last_user_message_index": 4,
        "messages": [
            {"role": "system", "content": "be brief", "tokens": 0},
            {
                "role": "assistant",
                "content": "",
                "tokens": 4,
                "tool_calls_json": '[{"id":"c","type":"function","function":{"name":"ls","arguments":"{\\"a\\": 1}"}}]',
            },
            {"role": "tool", "content": "ok", "tokens": 2, "tool_call_id": "c", "tool_name": "ls"},
            {"role": "assistant", "content": "a\n\nb", "tokens": 0},
            {"role": "user", "content": '{"a": 1}', "tokens": 0},
        ],
        "model": "",
        "provider": "kernel",
        "timestamp": "",
        "version": 1,
    }


def test_blocks_of_other_programs_are_exported_as_texts_calls_and_results(tmp_path: Path) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    asked = [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c", "name": "ls", "input": {"a": 1}}]
    answered = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "done"}, picture]}
    made = [Message.user([picture]), Message.assistant(asked), Message.user([answered])]
    out = json.loads(shepherd.write(SessionDraft("kernel", [Part(made)]), tmp_path).read_text())
    assert [(each["role"], each["content"]) for each in out["messages"]] == [
        ("user", "[image/png attachment]"),
        ("assistant", "I look."),
        ("tool", "done\n\n[image/png attachment]"),
    ]
    (call,) = json.loads(out["messages"][1]["tool_calls_json"])
    assert (call["id"], call["function"]["name"], out["messages"][2]["tool_call_id"]) == ("c", "ls", "c")


shepherds_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool", "function", "oracle"]),
        "content": st.text() | json_values(),
        "tokens": st.integers(),
    },
    optional={
        "tool_name": st.text(max_size=3),
        "tool_call_id": st.text(max_size=3),
        "tool_calls_json": json_values().map(json.dumps) | st.text(),
        "pre_injection_content": st.text(),
    },
)


@given(st.lists(shepherds_messages, max_size=5), st.text(max_size=3), json_values())
def test_any_shepherd_session_round_trips(
    tmp_path_factory: pytest.TempPathFactory, sent: Any, model: str, more: Any
) -> None:
    folder = tmp_path_factory.mktemp("shepherd")
    path = file(folder, session(*sent, model=model, zzz=more, aaa=more))
    assert shepherd.write(read(path), folder / "out").read_bytes() == path.read_bytes()
