"""Dive's session files: what Dive reads from them we read, and what came in goes out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interchange.dive_files import MOMENT, TIME, dives, event, file, header, lines, read, usage, user, window
from interchange.session_files import carried, golden, messages, parts
from support.databases import MakeDatabase
from support.paths import DATA

from lango_store import MessageRole, Store, interchange
from lango_store.interchange.dive import DIVE
from lango_store.interchange.draft import Skipped

FILES = [path for system in ("dive", "dive_first") for path in sorted((DATA / system).glob("*.jsonl"))]


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
    assert [len(part.messages) for part in draft.parts] == [0, 1]
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
    assert [part.id for part in draft.parts] == [None, None]
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


def test_an_unknown_role_is_kept_as_user_and_comes_out_again(tmp_path: Path) -> None:
    path = file(tmp_path, header(), event(user(role="oracle"), user(role="tool")))
    skipped: list[Skipped] = []
    (draft,) = DIVE.read(path, skipped)
    assert [message.role for message in messages(draft)] == [MessageRole.USER, MessageRole.TOOL]
    assert [(each.line, "oracle" in each.reason) for each in skipped] == [(2, True)]
    assert lines(DIVE.write(draft, tmp_path / "out")) == lines(path)


def test_lines_of_unknown_types_are_reported_and_come_out_in_their_places(tmp_path: Path) -> None:
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
