"""Dive's session files: what Dive reads from them we read, and what came in goes out."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeDatabase
from hypothesis import given
from hypothesis import strategies as st
from interchange.session_files import DATA, assert_only_our_errors, carried, golden, messages, parts

from lango_store import Message, MessageRole, Store, ToolCall, interchange
from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.dive import Dive
from lango_store.interchange.dive.names import id_fault, id_of, key_of
from lango_store.interchange.draft import Draft, Part, Skipped

DIVE = Dive()
FILES = [path for system in ("dive", "dive_first") for path in sorted((DATA / system).glob("*.jsonl"))]

TIME = "2026-11-21T20:34:01.833901979Z"
MOMENT = datetime(2026, 11, 21, 20, 34, 1, 833901, tzinfo=UTC)
TEXT = [{"type": "text", "text": "hello"}]


def read(path: Path) -> Draft:
    (draft,) = DIVE.read(path, [])
    return draft


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def header(**fields: Any) -> dict[str, Any]:
    return {"line_type": "header", "data": {"id": "s", "created_at": TIME, "updated_at": TIME} | fields}


def event(*sent: dict[str, Any], **fields: Any) -> dict[str, Any]:
    data = {"id": "evt-1", "type": "turn", "timestamp": TIME, "messages": list(sent) or None} | fields
    return {"line_type": "event", "data": data}


def user(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": TEXT} | fields


def file(folder: Path, *written: Any, end: str = "\n") -> Path:
    path = folder / "s.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in written) + end)
    return path


def dives(message: Message) -> dict[str, Any]:
    """Show a message as Dive's golden has it."""
    return ({"id": message.id} if message.id else {}) | {"role": message.role.value, "content": message.content}


def window(draft: Draft) -> list[Message]:
    """Give what Dive gives a model: the last compaction and what follows."""
    found: list[Message] = []
    for part in draft.parts():
        found = part.messages if part.kind == "compaction" else found + part.messages
    return found


def usage(draft: Draft) -> dict[str, int]:
    total = {"input_tokens": 0, "output_tokens": 0}
    for part in draft.parts():
        for name, value in (part.usage or {}).items():
            if isinstance(value, int):
                total[name] = total.get(name, 0) + value
    return total


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_draft_says_what_dive_says(path: Path) -> None:
    expected = golden(path.parent.name)[path.stem]
    draft = read(path)
    assert draft.key == path.stem
    assert draft.fields.get("title", "") == expected["title"]
    assert (draft.fields.get("metadata") or None) == expected.get("metadata")
    assert [dives(message) for message in window(draft)] == (expected["messages"] or [])
    assert len(parts(draft)) == expected["event_count"]
    assert usage(draft) == {name: value for name, value in expected["total_usage"].items() if isinstance(value, int)}
    if "all_messages" in expected:
        assert [dives(message) for message in messages(draft)] == (expected["all_messages"] or [])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_comes_out_as_it_came_in(path: Path, tmp_path: Path) -> None:
    assert DIVE.recognises(path)
    out = DIVE.write(read(path), tmp_path)
    assert out == tmp_path / path.name
    assert out.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_goes_through_a_database_twice(path: Path, tmp_path: Path, make_database: MakeDatabase) -> None:
    assert carried(make_database, path, tmp_path, "dive").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_store_says_what_dive_says(path: Path, url: str) -> None:
    expected = golden(path.parent.name)[path.stem]
    with Store(url) as store:
        interchange.import_path(store, path)
        session = store.open(path.stem)
        assert [dives(message) for message in session.messages()] == (expected["messages"] or [])
        assert (session.info().title or "", session.event_count()) == (expected["title"], expected["event_count"])
        assert {"input_tokens": 0, "output_tokens": 0} | session.total_usage() == expected["total_usage"]
        if "compaction_history" in expected:
            history = [
                ([dives(message) for message in each.summary], each.replaced_messages) for each in session.compactions()
            ]
            told = expected["compaction_history"] or []
            assert history == [(each["summary"], len(each["replaced_messages"])) for each in told]


def test_what_came_in_while_a_summary_was_written_is_in_dives_window(
    tmp_path: Path, make_database: MakeDatabase
) -> None:
    def sent(text: str) -> list[Message]:
        return [Message(role="user", content=[{"type": "text", "text": text}])]

    with Store(make_database()) as store:
        session = store.open("s", messages=sent("a"))
        session.save_turn(sent("b"), {"input_tokens": 1})

        def summarize(_: list[Message]) -> list[Message]:
            session.append_message(sent("c")[0])
            session.save_turn(sent("d"), {"input_tokens": 2})
            return sent("a, b")

        session.compact(summarize)
        session.save_turn(sent("e"), {"input_tokens": 4})
        shown = [dives(message) for message in session.messages()]
        (done,) = interchange.export(store, tmp_path, "dive", keys=["s"])
    path = Path(str(done.path))
    assert [dives(message) for message in window(read(path))] == shown
    with Store(make_database()) as store:
        interchange.import_path(store, path)
        again = store.open("s")
        assert [dives(message) for message in again.messages()] == shown
        assert again.total_usage() == {"input_tokens": 7}
    assert lines(carried(make_database, path, tmp_path / "out", "dive")) == lines(path)


def test_a_session_that_went_on_goes_out_with_what_was_added(tmp_path: Path, url: str) -> None:
    with Store(url) as store:
        interchange.import_path(store, DATA / "dive" / "tools.jsonl")
        store.append_message("tools", Message(role="user", content="more"))
        (done,) = interchange.export(store, tmp_path, "dive", keys=["tools"])
        before, after = lines(DATA / "dive" / "tools.jsonl"), lines(Path(str(done.path)))
        assert after[1:-1] == before[1:]
        assert after[-1]["data"]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "more"}]}]
        assert after[0]["data"]["updated_at"] > before[0]["data"]["updated_at"]


def test_a_suspended_session_keeps_its_calls(tmp_path: Path) -> None:
    suspended = header(
        title="waits",
        metadata={"b": 1, "a": [None]},
        forked_from="base",
        suspended=True,
        pending_tool_calls=[{"id": "toolu_1", "name": "ask", "input": {"q": "<b>"}}],
        completed_tool_calls=[{"id": "toolu_0", "output": "ok"}],
    )
    draft = read(file(tmp_path, suspended, event(user())))
    assert (draft.fields["title"], draft.forked_from) == ("waits", "base")
    assert list(draft.extra["dive"]["header"]) == list(suspended["data"])
    assert lines(DIVE.write(draft, tmp_path / "out"))[0] == suspended


def test_the_later_of_the_header_and_the_last_event_is_when_a_session_was_updated(tmp_path: Path) -> None:
    later = "2026-11-21T20:34:01.833901980Z"
    draft = read(file(tmp_path, header(), event(user(), timestamp="2027-01-01T00:00:00.5+09:00")))
    assert draft.updated_at == datetime(2026, 12, 31, 15, 0, 0, 500000, tzinfo=UTC)
    assert lines(DIVE.write(draft, tmp_path / "out"))[0] == header()
    assert read(file(tmp_path, header(updated_at=later), event(user()))).updated_at == MOMENT


def test_an_event_without_messages_counts(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(id="evt-1", usage={"input_tokens": 3}), event(user(), id="evt-2"))
    draft = read(path)
    assert [len(part.messages) for part in draft.parts()] == [0, 1]
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


def test_a_message_id_is_kept_as_ours_only_where_it_is_unique(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        header(),
        event(user(id="a"), user(id="b"), user(id="x\0"), user(id="y" * 513), id="evt-1"),
        event(user(id="a"), id="evt-2"),
    )
    draft = read(path)
    assert [message.id for message in messages(draft)] == [None, "b", None, None, None]
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


def test_events_with_one_id_are_two_events(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user()), event(user()))
    draft = read(path)
    assert [part.id for part in draft.parts()] == [None, None]
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


def test_an_unknown_role_is_kept_as_user_and_comes_out_again(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user(role="oracle"), user(role="tool")))
    skipped: list[Skipped] = []
    (draft,) = DIVE.read(path, skipped)
    assert [message.role for message in messages(draft)] == [MessageRole.USER, MessageRole.TOOL]
    assert [(each.line, "oracle" in each.reason) for each in skipped] == [(2, True)]
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


def test_a_torn_last_line_is_dropped_and_told_of(tmp_path: Path) -> None:
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


def test_lines_of_unknown_types_are_told_of_and_come_out_in_their_places(tmp_path: Path) -> None:
    def note(number: int) -> dict[str, Any]:
        return {"line_type": "note", "data": number, "more": True}

    path = file(
        tmp_path, header(), note(1), note(2), event(user()), note(3), event(user(), id="evt-2"), note(4), note(5)
    )
    skipped: list[Skipped] = []
    (draft,) = DIVE.read(path, skipped)
    assert [each.line for each in skipped] == [2, 3, 5, 7, 8]
    assert len(messages(draft)) == 2
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


@pytest.mark.parametrize("id", ["", ".", "..", "a..b", "a/b", "a\\b", None, 7])
def test_an_id_that_dive_refuses_is_refused(id: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="id"):
        read(file(tmp_path, header(id=id)))


@pytest.mark.parametrize(
    ("key", "id"),
    [
        (".", "%2E"),
        ("...", ".%2E%2E"),
        ("a..b", "a.%2Eb"),
        ("../a/b", ".%2E%2Fa%2Fb"),
        ("a\\b", "a%5Cb"),
        ("100%", "100%"),
        ("%2F", "%252F"),
        ("%/%25", "%%2F%2525"),
    ],
)
def test_a_key_that_no_file_can_be_named_is_escaped_and_read_back(key: str, id: str, tmp_path: Path) -> None:
    path = DIVE.write(Draft(key, lambda: iter(()), forked_from=key), tmp_path)
    assert path == tmp_path / f"{id}.jsonl"
    assert (lines(path)[0]["data"]["id"], lines(path)[0]["data"]["forked_from"]) == (id, id)
    draft = read(path)
    assert (draft.key, draft.forked_from) == (key, key)
    again = DIVE.write(draft, tmp_path / "again")
    assert (again.name, again.read_bytes()) == (path.name, path.read_bytes())


@given(st.text("%2F5CE./\\a", min_size=1, max_size=12))
def test_every_key_has_an_id_of_its_own_that_dive_takes(key: str) -> None:
    id = id_of(key)
    assert key_of(id) == key
    assert id_fault(id) is None


@pytest.mark.parametrize("id", ["50%", "%2f", "a%2", "%252", "%2E%2E"])
def test_an_id_with_a_percent_sign_of_dives_own_stays_as_it_is(id: str, tmp_path: Path) -> None:
    path = file(tmp_path, header(id=id))
    draft = read(path)
    assert draft.key == id
    assert DIVE.write(draft, tmp_path / "out").name == f"{id}.jsonl"
    assert lines(tmp_path / "out" / f"{id}.jsonl")[0] == lines(path)[0]


def test_an_id_that_no_key_can_be_is_refused(tmp_path: Path) -> None:
    for id in ("a\0b", "x" * 513, "\ud83d"):
        with pytest.raises(InvalidFile, match="key"):
            read(file(tmp_path, header(id=id)))
    with pytest.raises(InvalidKey, match="too long"):
        DIVE.write(Draft("é" * 130, lambda: iter(())), tmp_path)


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        read(tmp_path / "none.jsonl")


def test_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user()))
    draft = read(path)
    with path.open("a") as more:
        more.write(json.dumps(event(user(), id="evt-2")) + "\n")
    with pytest.raises(InvalidFile, match="import again"):
        messages(draft)


def test_a_large_file_is_read_and_written_an_event_at_a_time(tmp_path: Path) -> None:
    size = 20_000

    def peak(count: int) -> int:
        path = file(tmp_path, header(), *(event(user(content="x" * size), id=str(each)) for each in range(count)))
        tracemalloc.start()
        try:
            assert DIVE.write(read(path), tmp_path / str(count)).stat().st_size > count * size
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    assert peak(600) < peak(200) + 400 * size / 10


def test_text_is_escaped_as_go_escapes_it(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "<b>&\u2028\u2029 \0 é \ud83d"}]
    draft = Draft("s", lambda: iter([Part([Message(role="user", content=content)])]))
    text = DIVE.write(draft, tmp_path).read_text()
    assert r"\u003cb\u003e\u0026\u2028\u2029 \u0000 é \ud83d" in text
    assert ", " not in text
    assert messages(read(tmp_path / "s.jsonl"))[0].content == content


def test_messages_made_elsewhere_go_out_as_blocks(tmp_path: Path) -> None:
    made = [
        Message(role="developer", content="be brief"),
        Message(role="model", tool_calls=[ToolCall(id="c", name="ls", arguments='{"a":1}')]),
        Message(role="tool", tool_call_id="c", content={"files": 2}),
        Message(role="tool", tool_calls=[ToolCall(id="c", name="ls", output="ok")]),
        Message(role="assistant", content="so", tool_calls=[ToolCall(id="d", name="rm", arguments="not JSON")]),
        Message(role="user"),
    ]
    out = DIVE.write(Draft("s", lambda: iter([Part(made, created_at=MOMENT)]), created_at=MOMENT), tmp_path)
    events = [line["data"] for line in lines(out)[1:]]
    assert len({each["id"] for each in events}) == len(made)
    assert {each["timestamp"] for each in events} == {"2026-11-21T20:34:01.833901Z"}
    assert [each["messages"][0] for each in events] == [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": '{"files": 2}'}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "d", "name": "rm", "input": "not JSON"},
            ],
        },
        {"role": "user", "content": None},
    ]


def test_what_no_column_holds_goes_through_a_database_twice(tmp_path: Path, make_database: MakeDatabase) -> None:
    path = file(
        tmp_path,
        header(title="", metadata={}, suspended=True, forked_from="", created_at="0001-01-01T00:00:00Z"),
        {"line_type": "note"},
        event(user(id="a", cache=1, role="oracle"), {"role": "user"}, {"content": None}, usage={}, metadata=None),
        event(id="evt-1", type="mark", more=[1.0, 1e300]),
        {"line_type": "note", "data": "\0"},
        event(user(id="a"), id="evt-3", type="compaction", timestamp="2026-11-21T20:34:01.5+09:00", messages=[]),
    )
    assert lines(carried(make_database, path, tmp_path / "out", "dive")) == lines(path)


def test_what_changed_since_stands_in_the_header(tmp_path: Path) -> None:
    draft = read(file(tmp_path, header(title="old", metadata={"a": 1}, suspended=True), event(user())))
    draft.key, draft.fields, draft.forked_from = "branch", {"title": "new"}, "s"
    draft.updated_at = datetime(2027, 1, 1, tzinfo=UTC)
    assert lines(DIVE.write(draft, tmp_path / "out"))[0]["data"] == {
        "id": "branch",
        "title": "new",
        "created_at": TIME,
        "updated_at": "2027-01-01T00:00:00Z",
        "suspended": True,
        "forked_from": "s",
    }


def test_a_compaction_stands_before_what_came_in_while_it_was_written(tmp_path: Path) -> None:
    def sent(*seqs: int) -> list[Message]:
        return [Message(role="user", content=str(seq), seq=seq) for seq in seqs]

    def stored() -> list[Part]:
        return [
            Part(sent(1, 2), kind="turn", id="a", first_seq=1, usage={"input_tokens": 1}),
            Part(sent(3, 4, 5), kind="turn", id="b", first_seq=3, usage={"input_tokens": 1}),
            Part(sent(6), first_seq=6),
            Part(sent(8), kind="compaction", id="c", first_seq=8, replaced_upto=4),
            Part(sent(9, 10), first_seq=9),
            Part(sent(12), kind="compaction", id="d", first_seq=12, replaced_upto=9),
            Part(sent(13), first_seq=13),
        ]

    draft = read(DIVE.write(Draft("s", lambda: iter(stored())), tmp_path))
    told = [(part.kind, [message.content[0]["text"] for message in part.messages]) for part in draft.parts()]
    assert told == [
        ("turn", ["1", "2"]),
        ("turn", ["3", "4"]),
        ("compaction", ["8"]),
        ("turn", ["5"]),
        ("turn", ["6"]),
        ("turn", ["9"]),
        ("compaction", ["12"]),
        ("turn", ["10"]),
        ("turn", ["13"]),
    ]
    assert usage(draft)["input_tokens"] == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
times = st.sampled_from([TIME, "2026-11-21T20:34:01Z", "2027-02-03T04:05:06.7+09:00", "0001-01-01T00:00:00Z"])
dives_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "oracle"]), "content": json_values},
    optional={"id": st.text(max_size=3), "cache": json_values},
)
events = st.fixed_dictionaries(
    {"id": st.uuids().map(str), "type": st.sampled_from(["turn", "compaction", "mark"]), "timestamp": times},
    optional={
        "messages": st.none() | st.lists(dives_messages, max_size=3),
        "usage": objects,
        "metadata": objects,
        "more": json_values,
    },
)
headers = st.fixed_dictionaries(
    {"id": st.just("s"), "created_at": times, "updated_at": times},
    optional={"title": st.text(), "metadata": objects, "forked_from": st.text(), "suspended": st.booleans()},
)


@given(headers, st.lists(events, max_size=4))
def test_any_session_of_dive_comes_back(tmp_path_factory: pytest.TempPathFactory, head: Any, happened: Any) -> None:
    folder = tmp_path_factory.mktemp("dive")
    said = [{"line_type": "header", "data": head}, *({"line_type": "event", "data": each} for each in happened)]
    out = DIVE.write(read(file(folder, *said)), folder / "out")
    assert [json.dumps(line, sort_keys=True) for line in lines(out)] == [
        json.dumps(line, sort_keys=True) for line in said
    ]


@pytest.mark.parametrize("name", ["tools", "compacted-once"])
def test_damaged_files_give_our_errors_only(name: str, tmp_path: Path) -> None:
    original = (DATA / "dive" / f"{name}.jsonl").read_bytes()
    assert_only_our_errors(DIVE.read, original, tmp_path / "s.jsonl", rounds=300, write=DIVE.write)


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    for name, start in (("a.jsonl", '{"_type": "metadata"}'), ("a.json", '{"line_type":"header"}'), ("b.jsonl", "")):
        (tmp_path / name).write_text(start)
        assert not DIVE.recognises(tmp_path / name)
