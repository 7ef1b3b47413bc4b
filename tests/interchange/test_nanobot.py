"""nanobot's files: three generations and the Go port, in and out, byte for byte."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock, MakeDatabase
from factories import message
from hypothesis import given
from hypothesis import strategies as st

from lango_store import Message, MessageRole, Store, ToolCall, interchange
from lango_store.interchange import FileReport, nanobot
from lango_store.interchange.nanobot_lines import line_from_message, lines_from_message, message_from_line

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(path for path in DATA.glob("nanobot_*/*.jsonl"))
G1 = json.loads((DATA / "nanobot_g1" / "golden.json").read_text())
G2 = json.loads((DATA / "nanobot_g2" / "golden.json").read_text())
CORRUPT = json.loads((DATA / "nanobot_g2" / "corrupt_expected.json").read_text())

METADATA = {
    "_type": "metadata",
    "key": "telegram:1",
    "created_at": "2026-01-01T00:00:00",
    "updated_at": "2026-02-01T12:00:00.000001",
    "metadata": {},
    "last_consolidated": 0,
}
HELLO = {"role": "user", "content": "hello", "timestamp": "2026-01-01T00:00:01"}


@pytest.fixture
def opened(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of these lines: objects as nanobot writes them, text as it is."""

    def make(*lines: Any, name: str = nanobot.file_name("telegram:1", "g2"), end: str = "\n") -> Path:
        path = tmp_path / name
        texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
        path.write_bytes(("\n".join(texts) + end).encode())
        return path

    return make


def imported(store: Store, path: Path) -> FileReport:
    (report,) = interchange.import_path(store, path)
    assert report.error is None
    return report


def exported(store: Store, folder: Path, key: str) -> Path:
    (done,) = interchange.export(store, folder / "out", "nanobot", keys=[key])
    assert done.error is None
    return Path(str(done.path))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seen(store: Store, key: str) -> list[Any]:
    """Give the messages of a session as nanobot's lines."""
    return [line_from_message(each) for each in store.all_messages(key)]


# As nanobot reads them


@pytest.mark.parametrize("key", G2)
def test_todays_files_are_read_as_nanobot_reads_them(opened: Store, key: str) -> None:
    golden = G2[key]
    imported(opened, DATA / "nanobot_g2" / golden["filename"])
    info = opened.info(key)
    assert json.dumps(seen(opened, key)) == json.dumps(golden["messages"])
    assert (info.metadata, info.last_consolidated) == (golden["metadata"], golden["last_consolidated"])
    assert info.created_at == datetime.fromisoformat(golden["created_at"]).astimezone(UTC)
    assert info.updated_at == datetime.fromisoformat(golden["updated_at"]).astimezone(UTC)
    assert nanobot.file_name(key, "g2") == golden["filename"]


def test_files_of_the_first_release_with_keys_are_read_as_nanobot_reads_them(opened: Store) -> None:
    reports = interchange.import_path(opened, DATA / "nanobot_g1", format="nanobot")
    keys = {key for report in reports for key in report.keys}
    assert keys == {each["key"] for each in G1["list_sessions"]} | {"telegram:12345678"}
    golden = G1["telegram:12345678"]
    assert json.dumps(seen(opened, "telegram:12345678")) == json.dumps(golden["messages"])
    assert opened.info("telegram:12345678").last_consolidated == golden["last_consolidated"]


def test_a_model_sees_what_nanobot_shows_it(opened: Store) -> None:
    golden = G1["telegram:12345678"]
    imported(opened, DATA / "nanobot_g1" / "telegram_12345678.jsonl")
    session = opened.open("telegram:12345678")
    assert session.history(last=500, from_consolidated=True) == golden["history"]
    assert session.history(last=1, from_consolidated=True) == golden["history_1"]
    assert session.history(last=3, from_consolidated=True) == golden["history_3"]


@pytest.mark.parametrize("key", [key for key in G2 if key != "telegram:12345678"])  # that one has images and commands
def test_a_model_sees_what_todays_nanobot_shows_it(opened: Store, key: str) -> None:
    imported(opened, DATA / "nanobot_g2" / G2[key]["filename"])
    assert opened.open(key).history(from_consolidated=True) == G2[key]["history_default"]


@pytest.mark.parametrize("key", G1["filenames"])
def test_keys_become_names_as_nanobot_makes_them(key: str) -> None:
    assert nanobot.file_name(key, "g1") == G1["filenames"][key]


def test_the_oldest_files_have_their_key_in_their_name_only(opened: Store) -> None:
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


def test_the_go_ports_files_are_read(opened: Store) -> None:
    imported(opened, DATA / "nanobot_go" / "telegram_12345678.jsonl")
    info = opened.info("telegram:12345678")
    assert (info.title, info.metadata, info.last_consolidated) == ("x", {"title": "x"}, 2)
    assert info.updated_at == datetime(2026, 11, 21, 20, 36, 40, tzinfo=UTC)
    assert opened.all_messages("telegram:12345678")[0].content == "Hello 你好 🌍 <b>&</b>"


def test_tool_calls_are_ours_inside(opened: Store) -> None:
    imported(opened, DATA / "nanobot_g2" / G2["telegram:12345678"]["filename"])
    asked, first = opened.all_messages("telegram:12345678")[3:5]
    assert asked.tool_calls == [
        ToolCall(id="call_1", name="get_weather", arguments='{"city": "NYC"}'),
        ToolCall(id="call_2", name="get_time", arguments="{}"),
    ]
    assert (first.role, first.tool_call_id, first.name) == (MessageRole.TOOL, "call_1", "get_weather")


def test_what_has_no_column_lies_flat_in_extra_and_nothing_else_does(opened: Store) -> None:
    imported(opened, DATA / "nanobot_g2" / G2["telegram:12345678"]["filename"])
    extras = [each.extra for each in opened.all_messages("telegram:12345678")]
    assert extras[2] == {"timestamp": "2026-11-21T20:35:51.407660", "media": ["/tmp/a.png"]}
    assert list(extras[3]) == ["timestamp", "reasoning_content", "thinking_blocks"]
    assert [each for each in extras if "_nanobot" in each] == []


# There and back


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_come_back_byte_for_byte_twice(make_database: MakeDatabase, tmp_path: Path, path: Path) -> None:
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
    "arguments that are no text": '{"role": "assistant", "content": "", "tool_calls": '
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
def test_odd_lines_come_back_byte_for_byte(opened: Store, file: Callable[..., Path], tmp_path: Path, text: str) -> None:
    source = file(METADATA, text, HELLO)
    report = imported(opened, source)
    assert report.messages == 2
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_odd_lines_of_the_go_port_come_back_byte_for_byte(
    opened: Store, file: Callable[..., Path], tmp_path: Path, text: str
) -> None:
    go = (DATA / "nanobot_go" / "telegram_12345678.jsonl").read_text().splitlines()
    source = file(go[0], text, *go[1:], name="telegram_12345678.jsonl")
    imported(opened, source)
    assert exported(opened, tmp_path, "telegram:12345678").read_bytes() == source.read_bytes()


def test_where_the_metadata_stands_comes_back(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    state = {"_type": "provider_state", "state": {"a": 1.5}}
    for number, made in enumerate(
        (
            file(METADATA, state, HELLO, end=""),
            file(HELLO, METADATA | {"key": "telegram:2"}, name=nanobot.file_name("telegram:2", "g2")),
            file(state, HELLO, METADATA | {"key": "telegram:3"}, HELLO, name=nanobot.file_name("telegram:3", "g2")),
        ),
        start=1,
    ):
        imported(opened, made)
        assert exported(opened, tmp_path, f"telegram:{number}").read_bytes() == made.read_bytes()


def test_the_archive_count_of_today_comes_back(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    metadata = {**METADATA, "last_archived": 1, "last_consolidated": 1}
    metadata["last_consolidated"] = metadata.pop("last_consolidated")
    source = file(metadata, HELLO, HELLO)
    imported(opened, source)
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
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


@given(
    conversation=st.lists(messages, max_size=5),
    metadata=st.dictionaries(st.text(), values, max_size=3),
    state=st.none() | values,
    style=st.sampled_from(["g0", "g1", "g2", "go"]),
)
def test_any_conversation_survives_byte_for_byte(
    url: str, tmp_path_factory: pytest.TempPathFactory, conversation: Any, metadata: Any, state: Any, style: str
) -> None:
    head: dict[str, Any] = METADATA | {"metadata": metadata, "last_consolidated": len(conversation)}
    if style == "g0":
        head = {name: head[name] for name in ("_type", "created_at", "updated_at", "metadata")}
    heads = [head] if state is None else [head, {"_type": "provider_state", "state": state}]
    text = "".join(f"{written(line, style)}\n" for line in [*heads, *conversation])
    folder = tmp_path_factory.mktemp("any")
    path = folder / nanobot.file_name("telegram:1", style)
    path.write_bytes(text.encode())
    with Store(url) as store:
        report = imported(store, path)
        assert report.messages == len(conversation)
        back = exported(store, folder, "telegram:1")
        store.delete("telegram:1")
    assert back.read_bytes().decode() == text


@given(line=messages)
def test_any_line_survives_as_a_message(line: dict[str, Any]) -> None:
    made = message_from_line(line)
    stored = Message.model_validate_json(made.model_dump_json())
    stored.created_at = stored.created_at or datetime(2026, 1, 1, tzinfo=UTC)
    assert json.dumps(line_from_message(stored)) == json.dumps(line)


# Roles, keys and times


def test_a_role_that_we_do_not_know_is_a_users_and_comes_back(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    source = file(METADATA, HELLO, HELLO | {"role": "system_note"}, HELLO | {"role": None})
    report = imported(opened, source)
    assert [(each.line, each.reason) for each in report.skipped] == [
        (3, 'role "system_note" is none of ours: kept as user'),
        (4, "role null is none of ours: kept as user"),
    ]
    assert [each.role for each in opened.all_messages("telegram:1")] == [MessageRole.USER] * 3
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


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
def test_the_metadata_decides_the_key_else_the_name(
    opened: Store, file: Callable[..., Path], name: str, first: Any, key: str
) -> None:
    assert imported(opened, file(first, HELLO, name=f"{name}.jsonl")).keys == [key]


@given(key=st.text(min_size=1, max_size=40))
def test_names_of_today_give_their_key_back(key: str) -> None:
    stem = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    assert nanobot.file_name(key, "g2") == f"{stem}.jsonl"
    assert nanobot._key_of_name(stem, "g2") == key


def test_todays_file_goes_before_the_one_it_left_behind(opened: Store, file: Callable[..., Path]) -> None:
    file(METADATA | {"key": "Z:1"}, HELLO, name=nanobot.file_name("Z:1", "g1"))
    path = file(METADATA | {"key": "Z:1"}, HELLO, HELLO, name=nanobot.file_name("Z:1", "g2"))
    reports = interchange.import_path(opened, path.parent, format="nanobot")
    assert [(report.keys, report.already_there) for report in reports] == [(["Z:1"], []), ([], ["Z:1"])]
    assert opened.info("Z:1").message_count == 2


def test_a_time_without_a_zone_is_this_machines(
    opened: Store, file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file(METADATA, HELLO, HELLO | {"timestamp": "2026-01-01T00:00:01+02:00"})
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        imported(opened, source)
    time.tzset()
    assert opened.info("telegram:1").created_at == datetime(2025, 12, 31, 15, tzinfo=UTC)
    tokyo, told = opened.all_messages("telegram:1")
    assert tokyo.created_at == datetime(2025, 12, 31, 15, 0, 1, tzinfo=UTC)
    assert told.created_at == datetime(2025, 12, 31, 22, 0, 1, tzinfo=UTC)
    assert exported(opened, tmp_path, "telegram:1").read_bytes() == source.read_bytes()


# Damage


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
    found = store.all_messages(key)
    return [line_from_message(each.model_copy(update={"created_at": None})) for each in found]


def test_a_file_without_a_line_that_can_be_read_makes_no_session(opened: Store) -> None:
    assert CORRUPT["all_bad"] is None
    (report,) = interchange.import_path(opened, DATA / "nanobot_g2" / "corrupt" / "all_bad.jsonl")
    assert "holds no line that can be read; line 1: is no JSON" in str(report.error)
    assert opened.count() == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("nonsense", "is no JSON"),
        ('{"role": "user", "content": "cut', "is no JSON"),
        ('{"role": "user"} {"role": "user"}', "is no JSON"),
        ('{"role": "user", "content": "\0"}', "is no JSON"),
        ("[1, 2]", "is no JSON object (list)"),
        ("null", "is no JSON object (NoneType)"),
        ('{"content": ' + "1" * 5_000 + "}", "is no JSON"),
        ('{"content": ' + "[" * 100_000 + "}", "is nested more than 201 levels deep"),
        ('{"content": ' + '{"":' * 400 + "1" + "}" * 401, "is nested more than 201 levels deep"),
    ],
)
def test_bad_lines_are_skipped_and_told(opened: Store, file: Callable[..., Path], bad: str, reason: str) -> None:
    report = imported(opened, file(METADATA | {"last_consolidated": 2}, HELLO, bad, HELLO))
    ((line, told),) = [(each.line, each.reason) for each in report.skipped]
    assert (line, told[: len(reason)], report.messages) == (3, reason, 2)
    assert opened.info("telegram:1").last_consolidated == 2


def test_bytes_that_are_no_text_are_skipped_and_told(opened: Store, file: Callable[..., Path]) -> None:
    path = file(METADATA, HELLO, '{"role": "user", "content": "é"}', HELLO)
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xe9"))
    report = imported(opened, path)
    assert [(each.line, each.reason[:11]) for each in report.skipped] == [(3, "is no UTF-8")]
    assert report.messages == 2


def test_what_no_column_can_hold_is_told_and_comes_back(
    opened: Store, file: Callable[..., Path], tmp_path: Path
) -> None:
    source = file(METADATA, '{"role": "assistant", "content": "x", "score": NaN}')
    report = imported(opened, source)
    assert [(each.line, each.reason[:19]) for each in report.skipped] == [(2, "kept as text only: ")]
    (kept,) = opened.all_messages("telegram:1")
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
def test_metadata_that_is_no_object_is_empty(
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
    (kept,) = opened.all_messages("telegram:1")
    assert kept.created_at == clock()
    assert lines(exported(opened, tmp_path, "telegram:1"))[1]["timestamp"] == time


def test_of_several_metadata_lines_the_last_counts(opened: Store, file: Callable[..., Path], tmp_path: Path) -> None:
    last = METADATA | {"metadata": {"title": "late"}, "last_consolidated": 1}
    report = imported(opened, file(METADATA, HELLO, last))
    assert [(each.line, each.reason) for each in report.skipped] == [(1, "metadata: a later line says otherwise")]
    info = opened.info("telegram:1")
    assert (info.title, info.last_consolidated) == ("late", 1)
    assert lines(exported(opened, tmp_path, "telegram:1")) == [HELLO, last]


def test_a_file_that_changes_while_it_is_read_is_not_imported(opened: Store, file: Callable[..., Path]) -> None:
    path = file(METADATA, HELLO)
    (draft,) = nanobot.read(path, [])
    path.write_text(path.read_text() + json.dumps(HELLO) + "\n")
    with pytest.raises(ValueError, match="changed while it was read"):
        list(draft.parts())


# What the store changed


def test_what_changed_in_the_store_shows_in_the_metadata_line_and_nothing_else(
    opened: Store, file: Callable[..., Path], tmp_path: Path, clock: Clock
) -> None:
    source = file(METADATA | {"metadata": {"a": 1, "title": "old"}}, HELLO, HELLO)
    imported(opened, source)
    opened.update("telegram:1", title="new", last_consolidated=1)
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
    (tmp_path / "out" / nanobot.file_name("telegram:1", "g2")).unlink()
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
