"""Messages that are taken away: popped, cut off, cleared, replaced; their seqs are never given out again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.factories import contents, message, messages

from lango_store import Conversation, MessageRole, Store
from lango_store.testing import Clock


def test_pop_takes_the_last_message_and_uses_a_seq_up(store: Store) -> None:
    store.create("k", messages=[message("a", tokens=1), message("b", tokens=2)])
    popped = store.conversation("k").pop_message()
    assert popped is not None
    assert (popped.content, popped.seq) == ("b", 2)
    info = store.info("k")
    assert (info.last_seq, info.message_count, info.token_count) == (3, 1, 1)
    assert store.append_message("k", message("c")).seq == 4
    assert store.conversation("k").pop_message() is not None
    assert store.conversation("k").pop_message() is not None
    before = store.info("k")
    assert store.conversation("k").pop_message() is None
    assert store.info("k") == before


def test_truncate_drops_what_came_later(store: Store) -> None:
    store.create("k", messages=messages(5, tokens=2))
    assert store.conversation("k").truncate(after=3) == 2
    info = store.info("k")
    assert (info.last_seq, info.message_count, info.token_count) == (6, 3, 6)
    assert store.conversation("k").truncate(after=3) == 0
    assert store.info("k").last_seq == 6
    with pytest.raises(ValueError):
        store.conversation("k").truncate(after=-1)


def test_clear_keeps_the_key_and_goes_on_counting(store: Store) -> None:
    store.create("k", title="t", messages=messages(3, tokens=2))
    assert store.conversation("k").clear() == 3
    session = store.get("k")
    assert (session.title, session.messages, session.message_count, session.token_count) == ("t", [], 0, 0)
    assert store.append_message("k", message()).seq == 5


def test_clear_can_keep_system_messages(store: Store) -> None:
    system = message("rules", role=MessageRole.SYSTEM, tokens=4)
    store.create("k", messages=[system, *messages(2, tokens=1), system])
    assert store.conversation("k").clear(keep_system=True) == 2
    session = store.get("k")
    assert contents(session.messages) == ["rules", "rules"]
    assert (session.message_count, session.token_count, session.last_seq) == (2, 8, 5)


def test_replace_after_regenerates_an_answer_in_one_step(store: Store) -> None:
    store.create("k", messages=[message("question"), message("answer", role=MessageRole.ASSISTANT, tokens=5)])
    (new,) = store.append_messages("k", [message("better", role=MessageRole.ASSISTANT, tokens=6)], replace_after=1)
    assert new.seq == 4
    session = store.get("k")
    assert contents(session.messages) == ["question", "better"]
    assert (session.message_count, session.token_count) == (2, 6)


@pytest.mark.parametrize(
    "removal",
    [
        lambda c: c.truncate(after=1),
        lambda c: c.clear(),
        lambda c: c.append_messages([], replace_after=1),
        lambda c: c.compact(lambda _: [message("summary")], discard=True),
    ],
)
def test_taking_messages_away_is_activity(
    store: Store, clock: Clock, removal: Callable[[Conversation], object]
) -> None:
    store.create("k", messages=messages(3))
    clock.move(days=1)
    removal(store.conversation("k"))
    assert store.info("k").updated_at == clock.time
