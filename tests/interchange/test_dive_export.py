"""Exports to Dive: sessions of other systems, and imported sessions that were continued."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from interchange.dive_files import MOMENT, TIME, dives, event, file, header, lines, read, usage, user, window
from interchange.session_files import carried
from support.databases import MakeDatabase
from support.paths import DATA

from lango_store import Message, Store, ToolCall, interchange
from lango_store.interchange import dive
from lango_store.interchange.draft import Part, SessionDraft

pytestmark = pytest.mark.one_database


def test_export_escapes_text_like_go(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "<b>&\u2028\u2029 \0 é \ud83d"}]
    draft = SessionDraft("s", [Part([Message(role="user", content=content)])])
    text = dive.write(draft, tmp_path).read_text()
    assert r"\u003cb\u003e\u0026\u2028\u2029 \u0000 é \ud83d" in text
    assert ", " not in text
    (message,) = read(tmp_path / "s.jsonl").messages
    assert message.content == content


def test_messages_of_other_programs_are_exported_as_blocks(tmp_path: Path) -> None:
    made = [
        Message(role="developer", content="be brief"),
        Message(role="model", tool_calls=[ToolCall(id="c", name="ls", arguments='{"a":1}')]),
        Message(role="tool", tool_call_id="c", content={"files": 2}),
        Message(role="tool", tool_calls=[ToolCall(id="c", name="ls", output="ok")]),
        Message(role="assistant", content="so", tool_calls=[ToolCall(id="d", name="rm", arguments="not JSON")]),
        Message(role="user"),
        Message.user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]),
        Message.tool("no network", tool_call_id="d", failed=True),
    ]
    out = dive.write(SessionDraft("s", [Part(made, created_at=MOMENT)], created_at=MOMENT), tmp_path)
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
                {"type": "tool_use", "id": "d", "name": "rm", "input": {"arguments": "not JSON"}},
            ],
        },
        {"role": "user", "content": None},
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "d", "content": "no network", "is_error": True}],
        },
    ]


def test_exported_header_has_changes_made_after_import(tmp_path: Path) -> None:
    draft = read(file(tmp_path, header(title="old", metadata={"a": 1}, suspended=True), event(user())))
    draft.key, draft.fields, draft.forked_from = "branch", {"title": "new"}, "s"
    draft.updated_at = datetime(2027, 1, 1, tzinfo=UTC)
    assert lines(dive.write(draft, tmp_path / "out"))[0]["data"] == {
        "id": "branch",
        "title": "new",
        "created_at": TIME,
        "updated_at": "2027-01-01T00:00:00Z",
        "suspended": True,
        "forked_from": "s",
    }


def test_session_is_exported_as_suspended_until_the_suspension_is_answered(store: Store, tmp_path: Path) -> None:
    suspended = header(suspended=True, pending_tool_calls=[{"id": "toolu_1", "name": "ask"}])
    (report,) = interchange.import_path(store, file(tmp_path, suspended, event(user())))
    assert report.error is None
    (suspension,) = store.suspensions.list().items
    assert suspension.state == {"pending_tool_calls": [{"id": "toolu_1", "name": "ask"}]}

    def exported(folder: str) -> object:
        (tmp_path / folder).mkdir()
        interchange.export(store, tmp_path / folder, "dive", everything=True)
        return lines(tmp_path / folder / "s.jsonl")[0]

    assert exported("waiting") == suspended
    store.conversation(suspension.key).suspensions.answer(suspension.id, "yes")
    assert exported("answered") == header()


def test_exported_compaction_comes_before_messages_appended_during_the_compaction(tmp_path: Path) -> None:
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

    draft = read(dive.write(SessionDraft("s", stored()), tmp_path))
    told = [(part.kind, [message.content[0]["text"] for message in part.messages]) for part in draft.parts]
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


def test_continued_session_is_exported_with_new_messages(tmp_path: Path, url: str) -> None:
    with Store(url) as store:
        interchange.import_path(store, DATA / "dive" / "tools.jsonl")
        store.append_message("tools", Message(role="user", content="more"))
        (done,) = interchange.export(store, tmp_path, "dive", keys=["tools"])
        before, after = lines(DATA / "dive" / "tools.jsonl"), lines(Path(str(done.path)))
        assert after[1:-1] == before[1:]
        assert after[-1]["data"]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "more"}]}]
        assert after[0]["data"]["updated_at"] > before[0]["data"]["updated_at"]


@pytest.mark.slow
def test_messages_appended_during_compaction_are_in_dives_window(tmp_path: Path, make_database: MakeDatabase) -> None:
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
