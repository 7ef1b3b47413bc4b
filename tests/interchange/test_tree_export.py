"""Exports to ChatGPT's and Open WebUI's files, with all alternatives, and imports of these files."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message
from support.json_values import has_surrogate_pair, json_values
from support.paths import DATA

from lango_store import InvalidFile, Message, MessageRole, Store, ToolCall, interchange
from lango_store.interchange.chatgpt import CHATGPT
from lango_store.interchange.draft import SessionDraft
from lango_store.interchange.open_webui import OPEN_WEBUI
from lango_store.rows import MAX_LEVELS

CHATS = DATA / "chats"
PRODUCTS = {each.name: each for each in (CHATGPT, OPEN_WEBUI)}
STORED = datetime(2026, 1, 1, tzinfo=UTC)
PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

names = st.none() | st.text("abc", min_size=1, max_size=3)
values = json_values(max_leaves=3).filter(lambda value: not has_surrogate_pair(value))
contents = st.one_of(
    st.text(max_size=5),
    values,
    st.lists(st.sampled_from([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, PICTURE]), max_size=3),
)
outputs = st.dictionaries(st.sampled_from(["arguments", "output"]), values)
calls = st.builds(lambda id, given: ToolCall(id=id, name="f", **given), st.text("abc"), outputs)
any_messages = st.builds(
    Message,
    role=st.sampled_from([role for role in MessageRole if role is not MessageRole.RECORD]),
    content=contents,
    author=names,
    name=names,
    tool_call_id=names,
    tool_calls=st.lists(calls, max_size=2),
    tokens=st.none() | st.integers(0, 9),
    id=names,
    extra=st.dictionaries(st.sampled_from(["x", "chatgpt", "open-webui"]), values, max_size=2),
    sent=st.none() | values,
    model=names,
)


def fields(message: Message) -> dict[str, Any]:
    return message.model_dump(mode="json", exclude={"id", "seq", "turn_no", "created_at"})


def read_again(product: Any, raw: dict[str, Any]) -> list[list[Message]]:
    """Return the paths of a conversation, after its JSON was written and read."""
    draft = product._draft(Path("file"), 1, json.loads(json.dumps(raw)), [])
    logs = [[message for part in draft.parts for message in part.messages]]
    for branch in draft.branches:
        logs.append(logs[-1][: branch.kept] + branch.messages)
    return logs


@pytest.mark.parametrize("name", PRODUCTS)
@given(data=st.data())
def test_any_message_of_any_tree_is_imported_equal(name: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(any_messages, max_size=6))
    tree = []
    for seq, each in enumerate(messages, 1):
        tree.append((each._stored_as(seq, STORED, None), data.draw(st.integers(0, seq - 1))))
    raw = PRODUCTS[name].conversation(SessionDraft("k", tree=lambda: (tree, len(tree))))
    parents = {message.seq: parent for message, parent in tree}
    by_seq = {message.seq: fields(message) for message, _ in tree}
    expected = []
    for leaf in parents.keys() - set(parents.values()):
        path = [leaf]
        while parents[path[0]]:
            path.insert(0, parents[path[0]])
        expected.append([by_seq[seq] for seq in path])
    found = [[fields(each) for each in log] for log in read_again(PRODUCTS[name], raw)]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected or [[]]))
    if tree:
        assert found[-1][-1] == by_seq[len(tree)]


def exported(store: Store, folder: Path, name: str, *keys: str) -> list[Any]:
    done = interchange.export(store, folder, name, keys=keys)
    assert not [each.error for each in done if each.error]
    loaded: list[Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("name", PRODUCTS)
def test_import_and_export_give_the_same_file_again(make_database: MakeDatabase, tmp_path: Path, name: str) -> None:
    original = json.loads((CHATS / f"{name}.json").read_text("utf-8"))[0]
    with Store(make_database()) as first, Store(make_database()) as second:
        interchange.import_path(first, CHATS / f"{name}.json")
        key = f"{name}:{original['id']}"
        (report,) = interchange.export(first, tmp_path / "1", name, keys=[key])
        assert (report.error, report.records) == (None, 0)
        assert interchange.recognize(str(report.path)) == name
        interchange.import_path(second, str(report.path))
        (raw,) = exported(first, tmp_path / "1", name, key)
        assert exported(second, tmp_path / "2", name, key) == [raw]
        assert interchange.import_path(first, str(report.path))[0].already_there == [key]
    if name == "chatgpt":
        root = next(id for id, each in raw["mapping"].items() if each["message"] is None)
        for id, each in original["mapping"].items():
            if each["message"] is not None:
                assert raw["mapping"][id]["children"] == each["children"]
                assert raw["mapping"][id]["parent"] in (each["parent"], root)
                assert raw["mapping"][id]["message"].items() >= {
                    (field, value) for field, value in each["message"].items() if isinstance(value, str)
                }
                assert raw["mapping"][id]["message"]["content"] == each["message"]["content"]
        assert raw["current_node"] == original["current_node"]
    else:
        assert raw["chat"]["history"] == original["chat"]["history"]
    assert "lango_store" not in str(raw)


@pytest.mark.parametrize("name", PRODUCTS)
def test_session_is_exported_with_its_alternatives(store: Store, tmp_path: Path, name: str) -> None:
    conversation = store.open("k", title="Tides")
    conversation.append_messages([Message.user("When is high tide?", id="q"), Message.assistant("At 8", id="a")])
    conversation.append_messages([Message.assistant("At 9", model="m")], replace_after=1, keep=True)
    conversation.append_messages([Message.user("Tomorrow?", id="q2")], replace_after=0, keep=True)
    conversation.append_messages([Message(role="record", content="seen")])
    (report,) = interchange.export(store, tmp_path, name, keys=["k"])
    assert report.records == 1
    (raw,) = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
    assert raw["title"] == "Tides"
    if name == "chatgpt":
        texts = {id: each["message"]["content"]["parts"] for id, each in raw["mapping"].items() if each["message"]}
        assert texts == {"q": ["When is high tide?"], "a": ["At 8"], "message-4": ["At 9"], "q2": ["Tomorrow?"]}
        assert raw["mapping"]["q"]["children"] == ["a", "message-4"]
        assert raw["mapping"]["root"]["children"] == ["q", "q2"]
        assert raw["mapping"]["message-4"]["message"]["metadata"] == {"model_slug": "m"}
        assert raw["current_node"] == "q2"
    else:
        history = raw["chat"]["history"]
        assert {
            id: (each["parentId"], each["childrenIds"], each["content"]) for id, each in history["messages"].items()
        } == {
            "q": (None, ["a", "message-4"], "When is high tide?"),
            "a": ("q", [], "At 8"),
            "message-4": ("q", [], "At 9"),
            "q2": (None, [], "Tomorrow?"),
        }
        assert history["currentId"] == "q2"
        assert raw["chat"]["models"] == ["m"]


@pytest.mark.parametrize("name", PRODUCTS)
def test_calls_and_attachments_are_text_for_the_product(store: Store, tmp_path: Path, name: str) -> None:
    call = ToolCall(id="c", name="tides", arguments={"at": "Helgoland"})
    store.create(
        "k",
        messages=[
            Message.user([{"type": "text", "text": "Here?"}, PICTURE]),
            Message.assistant(tool_calls=[call]),
            Message.tool("8:00", tool_call_id="c"),
        ],
    )
    (raw,) = exported(store, tmp_path, name, "k")
    if name == "chatgpt":
        written = [each["message"] for each in raw["mapping"].values() if each["message"]]
        assert [each["content"]["parts"] for each in written] == [
            ["Here?\n\n[image/png attachment]"],
            ['[call of tides: {"at": "Helgoland"}]'],
            ["8:00"],
        ]
        assert [each["author"]["role"] for each in written] == ["user", "assistant", "tool"]
    else:
        written = [*raw["chat"]["history"]["messages"].values()]
        assert [each["content"] for each in written] == ["Here?", '[call of tides: {"at": "Helgoland"}]', "8:00"]
        assert written[0]["files"] == [{"type": "image", "url": PICTURE["image_url"]["url"]}]
        assert [each["role"] for each in written] == ["user", "assistant", "assistant"]


def test_text_that_the_product_changed_is_imported(store: Store, tmp_path: Path) -> None:
    store.create("k", messages=[message("one"), message([{"type": "text", "text": "two"}], role="assistant")])
    (raw,) = exported(store, tmp_path, "open-webui", "k")
    for each in raw["chat"]["history"]["messages"].values():
        each["content"] += " edited"
    (tmp_path / "open-webui.json").write_text(json.dumps([raw]))
    interchange.import_path(store, tmp_path / "open-webui.json")
    stored = store.conversation("open-webui:k").messages()
    assert [(each.role, each.content) for each in stored] == [("user", "one edited"), ("assistant", "two edited")]


def test_damaged_fields_of_an_export_are_refused(store: Store, tmp_path: Path) -> None:
    store.create("k", messages=[message("one", role="assistant")])
    (raw,) = exported(store, tmp_path, "open-webui", "k")
    raw["chat"]["history"]["messages"]["message-1"]["lango_store"] = {"role": 1}
    (tmp_path / "open-webui.json").write_text(json.dumps([raw]))
    (report,) = interchange.import_path(store, tmp_path / "open-webui.json")
    assert "is not an export of open-webui" in str(report.error)


@pytest.mark.parametrize("name", PRODUCTS)
def test_sessions_that_cannot_be_exported_are_reported(store: Store, tmp_path: Path, name: str) -> None:
    imported = json.loads((CHATS / f"{name}.json").read_text("utf-8"))[0]["id"]
    interchange.import_path(store, CHATS / f"{name}.json")
    store.create(imported)
    done = interchange.export(store, tmp_path, name, keys=["missing", f"{name}:{imported}", imported])
    assert ["no session" in str(done[0].error), done[1].error, "the id of another" in str(done[2].error)] == [
        True,
        None,
        True,
    ]
    assert len(json.loads((tmp_path / f"{name}.json").read_text("utf-8"))) == 1
    with pytest.raises(InvalidFile, match="exists with different content"):
        interchange.export(store, tmp_path, name, keys=["missing"])
    interchange.export(store, tmp_path, name, keys=["missing"], replace=True)
    assert json.loads((tmp_path / f"{name}.json").read_text("utf-8")) == []


@pytest.mark.parametrize("name", PRODUCTS)
def test_commands_export_to_a_file_and_to_standard_output(url: str, tmp_path: Path, name: str) -> None:
    with Store(url) as store:
        store.create("k", messages=[message("one")])
        store.create("l")
    file = tmp_path / "chats.json"
    done = run("export", "--all", "--format", name, "--to", str(file), "--url", url)
    assert (done.returncode, done.stdout) == (0, f"exported 2 sessions to {file}, 0 unchanged, 0 failed\n")
    assert run("export", "--all", "--format", name, "--to", "-", "--url", url).stdout == file.read_text("utf-8")
    done = run("import", str(file), "--url", url)
    assert done.stdout.startswith("imported 2 sessions, 1 message from 1 file")


def test_alternative_after_a_deleted_message_follows_what_is_before_it(store: Store, tmp_path: Path) -> None:
    conversation = store.open("k")
    conversation.append_messages([message(text, id=text) for text in ("one", "two", "three")])
    conversation.append_messages([message("four", id="four")], replace_after=2, keep=True)
    conversation.edits.delete(2)
    conversation.append_messages([message("five", id="five")], replace_after=1, keep=True)
    assert [each.id for each in conversation.get(alternative=3).messages] == ["one", "three"]
    (raw,) = exported(store, tmp_path, "open-webui", "k")
    parents = {id: each["parentId"] for id, each in raw["chat"]["history"]["messages"].items()}
    assert parents == {"one": None, "three": "one", "four": "one", "five": "one"}


@pytest.mark.parametrize("name", PRODUCTS)
def test_deepest_values_are_imported_again(store: Store, tmp_path: Path, name: str) -> None:
    deep: Any = "bottom"
    for _ in range(MAX_LEVELS - 1):
        deep = [deep]
    call = ToolCall(id="c", name="f", arguments=deep)
    stored = store.create("k", messages=[Message.assistant([deep], tool_calls=[call], extra={"deep": deep})])
    exported(store, tmp_path, name, "k")
    (report,) = interchange.import_path(store, tmp_path / f"{name}.json")
    assert report.error is None
    assert fields(store.conversation(f"{name}:k").messages()[0]) == fields(store.conversation(stored.key).messages()[0])
