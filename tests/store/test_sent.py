"""`Message.sent`: the content as the model received it."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from support.databases import MakeDatabase
from support.factories import message
from support.json_values import json_values

from lango_store import Message, Store, window
from lango_store._rooms.documents.document import document
from lango_store.interchange import export
from lango_store.interchange.copying import copy

INJECTED = "It is Monday.\n\nHello"


@pytest.mark.slow
@given(sent=json_values())
def test_sent_field_is_returned_unchanged_and_becomes_the_content_in_prompts(store: Store, sent: object) -> None:
    conversation = store.open(messages=[Message.user("Hello", sent=sent), Message.assistant("Hi")])
    (stored, _) = conversation.messages()
    assert json.dumps([stored.content, stored.sent]) == json.dumps(["Hello", sent])
    expected = "Hello" if sent is None else sent
    assert json.dumps(window.as_prompt([stored])[0]["content"]) == json.dumps(expected)
    if isinstance(expected, str) and expected.strip():
        assert conversation.history()[0]["content"] == expected


def test_sent_field_is_in_forks_and_copies_but_not_in_documents_and_exports(
    store: Store, make_sqlite: MakeDatabase, tmp_path: Path
) -> None:
    conversation = store.open("k", messages=[Message.user("Hello", sent=INJECTED)])
    assert conversation.fork().history() == conversation.history()
    (report,) = export(store, tmp_path, "nanobot", keys=["k"])
    assert "Monday" not in Path(str(report.path)).read_text()
    assert "Monday" not in "".join(document(conversation.info(), conversation.messages(), []))
    with Store(make_sqlite()) as other:
        copy(store, other)
        assert other.conversation("k").messages() == conversation.messages()


def test_sent_field_is_changed_by_update_and_removed_by_redaction(store: Store) -> None:
    conversation = store.open(messages=[Message.user("Hello", sent=INJECTED)])
    updated = conversation.edits.update(1, Message.user("Hello", sent="It is Tuesday."))
    assert conversation.history()[0]["content"] == updated.sent == "It is Tuesday."
    assert conversation.edits.redact(1).sent is None
    assert conversation.messages()[0].sent is None


@pytest.mark.slow
def test_sent_field_is_archived_restored_and_redacted(store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "cold.db"
    store.create("k", messages=[Message.user("Hello", sent=INJECTED)])
    store.expire(older_than=timedelta(0), archive=archive)
    store.restore("k", archive)
    assert store.conversation("k").messages()[0].sent == INJECTED
    store.conversation("k").edits.redact(1, archive=archive)
    assert b"Monday" not in archive.read_bytes()


def test_drop_sent_deletes_the_sent_field_of_earlier_messages(store: Store) -> None:
    conversation = store.open(messages=[Message.user(str(n), sent=INJECTED) for n in range(3)])
    before = conversation.info()
    assert conversation.edits.drop_sent(before=3) == 2
    assert [each["content"] for each in conversation.history()] == ["0", "1", INJECTED]
    after = conversation.info()
    assert (after.last_seq, after.message_count) == (before.last_seq + 1, 3)
    assert after.revision > before.revision
    assert conversation.edits.drop_sent(before=3) == 0
    assert conversation.info() == after
    assert conversation.append_message(message()).seq == 5
