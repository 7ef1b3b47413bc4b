"""Redactions, erasures, archives and copies reach the messages that are set aside."""

from pathlib import Path
from typing import Any

from support.factories import contents, message
from support.session_checks import assert_sound

from lango_store import Conversation, Store

WORD = "Mnemosyne"


def with_word(store: Store, **fields: Any) -> Conversation:
    conversation = store.open("k", **fields)
    conversation.append_messages([message("q"), message(f"{WORD} 1", id="a", author="ann"), message("b")])
    conversation.append_messages([message("c")], replace_after=1, keep=True)
    return conversation


def texts(store: Store) -> str:
    found = store.conversation("k")
    return repr([found.alternatives(), *(found.get(alternative=each.id) for each in found.alternatives())])


def test_redaction_reaches_a_message_that_is_set_aside(store: Store) -> None:
    for seq_or_id in (2, "a"):
        conversation = with_word(store)
        assert conversation.edits.redact(seq_or_id, reason="asked").content == "(redacted)"
        assert WORD not in texts(store)
        conversation.switch(2)
        assert contents(conversation.messages()) == ["q", "(redacted)", "b"]
        assert_sound(store)
        store.delete("k")


def test_erasure_of_a_user_and_of_an_author_reaches_alternatives(store: Store) -> None:
    with_word(store, user_id="bob")
    store.erase("ann", authors=True)
    assert WORD not in texts(store)
    assert "ann" not in texts(store)
    store.erase("bob")
    assert not store.exists("k")
    assert store.stats().alternatives == 0


def test_archive_has_alternatives(store: Store, tmp_path: Path) -> None:
    conversation = with_word(store)
    cold = tmp_path / "cold.db"
    store.maintenance.examine()
    store.hide("k")
    store.expire(archive=cold)
    assert store.stats().alternatives == 0
    store.restore("k", cold)
    assert [each.id for each in conversation.alternatives()] == [2, 5]
    conversation.switch(2)
    assert contents(conversation.messages()) == ["q", f"{WORD} 1", "b"]
    assert_sound(store)
