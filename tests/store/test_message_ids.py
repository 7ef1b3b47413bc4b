"""Message ids: a message that is sent again with the same id is stored once."""

import pytest
from support.factories import contents, message, seqs

from lango_store import Conflict, InvalidMessage, Store
from lango_store.testing import Clock


def test_append_with_a_stored_id_returns_the_stored_message(store: Store, clock: Clock) -> None:
    store.create("k")
    stored = store.append_message("k", message("first", id="a", tokens=3))
    clock.move(seconds=1)
    again = store.append_message("k", message("other", id="a", tokens=9))
    assert again.replayed
    assert again == stored.model_copy(update={"replayed": True})
    info = store.conversation("k").info()
    assert (info.last_seq, info.message_count, info.token_count) == (1, 1, 3)
    assert info.updated_at == stored.created_at
    store.create("other")
    assert not store.append_message("other", again).replayed


def test_batch_skips_messages_whose_ids_are_stored(store: Store) -> None:
    store.create("k")
    store.conversation("k").append_messages([message("a", id="a"), message("b", id="b")])
    batch = [
        message("b2", id="b"),
        message("c", id="c"),
        message("plain"),
        message("c2", id="c"),
        message("a2", id="a"),
    ]
    stored = store.conversation("k").append_messages(batch)
    assert [(m.content, m.seq, m.replayed) for m in stored] == [
        ("b", 2, True),
        ("c", 3, False),
        ("plain", 4, False),
        ("c", 3, True),
        ("a", 1, True),
    ]
    assert contents(store.conversation("k").messages()) == ["a", "b", "c", "plain"]
    assert store.conversation("k").info().message_count == 4


def test_repeated_batch_of_1200_ids_is_replayed(store: Store) -> None:
    store.create("k")
    batch = [message(n, id=f"id-{n}") for n in range(1_200)]
    stored = store.conversation("k").append_messages(batch)
    again = store.conversation("k").append_messages(batch)
    assert all(m.replayed for m in again)
    assert seqs(again) == seqs(stored)
    assert store.conversation("k").info().message_count == 1_200


def test_append_with_a_stored_id_is_replayed_although_after_is_stale(store: Store) -> None:
    store.create("k")
    store.append_message("k", message("a", id="a"), after=0)
    store.append_message("k", message("b"))
    assert store.append_message("k", message("a", id="a"), after=0).replayed
    with pytest.raises(Conflict):
        store.conversation("k").append_messages([message("a", id="a"), message("c", id="c")], after=0)
    assert store.conversation("k").info().message_count == 2


def test_find_message_returns_message_by_id(store: Store) -> None:
    store.create("k")
    stored = store.append_message("k", message(id="update-7"))
    assert store.conversation("k").find_message("update-7") == stored
    assert store.conversation("k").find_message("update-8") is None


@pytest.mark.parametrize("wrong", ["i" * 513, "🙂" * 129, "a\0b"])
def test_id_that_is_too_long_or_has_nul_is_refused(store: Store, wrong: str) -> None:
    store.create("k")
    with pytest.raises(InvalidMessage, match="id"):
        store.append_message("k", message(id=wrong))
