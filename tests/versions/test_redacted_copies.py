"""Redactions reach the copies of removed messages and of earlier versions."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.databases import LeavesDeletedTexts, MakeDatabase
from support.factories import contents, message, messages, summary
from support.payloads import bodies
from support.session_checks import assert_sound

from lango_store import AlreadyAnswered, Conversation, MessageNotFound, Store, ToolCall, create_engine

SECRET = "a secret "


def at(conversation: Conversation, as_of: int) -> list[Any]:
    """Return the contents of an earlier window."""
    return contents(conversation.get(as_of=as_of).messages)


def everything(store: Store) -> str:
    """Return all columns of all copies and payloads as one text."""
    with store.engine.connect() as connection:
        names = ("lango_removed_message", "lango_removed_turn", "lango_payload", "lango_message")
        return str([[*connection.exec_driver_sql(f"SELECT * FROM {name}")] for name in names])


def secret_message(**fields: Any) -> Any:
    call = ToolCall(id="1", name="f", arguments={"a": SECRET})
    return message(SECRET * 500, role="assistant", sent=SECRET, extra={"x": SECRET}, tool_calls=[call], **fields)


@pytest.mark.slow
def test_redaction_of_a_message_also_redacts_earlier_versions(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[secret_message(id="a", tokens=7), message("b")])
    conversation.edits.update("a", message("edited"))
    conversation.edits.update("a", message("edited again"))
    conversation.edits.redact("a", reason="asked to")
    assert SECRET not in everything(keeping)
    assert "edited" not in everything(keeping)
    assert bodies(keeping) == []
    for seq in range(2, 6):
        first, second = conversation.get(as_of=seq).messages
        assert (first.id, first.content, first.tool_calls, first.sent, first.extra) == (
            "a",
            "(redacted)",
            [],
            None,
            {"redacted": "asked to"},
        )
        assert second.content == "b"
    for _ in range(2):
        conversation.versions.undo()
        assert contents(conversation.messages()) == ["(redacted)", "b"]
    assert conversation.versions.undo() is None
    assert conversation.messages()[0].tokens == 0
    assert_sound(keeping)


@pytest.mark.slow
@pytest.mark.parametrize("seq_or_id", [2, "b"])
def test_removed_message_can_be_redacted(keeping: Store, seq_or_id: int | str) -> None:
    conversation = keeping.open("k", messages=[message("a"), secret_message(id="b", tokens=7)])
    conversation.save_turn([message("c")])
    conversation.truncate(after=1)
    redacted = conversation.edits.redact(seq_or_id, reason="asked to")
    assert (redacted.seq, redacted.content, redacted.tokens) == (2, "(redacted)", 0)
    assert redacted.extra == {"redacted": "asked to"}
    assert SECRET not in everything(keeping)
    assert bodies(keeping) == []
    assert at(conversation, 3) == ["a", "(redacted)", "c"]
    conversation.versions.undo()
    assert conversation.messages()[1] == redacted
    assert contents(conversation.messages()) == ["a", "(redacted)", "c"]
    assert_sound(keeping)


def test_redaction_by_id_redacts_each_message_that_ever_had_the_id(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("question"), secret_message(id="answer")])
    conversation.append_messages([secret_message(id="answer")], replace_after=1)
    conversation.append_messages([message("good", id="answer")], replace_after=1)
    conversation.edits.redact("answer")
    assert SECRET not in everything(keeping)
    conversation.clear()
    conversation.edits.redact("answer")
    assert "good" not in everything(keeping)


def test_summary_that_was_redacted_after_removal_is_restored_with_a_placeholder(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(2))
    conversation.compact(lambda _: summary(SECRET))
    conversation.clear()
    assert conversation.edits.redact(4).content == "(redacted)"
    conversation.versions.undo()
    assert contents(conversation.messages()) == ["(redacted)"]


def test_redaction_of_a_message_redacts_the_suspensions_of_its_calls(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[secret_message(), secret_message()])
    fields: Any = {"state": {"a": SECRET}, "reason": SECRET}
    answered = conversation.suspensions.create([(1, 0)], **fields)
    conversation.suspensions.answer(answered.id, SECRET)
    asked = conversation.suspensions.create([(1, 0)], **fields)
    others = [conversation.suspensions.create([(2, 0)], **fields), conversation.suspensions.create(**fields)]
    conversation.edits.redact(1)
    stored = {each.id: (each.state, each.reason, each.answer) for each in conversation.suspensions.list()}
    assert [stored.pop(each.id) for each in (answered, asked)] == [(None, None, None)] * 2
    assert stored == {each.id: ({"a": SECRET}, SECRET, None) for each in others}
    with pytest.raises(AlreadyAnswered):
        conversation.suspensions.answer(answered.id, "again")


def test_redaction_of_a_removed_message_that_was_not_kept_is_refused(keeping: Store, store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.pop_message()
    for seq_or_id in (2, "id", 9):
        with pytest.raises(MessageNotFound):
            keeping.conversation("k").edits.redact(seq_or_id)


def test_redaction_removes_text_of_removed_messages_from_the_file(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    # Some builds of SQLite leave deleted texts in the file by default.
    engine = create_engine(url, connect_args={"factory": LeavesDeletedTexts})
    with Store(engine, keep_removed=timedelta(days=1)) as store:
        conversation = store.open("k", messages=[secret_message(id="a")])
        conversation.edits.update("a", message("edited"))
        conversation.edits.delete("a")
        assert is_in_file(url, SECRET)
        conversation.edits.redact("a")
        assert not is_in_file(url, SECRET)
        assert not is_in_file(url, "edited")
    engine.dispose()


def is_in_file(url: str, word: str) -> bool:
    path = Path(url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return word.encode() in path.read_bytes()
