"""Edits of sessions that are missing or have expired, and edits that store no message."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.factories import message

from lango_store import Conversation, InvalidMessage, SessionExpired, SessionNotFound, Store
from lango_store.testing import Clock

EDITS: list[Callable[[Conversation], object]] = [
    lambda conversation: conversation.pop_message(),
    lambda conversation: conversation.edits.update(1, message()),
    lambda conversation: conversation.edits.delete("x"),
    lambda conversation: conversation.edits.redact(1),
    lambda conversation: conversation.edits.drop_sent(before=1),
    lambda conversation: conversation.versions.undo(),
    lambda conversation: conversation.versions.redo(),
    lambda conversation: conversation.versions.changes(),
    lambda conversation: conversation.versions.diff(0, 1),
    lambda conversation: conversation.get(as_of=0),
]


def test_edits_of_a_missing_session_raise_session_not_found(store: Store) -> None:
    for edit in EDITS:
        with pytest.raises(SessionNotFound, match="missing"):
            edit(store.conversation("missing"))


def test_edits_of_an_expired_session_raise_session_expired(store: Store, clock: Clock) -> None:
    store.create("k", ttl=timedelta(hours=1), messages=[message(id="x")])
    clock.move(hours=1)
    for edit in EDITS:
        with pytest.raises(SessionExpired, match="touch"):
            edit(store.conversation("k"))
    assert len(store.get("k", expired=True).messages) == 1


def test_token_counter_is_not_called_for_an_invalid_new_message(url: str) -> None:
    with Store(url, token_counter=lambda m: len(str(m.content))) as store:
        store.create("k", messages=[message()])
        with pytest.raises(InvalidMessage, match="not a Message"):
            store.conversation("k").edits.update(1, "hello")  # type: ignore[arg-type]


def test_turn_excludes_a_question_that_was_edited_before_the_answer(store: Store) -> None:
    conversation = store.open("k")
    question = message("q", id="q")
    conversation.append_message(question)
    redacted = conversation.edits.redact("q")
    turn = conversation.save_turn([question, message("a", id="a", role="assistant")])
    assert turn.first_seq == turn.last_seq == turn.messages[1].seq
    assert conversation.find_message("q") == redacted
