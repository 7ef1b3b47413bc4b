"""nanobot's files are exported byte for byte as they were imported."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.databases import MakeDatabase
from support.json_values import json_values
from support.nanobot_files import FILES, HELLO, METADATA, exported, imported
from support.paths import DATA

from lango_store import Store
from lango_store.interchange.nanobot_lines import (
    file_name,
)

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_round_trip_twice_byte_for_byte(make_database: MakeDatabase, tmp_path: Path, path: Path) -> None:
    source = path
    for number in range(2):
        with Store(make_database()) as store:
            key = imported(store, source).keys[0]
            source = exported(store, tmp_path / str(number), key)
        assert source.name == path.name
        assert source.read_bytes() == path.read_bytes()


ODD = {
    "no timestamp": '{"role": "user", "content": "hi"}',
    "null against absent": '{"role": "tool", "content": null, "timestamp": null, "name": null, "tool_calls": null}',
    "no content": '{"role": "assistant", "timestamp": "2026-01-01T00:00:00"}',
    "another order": '{"timestamp": "2026-01-01T00:00:00", "content": "x", "role": "user"}',
    "no role": '{"content": "x"}',
    "empty": "{}",
    "role of the model": '{"role": "model", "content": "x", "timestamp": "1"}',
    "bad calls": '{"role": "assistant", "content": null, "tool_calls": [1, {"id": null, "function": {}}, {}]}',
    "calls that are none": '{"role": "assistant", "content": null, "tool_calls": "x"}',
    "call in another order": '{"role": "assistant", "content": "", "tool_calls": '
    '[{"type": "function", "id": "1", "function": {"arguments": "{}", "name": "f"}, "index": 0}]}',
    "arguments that are not text": '{"role": "assistant", "content": "", "tool_calls": '
    '[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}',
    "our own name": '{"role": "user", "content": "x", "_nanobot": {"line": "y"}, "timestamp": "2026-01-01T00:00:00"}',
    "our columns": '{"role": "user", "content": "x", "id": 7, "author": "a", "tokens": -1, "seq": "x", "extra": 1}',
    "numbers": '{"role": "user", "content": 1.50, "a": 1e5, "b": -0, "c": 1E400, "d": 12345678901234567890123}',
    "not a number": '{"role": "user", "content": NaN, "timestamp": "2026-01-01T00:00:00"}',
    "NUL": '{"role": "tool", "content": "\\u0000", "tool_call_id": "a\\u0000", "name": "b\\u0000"}',
    "lone surrogate": '{"role": "tool", "content": "\\ud83d", "tool_call_id": "\\udc00", "\\ud83d": 1}',
    "pair as escapes": '{"role": "user", "content": "\\ud83c\\udf0d", "timestamp": "2026-01-01T00:00:00"}',
    "spaces": '  {"role":"user",  "content":"x"}\t',
    "carriage return": '{"role": "user", "content": "x", "timestamp": "2026-01-01T00:00:00"}\r',
    "a key twice": '{"role": "user", "content": "x", "content": "y"}',
    "separators": '{"role": "user", "content": "\u2028\x7f\x85", "timestamp": "2026-01-01T00:00:00"}',
    "deep": '{"role": "user", "content": ' + "[" * 199 + "]" * 199 + ', "timestamp": "x"}',
    "deep and unknown": '{"role": "user", "content": "x", "unknown": ' + "[" * 200 + "]" * 200 + "}",
    "another type": '{"_type": "marker", "at": 1}',
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_unusual_lines_round_trip_byte_for_byte(
    opened: Store, file: Callable[..., Path], tmp_path: Path, text: str
) -> None:
    go = (DATA / "nanobot_go" / "telegram_12345678.jsonl").read_text().splitlines()
    for source in (file(METADATA, text, HELLO), file(go[0], text, *go[1:], name="telegram_12345678.jsonl")):
        (key,) = imported(opened, source).keys
        assert exported(opened, tmp_path, key).read_bytes() == source.read_bytes()


DOCUMENTED = """\
{"_type":"metadata","key":"telegram:12345678","created_at":"2026-01-01T00:00:00Z","updated_at":"2026-02-01T12:00:00Z","metadata":{},"last_consolidated":1}
{"role":"user","content":"Hello","timestamp":"2026-02-01T12:00:00Z"}
{"role":"assistant","content":"Hi there!","timestamp":"2026-02-01T12:00:01Z","tools_used":["web_search"]}
"""
"""The example in the documentation of the Go port, whose keys are not sorted."""


def test_example_of_the_documentation_round_trips_byte_for_byte(opened: Store, tmp_path: Path) -> None:
    source = tmp_path / "telegram_12345678.jsonl"
    source.write_text(DOCUMENTED)
    imported(opened, source)
    assert opened.conversation("telegram:12345678").info().last_consolidated == 1
    copy = exported(opened, tmp_path, "telegram:12345678")
    assert (copy.name, copy.read_text()) == (source.name, DOCUMENTED)


TIMES = '"created_at":"2026-01-01T00:00:00", "updated_at":"2026-02-01T12:00:00"'
ODD_HEADS = {
    "compact": '{"key":"telegram:1","_type":"metadata",' + TIMES + ',"metadata":{},"b":"\\u00e9"}',
    "spaces": ' {"_type":  "metadata", "key": "telegram:1", ' + TIMES + ', "metadata": {"a": 1.50, "a": 2e1}} \r',
    "escapes": '{"_type": "metadata", "key": "telegram:\\u0031", ' + TIMES + ', "metadata": {"a": "\\/"}}',
}


@pytest.mark.parametrize("name", [file_name("telegram:1", "g2"), "telegram_1.jsonl"])
@pytest.mark.parametrize("head", ODD_HEADS.values(), ids=ODD_HEADS.keys())
def test_unusual_metadata_and_state_lines_round_trip_byte_for_byte(
    make_database: MakeDatabase, file: Callable[..., Path], tmp_path: Path, head: str, name: str
) -> None:
    source = file(head, '{"_type":"provider_state","state":{"b":1, "a":2}}', HELLO, name=name)
    expected = source.read_bytes()
    for number in range(2):
        with Store(make_database()) as store:
            imported(store, source)
            source = exported(store, tmp_path / str(number), "telegram:1")
        assert source.read_bytes() == expected


def test_changed_metadata_line_is_written_like_its_generation_and_the_state_line_unchanged(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    state = '{"_type":"provider_state","state":{"b":1, "a":2}}'
    imported(opened, file('{"_type":"metadata","key":"telegram:1","metadata":{"z":1}}', state, HELLO))
    opened.conversation("telegram:1").update(title="new")
    head, *rest = exported(opened, tmp_path, "telegram:1").read_text().splitlines()
    assert json.loads(head)["metadata"] == {"z": 1, "title": "new"}
    assert (rest[0], json.loads(rest[1])) == (state, HELLO)


def test_last_archived_of_current_nanobot_round_trips(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    source = file(METADATA | {"last_consolidated": 1, "last_archived": 1}, HELLO, HELLO)
    imported(opened, source)
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


values = json_values(max_leaves=8)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text() | values,
            "type": st.just("function") | values,
            "function": st.fixed_dictionaries({"name": st.text(), "arguments": st.text() | values}) | values,
        },
        optional={"extra_content": values},
    )
    | values,
    max_size=3,
)
optional: dict[str, st.SearchStrategy[Any]] = {
    "role": st.sampled_from(["user", "assistant", "tool", "system", "model", "system_note"]) | values,
    "content": values,
    "timestamp": st.datetimes().map(datetime.isoformat) | values,
    "tool_calls": calls | values,
    "tool_call_id": st.text() | values,
    "name": st.text() | values,
    "tools_used": st.lists(st.text()),
    "_nanobot": values,
    "id": values,
    "created_at": values,
}
messages = st.builds(
    lambda known, unknown, order: dict(sorted({**unknown, **known}.items(), key=lambda item: order.get(item[0], 0.5))),
    st.fixed_dictionaries({}, optional=optional),
    st.dictionaries(st.text(), values, max_size=2),
    st.fixed_dictionaries({name: st.floats(0, 1) for name in optional}),
).filter(lambda line: line.get("_type") not in ("metadata", "provider_state"))


def written(line: Any, style: str) -> str:
    if style == "go":
        text = json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return json.dumps(line, ensure_ascii=style == "g0")


@pytest.mark.slow
@given(
    conversation=st.lists(messages, max_size=5),
    metadata=st.dictionaries(st.text(), values, max_size=3),
    state=st.none() | values,
    style=st.sampled_from(["g0", "g1", "g2", "go"]),
)
def test_any_conversation_round_trips_byte_for_byte(
    url: str, tmp_path_factory: pytest.TempPathFactory, conversation: Any, metadata: Any, state: Any, style: str
) -> None:
    head: dict[str, Any] = METADATA | {"metadata": metadata, "last_consolidated": len(conversation)}
    if style == "g0":
        head = {name: head[name] for name in ("_type", "created_at", "updated_at", "metadata")}
    heads = [head] if state is None else [head, {"_type": "provider_state", "state": state}]
    text = "".join(f"{written(line, style)}\n" for line in [*heads, *conversation])
    folder = tmp_path_factory.mktemp("any")
    path = folder / file_name("telegram:1", style)
    path.write_bytes(text.encode())
    with Store(url) as store:
        report = imported(store, path)
        assert report.messages == len(conversation)
        back = exported(store, folder, "telegram:1")
        store.delete("telegram:1")
    assert back.read_bytes().decode() == text
