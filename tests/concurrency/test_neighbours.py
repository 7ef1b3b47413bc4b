"""What is done to one session, or read of it, is the same whether or not others are stored beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from support.databases import MakeDatabase
from support.factories import message, messages
from support.rows import all_rows

from lango_store import Conversation, InvalidCut, Message, MessageRole, SessionInfo, Store
from lango_store.testing import Clock


def talk(store: Store, key: str, *, discard: bool = False) -> Conversation:
    """Open a session with turns, ids, tokens, and a summary that a question came in beside."""
    conversation = store.open(key, messages=[message("be kind", role="system"), message("hi", id="hi", tokens=1)])
    conversation.save_turn([message("q", id="q", tokens=2), message("a", role="assistant")], {"t": 1}, id="first")

    def summarize(window: Sequence[Message]) -> list[Message]:
        conversation.append_message(message("meanwhile", id="meanwhile", tokens=4))
        return [message("summary", role="assistant", tokens=8), message("of all", role="assistant")]

    conversation.compact(summarize, discard=discard)
    conversation.save_turn([message("q2", id="q2", tokens=16), message("a2", role="assistant")], {"t": 2}, id="second")
    conversation.save_turn([], {"t": 3}, id="nothing")
    conversation.update(last_consolidated=2)
    return conversation


VERBS: dict[str, Callable[[Store, Conversation], Any]] = {
    "append": lambda s, c: c.append_message(message("new")),
    "append after": lambda s, c: c.append_messages(messages(2), after=c.info().last_seq),
    "append again": lambda s, c: c.append_messages([message(id="q2"), message("new", id="new"), message(id="new")]),
    "replace": lambda s, c: c.append_messages([message("new", id="hi")], replace_after=5),
    "replace again": lambda s, c: [c.append_messages([message("q2", id="q2")], replace_after=8) for _ in range(2)],
    "truncate": lambda s, c: c.truncate(after=5),
    "truncate in the log": lambda s, c: c.truncate(after=2),
    "truncate in a turn": lambda s, c: c.truncate(after=3),
    "truncate all": lambda s, c: c.truncate(after=0),
    "truncate nothing": lambda s, c: c.truncate(after=c.info().last_seq),
    "pop": lambda s, c: [c.pop_message() for _ in range(6)],
    "pop records too": lambda s, c: [c.pop_message(records=True) for _ in range(3)],
    "pop behind a deleted end": lambda s, c: [c.delete_message(c.turns()[-2].last_seq), c.pop_message()],  # type: ignore[func-returns-value]
    "delete a message": lambda s, c: c.delete_message("meanwhile"),
    "clear": lambda s, c: c.clear(),
    "clear but the system": lambda s, c: c.clear(keep_system=True),
    "compact": lambda s, c: c.compact(lambda _: [message("again", id="q2")]),
    "compact to nothing": lambda s, c: [c.compact(lambda _: []), state(c)],
    "compact and discard": lambda s, c: c.compact(lambda _: [message("again", id="hi")], discard=True),
    "turn": lambda s, c: c.save_turn([message("new")], {"t": 4}, id="third"),
    "turn again": lambda s, c: c.save_turn([message("other")], id="second"),
    "turn again by its messages": lambda s, c: c.save_turn([message(id="q2")]),
    "turn of what is there": lambda s, c: [c.save_turn([message(id="hi")]) for _ in range(2)],
    "update": lambda s, c: same(c.update(title="new", last_consolidated=1)),
    "touch": lambda s, c: same(s.touch(c.key, ttl=timedelta(hours=1))),
    "fork": lambda s, c: state(c.fork(f"{c.key}-fork")),
    "fork up to": lambda s, c: state(c.fork(f"{c.key}-fork", upto=5)),
    "fork up to the log": lambda s, c: state(c.fork(f"{c.key}-fork", upto=3)),
    "delete": lambda s, c: s.delete(c.key),
    "read": lambda s, c: state(c),
}  # fmt: skip


def same(info: SessionInfo) -> dict[str, Any]:
    """Return what two sessions have in common to which the same was done: their revisions begin anywhere."""
    return info.model_dump(exclude={"revision"})


def state(c: Conversation) -> list[Any]:
    """Return all that can be read of a session."""
    return [
        same(c.get()),
        same(c.info()),
        c.all_messages(),
        list(c.iter_messages(page_size=2)),
        [c.messages(last=last) for last in (1, 3, 9)],
        [c.history(last=3), c.history(last=9, from_consolidated=True)],
        [c.find_message(id) for id in ("hi", "q2", "else")],
        [c.last_message(), c.last_message(MessageRole.USER)],
        c.turns(),
        [c.find_turn(id) for id in ("first", "else")],
        [c.messages_of(turn) for turn in c.turns()],
        [c.event_count(), c.total_usage()],
        c.compactions(),
    ]


@pytest.mark.parametrize("discard", [False, True])
def test_what_is_done_to_a_session_neither_changes_others_nor_is_changed_by_them(
    make_database: MakeDatabase, clock: Clock, discard: bool
) -> None:
    with ExitStack() as stack:
        alone, among = (stack.enter_context(Store(make_database(), clock=clock)) for _ in range(2))
        among.open("z").save_turn([])  # whose summary has the number of another's turn
        for key in ("a", "z"):
            talk(among, key, discard=not discard)
        others = all_rows(among)
        for name, verb in VERBS.items():
            told = []
            for store in (alone, among):
                conversation = talk(store, "k", discard=discard)
                clock.move(seconds=1)
                try:
                    told.append(verb(store, conversation))
                except InvalidCut as error:
                    told.append(str(error))
                clock.move(seconds=-1)
            assert told[0] == told[1], name
            rows = all_rows(among)
            made = {key: found for key, found in all_rows(alone).items() if key not in others}
            assert {key: found for key, found in rows.items() if key not in others} == made, name
            assert {key: found for key, found in rows.items() if key in others} == others, name
            for store in (alone, among):
                for left in made:
                    store.delete(left)
