"""Limits of `undo`: redactions, calls, and ids that were used again."""

from typing import Any

import pytest
from support.factories import contents, message
from support.session_checks import assert_sound

from lango_store import Conflict, Conversation, Message, Store, ToolCall


def shown(conversation: Conversation) -> tuple[Any, ...]:
    """Return the state that undo has to restore."""
    session = conversation.get(records=True)
    changing = {"last_seq", "revision", "updated_at"}
    return session.model_dump(exclude=changing), conversation.all_messages(), conversation.turns.list()


def test_undo_does_not_take_back_a_redaction(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a"), message("secret")])
    conversation.edits.delete(1)
    conversation.edits.redact(2)
    undone = conversation.versions.undo()
    assert undone is not None
    assert undone.change.kind == "delete"
    assert contents(conversation.messages()) == ["a", "(redacted)"]
    assert conversation.versions.undo() is None


def test_undo_does_not_restore_begun_calls(keeping: Store) -> None:
    conversation = keeping.open("k")
    asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="1", name="f")]))
    conversation.calls.finish(conversation.calls.begin(asking.seq, 0), "done")
    conversation.truncate(after=0)
    conversation.versions.undo()
    assert len(conversation.messages()) == 2
    assert conversation.calls.list() == []


def asking(content: str, name: str) -> Message:
    return Message.assistant(content, tool_calls=[ToolCall(id="1", name=name)])


def test_undo_of_an_update_keeps_calls_only_if_the_restored_message_asks_for_them(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[asking("a", "f")])
    conversation.edits.update(1, asking("b", "g"))
    conversation.edits.update(1, asking("c", "g"))
    conversation.calls.finish(conversation.calls.begin(1, 0), "done")
    conversation.suspensions.create([(1, 0)])
    conversation.versions.undo()
    assert [each.state for each in conversation.calls.list()] == ["finished"]
    assert len(conversation.suspensions.list()) == 1
    conversation.versions.undo()
    assert conversation.messages()[0].tool_calls[0].name == "f"
    assert (conversation.calls.list(), conversation.suspensions.list()) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("again", [message("new", id="one"), message("new", id="two")])
def test_undo_is_refused_if_the_id_of_a_removed_message_is_used_again(keeping: Store, again: Message) -> None:
    conversation = keeping.open("k", messages=[message("a", id="one"), message("b", id="two"), message("c")])
    conversation.truncate(after=0)
    used = conversation.append_message(again)
    before, changes = shown(conversation), conversation.versions.changes()
    with pytest.raises(Conflict, match=r"an id that change \d+ removed was used again: nothing was changed"):
        conversation.versions.undo()
    assert (shown(conversation), conversation.versions.changes()) == (before, changes)
    assert_sound(keeping)
    conversation.edits.delete(used.seq)
    conversation.versions.undo()
    with pytest.raises(Conflict, match="used again"):  # the deletion was taken back, so the id is used again
        conversation.versions.undo()
    conversation.edits.update(used.seq, message("new", id="three"))
    conversation.versions.undo()
    conversation.versions.redo()
    assert contents(conversation.messages()) == ["new"]


def test_undo_is_refused_if_the_id_of_a_removed_turn_is_used_again(keeping: Store) -> None:
    conversation = keeping.open("k")
    conversation.save_turn([message("a")], id="t")
    conversation.clear()
    conversation.save_turn([message("b")], id="t")
    with pytest.raises(Conflict, match="used again"):
        conversation.versions.undo()
    assert contents(conversation.messages()) == ["b"]
