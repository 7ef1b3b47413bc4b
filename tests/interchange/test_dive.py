"""Dive's session files: read as Dive reads them, written back equal, and damaged ones refused."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interchange.dive_files import MOMENT, TIME, dives, event, file, header, lines, read, user
from interchange.session_files import carried, golden
from support.databases import MakeDatabase
from support.json_values import json_values
from support.paths import DATA

from lango_store import MessageRole, Store, interchange
from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange import dive
from lango_store.interchange.dive_fields import id_fault, id_of, key_of
from lango_store.interchange.draft import SessionDraft, Skipped
from lango_store.interchange.source import lines_in

pytestmark = pytest.mark.one_database

FILES = [path for system in ("dive", "dive_first") for path in sorted((DATA / system).glob("*.jsonl"))]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_file_is_unchanged_after_two_round_trips(path: Path, tmp_path: Path, make_database: MakeDatabase) -> None:
    assert carried(make_database, path, tmp_path, "dive").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_imported_session_has_the_title_messages_and_usage_that_dive_loads(path: Path, url: str) -> None:
    expected = golden(path.parent.name)[path.stem]
    with Store(url) as store:
        interchange.import_path(store, path)
        session = store.open(path.stem)
        assert [dives(message) for message in session.messages()] == (expected["messages"] or [])
        assert (session.info().title or "", session.info().turn_count) == (expected["title"], expected["event_count"])
        assert {"input_tokens": 0, "output_tokens": 0} | session.total_usage() == expected["total_usage"]
        if "all_messages" in expected:
            assert [dives(message) for message in session.all_messages()] == (expected["all_messages"] or [])
        if "compaction_history" in expected:
            history = [
                ([dives(message) for message in each.summary], each.replaced_messages)
                for each in session.turns.list_compactions()
            ]
            told = expected["compaction_history"] or []
            assert history == [(each["summary"], len(each["replaced_messages"])) for each in told]


def test_suspended_session_keeps_pending_and_completed_calls(tmp_path: Path) -> None:
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
    (state,) = draft.suspensions
    assert state == {name: suspended["data"][name] for name in ("pending_tool_calls", "completed_tool_calls")}
    assert list(draft.extra["dive"]["header"]) == list(suspended["data"])
    assert lines(dive.write(draft, tmp_path / "out"))[0] == suspended


def test_updated_at_is_the_later_time_of_header_and_last_event(tmp_path: Path) -> None:
    later = "2026-11-21T20:34:01.833901980Z"
    draft = read(file(tmp_path, header(), event(user(), timestamp="2027-01-01T00:00:00.5+09:00")))
    assert draft.updated_at == datetime(2026, 12, 31, 15, 0, 0, 500000, tzinfo=UTC)
    assert lines(dive.write(draft, tmp_path / "out"))[0] == header()
    assert read(file(tmp_path, header(updated_at=later), event(user()))).updated_at == MOMENT


def test_message_ids_are_kept_only_if_unique_and_storable(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        header(),
        event(user(id="a"), user(id="b"), user(id="x\0"), user(id="y" * 513), id="evt-1"),
        event(user(id="a"), id="evt-2"),
    )
    draft = read(path)
    assert [message.id for message in draft.messages] == [None, "b", None, None, None]
    assert lines(dive.write(draft, tmp_path / "out")) == lines(path)


def test_unknown_lines_and_members_are_reported_and_omitted(tmp_path: Path) -> None:
    sound = [header(), event(user()), event(user(role="oracle"), id="evt-2")]
    path = file(tmp_path, *sound[:2], {"line_type": "note", "data": 1}, sound[2] | {"more": True})
    skipped: list[Skipped] = []
    (draft,) = dive.read(path, skipped)
    imported = [*draft.messages]
    assert [(each.line, each.reason) for each in skipped] == [
        (3, "a line of type 'note' is not an event: left out"),
        (4, "has members other than line_type and data: left out"),
        (4, "a message: the role 'oracle' is unknown: stored as user"),
    ]
    assert imported[1].role is MessageRole.USER
    assert lines(dive.write(draft, tmp_path / "out")) == sound


@pytest.mark.slow
def test_fields_without_a_column_survive_two_round_trips(tmp_path: Path, make_database: MakeDatabase) -> None:
    path = file(
        tmp_path,
        header(title="", metadata={}, suspended=True, forked_from="", created_at="0001-01-01T00:00:00Z"),
        event(user(id="a", cache=1, role="oracle"), {"role": "user"}, {"content": None}, usage={}, metadata=None),
        event(id="evt-1", type="mark", more=[1.0, 1e300]),
        event(user(id="a"), id="evt-3", type="compaction", timestamp="2026-11-21T20:34:01.5+09:00", messages=[]),
    )
    assert lines(carried(make_database, path, tmp_path / "out", "dive")) == lines(path)


objects = st.dictionaries(st.text(max_size=5), json_values(), max_size=3)
times = st.sampled_from([TIME, "2026-11-21T20:34:01Z", "2027-02-03T04:05:06.7+09:00", "0001-01-01T00:00:00Z"])
dives_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "oracle"]), "content": json_values()},
    optional={"id": st.text(max_size=3), "cache": json_values()},
)
events = st.fixed_dictionaries(
    {"id": st.uuids().map(str), "type": st.sampled_from(["turn", "compaction", "mark"]), "timestamp": times},
    optional={
        "messages": st.none() | st.lists(dives_messages, max_size=3),
        "usage": objects,
        "metadata": objects,
        "more": json_values(),
    },
)
headers = st.fixed_dictionaries(
    {"id": st.just("s"), "created_at": times, "updated_at": times},
    optional={"title": st.text(), "metadata": objects, "forked_from": st.text(), "suspended": st.booleans()},
)


@pytest.mark.slow
@given(headers, st.lists(events, max_size=4))
def test_any_dive_session_round_trips(tmp_path_factory: pytest.TempPathFactory, head: Any, happened: Any) -> None:
    folder = tmp_path_factory.mktemp("dive")
    said = [{"line_type": "header", "data": head}, *({"line_type": "event", "data": each} for each in happened)]
    out = dive.write(read(file(folder, *said)), folder / "out")
    assert [json.dumps(line, sort_keys=True) for line in lines(out)] == [
        json.dumps(line, sort_keys=True) for line in said
    ]


def test_torn_last_line_is_dropped_and_reported(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user()), json.dumps(event(user(content="é")), ensure_ascii=False))
    whole = path.read_bytes()
    for cut in (whole[:-2], whole[: whole.rindex("é".encode()) + 1], whole[: whole.rindex(b"\n", 0, -1) + 2]):
        path.write_bytes(cut)
        skipped: list[Skipped] = []
        (draft,) = dive.read(path, skipped)
        assert [each.line for each in skipped] == [3]
        assert len([*draft.messages]) == 1
        assert path.read_bytes() == cut


@pytest.mark.parametrize("last", ['{"line_type":"event","data":1e999}', "[" * 300 + "]" * 300, "{}"])
def test_complete_but_invalid_last_line_raises_invalid_file(last: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="line 2"):
        read(file(tmp_path, header(), last))


def test_last_line_without_newline_is_kept_if_readable(tmp_path: Path) -> None:
    assert len([*read(file(tmp_path, header(), event(user()), end="")).messages]) == 1


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
        '{"line_type":"event","data":{},"data":{}}',
    ],
)
def test_invalid_line_before_the_last_is_named_in_error(bad: str, tmp_path: Path) -> None:
    path = file(tmp_path, header(), bad, event(user()))
    before = path.read_bytes()
    with pytest.raises(InvalidFile, match="line 2") as raised:
        read(path)
    assert raised.value.path == str(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("first", [{"line_type": "note", "data": {}}, event(user()), "{", ""])
def test_file_without_header_is_refused(first: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="header"):
        read(file(tmp_path, first))


def test_file_that_cannot_be_opened_raises_invalid_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        read(tmp_path / "none.jsonl")


def test_file_changed_while_reading_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user()))
    found = lines_in(path)
    next(found)
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(InvalidFile, match="import again"):
        list(found)


def test_files_of_other_formats_are_not_recognized(tmp_path: Path) -> None:
    for name, start in (("a.jsonl", '{"_type": "metadata"}'), ("a.json", '{"line_type":"header"}'), ("b.jsonl", "")):
        (tmp_path / name).write_text(start)
        assert not dive.recognizes(tmp_path / name)


@pytest.mark.parametrize("id", ["", ".", "..", "a..b", "a/b", "a\\b", None, 7])
def test_import_refuses_an_id_that_dive_refuses(id: Any, tmp_path: Path) -> None:
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
def test_key_that_is_not_a_valid_file_name_is_escaped_and_read_back(key: str, id: str, tmp_path: Path) -> None:
    path = dive.write(SessionDraft(key, [], forked_from=key), tmp_path)
    assert path == tmp_path / f"{id}.jsonl"
    assert (lines(path)[0]["data"]["id"], lines(path)[0]["data"]["forked_from"]) == (id, id)
    draft = read(path)
    assert (draft.key, draft.forked_from) == (key, key)
    again = dive.write(draft, tmp_path / "again")
    assert (again.name, again.read_bytes()) == (path.name, path.read_bytes())


@given(st.text("%2F5CE./\\a", min_size=1, max_size=12))
def test_each_key_maps_to_a_unique_id_that_dive_accepts(key: str) -> None:
    id = id_of(key)
    assert key_of(id) == key
    assert id_fault(id) is None


@pytest.mark.parametrize("id", ["50%", "%2f", "a%2", "%252", "%2E%2E"])
def test_dive_id_with_percent_sign_is_unchanged(id: str, tmp_path: Path) -> None:
    path = file(tmp_path, header(id=id))
    draft = read(path)
    assert draft.key == id
    assert dive.write(draft, tmp_path / "out").name == f"{id}.jsonl"
    assert lines(tmp_path / "out" / f"{id}.jsonl")[0] == lines(path)[0]


def test_id_that_is_not_a_valid_key_is_refused(tmp_path: Path) -> None:
    for id in ("a\0b", "x" * 513, "\ud83d"):
        with pytest.raises(InvalidFile, match="key"):
            read(file(tmp_path, header(id=id)))
    with pytest.raises(InvalidKey, match="too long"):
        dive.write(SessionDraft("é" * 130, []), tmp_path)
