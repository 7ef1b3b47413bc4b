"""Imports of the exports of chat products: each path of a tree is read as the product has it."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DATA

from lango_store import Conversation, Message, Store, interchange
from lango_store.interchange import trees
from lango_store.interchange.chatgpt import CHATGPT
from lango_store.interchange.claude import CLAUDE
from lango_store.interchange.draft import SessionDraft, Skipped
from lango_store.interchange.format import Format
from lango_store.interchange.librechat import LIBRECHAT
from lango_store.interchange.open_webui import OPEN_WEBUI

CHATS = DATA / "chats"
PRODUCTS = {each.name: each for each in (CHATGPT, CLAUDE, OPEN_WEBUI, LIBRECHAT)}


def logs(draft: SessionDraft) -> Iterator[list[str | None]]:
    """Yield the ids of the log of a draft before its first branch, and after each one."""
    log = [message for part in draft.parts for message in part.messages]
    yield [message.id for message in log]
    for branch in draft.branches:
        log = log[: branch.kept] + branch.messages
        yield [message.id for message in log]
    assert [each for each in log if each.role != "record"] == list(draft.messages)


def tree(parents: dict[str, str | None], shown: str | None) -> SessionDraft:
    """Read a tree of messages, given by their parents."""
    nodes = [trees.Node(id, parent, [Message.user(id, id=id)]) for id, parent in parents.items()]
    product = trees.Product("test", (), "id", "", "", "", lambda _: iter(nodes), lambda _: shown, ())
    return product._draft(Path("file"), 1, {"id": "a"}, [])


@st.composite
def parents(draw: st.DrawFn) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number in range(draw(st.integers(1, 12))):
        found[f"m{number}"] = draw(st.sampled_from([None, *found]))
    return found


@given(parents(), st.data())
def test_each_path_is_written_once_and_the_shown_one_last(parents: dict[str, str | None], data: st.DataObject) -> None:
    shown = data.draw(st.sampled_from([None, *parents]))
    paths = list(logs(tree(parents, shown)))
    leaves = parents.keys() - set(parents.values())
    ends = [str(path[-1]) for path in paths if path]
    assert sorted(ends) == sorted([*leaves, *([shown] if shown is not None and shown not in leaves else [])])
    for path in paths:
        assert [parents[id] for id in path if id] == [None, *path[:-1]]
    if shown is not None:
        assert shown == paths[-1][-1]


def test_messages_below_themselves_are_left_out_and_reported() -> None:
    nodes = [trees.Node(id, parent, [Message.user(id, id=id)]) for id, parent in (("a", None), ("b", "c"), ("c", "b"))]
    product = trees.Product("test", (), "id", "", "", "", lambda _: iter(nodes), lambda _: "c", ())
    skipped: list[Skipped] = []
    draft = product._draft(Path("file"), 1, {"id": "a"}, skipped)
    assert list(logs(draft)) == [["a"]]
    assert [each.reason for each in skipped] == [f"message '{id}' is below itself: left out" for id in "bc"]


def test_a_long_conversation_is_read_without_recursion() -> None:
    count = 5_000
    found = {f"m{number}": f"m{number - 1}" if number else None for number in range(count)}
    assert [len(path) for path in logs(tree(found, None))] == [count]


SHOWN = {
    "chatgpt": ("chatgpt:c-bird", "m-certain"),
    "claude": ("claude:c-tide", "u-5"),
    "open-webui": ("open-webui:c-cat", "w-5"),
    "librechat": ("librechat:c-tea", "l-5"),
}


def paths(conversation: Conversation) -> set[tuple[str | None, ...]]:
    """Return the ids of the log after a switch to each alternative, also to those inside of others."""
    found = {tuple(each.id for each in conversation.all_messages())}
    seen: set[int] = set()
    while new := [each.id for each in conversation.alternatives() if not each.is_shown and each.id not in seen]:
        seen.add(new[0])
        assert conversation.switch(new[0])
        found.add(tuple(each.id for each in conversation.all_messages()))
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_export_is_imported_with_all_its_paths(store: Store, name: str) -> None:
    key, shown = SHOWN[name]
    path = CHATS / f"{name}.json"
    assert interchange.recognize(path) == name
    (report,) = interchange.import_path(store, path)
    assert (report.error, report.skipped, key in report.keys) == (None, [], True)
    conversation = store.conversation(key)
    assert conversation.messages()[-1].id == shown
    assert conversation.info().updated_at == next(PRODUCTS[name].read(path, [])).updated_at
    expected = {tuple(log) for log in logs(next(PRODUCTS[name].read(path, [])))}
    assert paths(conversation) == expected
    assert len(expected) >= 2


def test_calls_of_tools_have_their_results(store: Store) -> None:
    interchange.import_path(store, CHATS)
    tide = store.conversation("claude:c-tide").messages()
    assert [each.name for each in tide[1].tool_calls] == ["tides", "clock"]
    assert [each.tool_call_id for each in tide[2:4]] == [each.id for each in tide[1].tool_calls]
    assert [each.failed for each in tide[2:4]] == [False, True]
    assert tide[0].content[1]["text"] == "[attached file: harbour.txt]\nHelgoland"
    tea = store.conversation("librechat:c-tea").messages()
    assert (tea[1].tool_calls[0].name, tea[1].tool_calls[0].output) == ("thermometer", "95")
    bird = store.conversation("chatgpt:c-bird")
    assert "[attached file: gull.png]" in str(bird.messages()[0].content)
    (answer,) = [each for each in bird.alternatives() if each.first.role == "assistant" and not each.is_shown]
    second = bird.get(alternative=answer.id).messages
    assert [each.role for each in second] == ["user", "assistant", "tool", "assistant"]
    assert second[1].tool_calls[0].arguments == {"input": "print(1 + 1)"}
    assert second[2].tool_call_id == second[1].tool_calls[0].id
    cat = store.conversation("open-webui:c-cat").messages()
    assert cat[0].content[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("chatgpt", '[{"title": "a", "mapping": []}]', "conversation 1 has no conversation_id"),
        ("chatgpt", '[{"title": "a", "mapping": [], "conversation_id": "c"}]', "a conversation has no mapping"),
        ("claude", '[{"uuid": "c", "chat_messages": [{"uuid": 1}]}]', "a message has no uuid"),
        ("claude", '[{"uuid": "c", "chat_messages": [{"uuid": "a"}, {"uuid": "a"}]}]', "has the message 'a' twice"),
        ("claude", '[{"uuid": "c", "chat_messages": [', "is not JSON"),
        ("open-webui", '[{"id": "a", "user_id": "b", "chat": {"history": 1}}]', "has no history with messages"),
        ("librechat", '{"conversationId": "a", "messages": [1]}', "a conversation has no messages"),
    ],
)
def test_damaged_export_is_refused(store: Store, tmp_path: Path, name: str, text: str, reason: str) -> None:
    file = tmp_path / "export.json"
    file.write_text(text, "utf-8")
    (report,) = interchange.import_path(store, file)
    assert report.format == name
    assert reason in str(report.error)
    assert not store.list_sessions().items


def test_repeated_import_changes_nothing(store: Store) -> None:
    first = interchange.import_path(store, CHATS)
    again = interchange.import_path(store, CHATS)
    assert [each.already_there for each in again] == [each.keys for each in first]
    assert not any(each.keys or each.collided or each.error for each in again)


def test_dry_run_counts_the_messages_of_all_paths(store: Store) -> None:
    planned = interchange.import_path(store, CHATS, dry_run=True)
    assert not store.list_sessions().items
    stored = interchange.import_path(store, CHATS)
    assert [each.messages for each in planned] == [each.messages for each in stored]


def test_damaged_conversation_is_left_out_and_reported(store: Store, tmp_path: Path) -> None:
    nodes = {"m": {"message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Hello"]}}}}
    chats: list[dict[str, object]] = [
        {"title": "a", "mapping": nodes, "id": "a"},
        {"title": "b", "mapping": None, "id": "b"},
        {"title": "c", "mapping": nodes},
        {"title": "d", "mapping": nodes, "conversation_id": "d", "id": "other"},
    ]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(chats), "utf-8")
    (report,) = interchange.import_path(store, file)
    assert (report.error, report.keys) == (None, ["chatgpt:a", "chatgpt:d"])
    assert report.skipped == [
        Skipped(2, "a conversation has no mapping: left out"),
        Skipped(3, "conversation 3 has no conversation_id: left out"),
    ]
    assert store.conversation("chatgpt:a").messages()[0].content == "Hello"


def test_chats_of_a_file_are_not_in_memory_at_once(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    chats = [{"uuid": f"c{n}", "name": "c", "chat_messages": [{"uuid": "m", "text": "Hello"}]} for n in range(20)]
    file.write_text(json.dumps(chats), "utf-8")
    read: list[weakref.ref[SessionDraft]] = []
    alive: list[int] = []

    def watched(path: Path, skipped: list[Skipped]) -> Iterator[SessionDraft]:
        for draft in CLAUDE.read(path, skipped):
            read.append(weakref.ref(draft))
            alive.append(sum(each() is not None for each in read))
            yield draft

    report = Format("claude", CLAUDE.recognizes, watched).import_file(store, file)
    assert (report.error, len(report.keys)) == (None, 20)
    assert max(alive) < 8


def librechat_tree(count: int) -> dict[str, Any]:
    inner: list[dict[str, Any]] = []
    for number in range(count, 0, -1):
        inner = [
            {"messageId": f"m{number}", "text": f"{number}", "isCreatedByUser": number % 2 == 1, "children": inner}
        ]
    return {"conversationId": "c", "title": "c", "recursive": True, "messagesTree": inner}


def test_messages_inside_of_others_are_read_up_to_a_limit(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(librechat_tree(300)), "utf-8")
    (report,) = interchange.import_path(store, file)
    assert (report.error, report.messages) == (None, 300)
    file.write_text(json.dumps(librechat_tree(401)), "utf-8")
    (report,) = interchange.import_path(store, file)
    assert "nested more than 800 levels deep): " in str(report.error)
    assert 'without "recursive"' in str(report.error)


def test_text_of_a_message_with_other_blocks_is_read(store: Store, tmp_path: Path) -> None:
    note = {"type": "voice_note", "title": "A note", "text": "Hello"}
    said = [{"uuid": "m", "sender": "human", "text": "Hello", "content": [note]}]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"uuid": "c", "name": "c", "chat_messages": said}), "utf-8")
    interchange.import_path(store, file)
    (message,) = store.conversation("claude:c").messages()
    assert (message.content, message.extra) == ("Hello", {"claude": {"content": [note]}})
