"""Checks of messages: appended, read, changed where they stand, taken away."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lango_store.errors import Conflict, InvalidMessage, MessageNotFound
from lango_store.model import Message, MessageRole, ToolCall
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import Calls, contents, holds, refused, same, seqs

ODD_JSON: Final[list[Any]] = [
    None,
    True,
    [True, 1, 1.0, False, 0, -0.0],
    "",
    "\0 and \ud83d alone",
    "−3 °C 🌧",
    10**400,
    -(2**63) - 1,
    1e-300,
    {"": {"a": [None, {}, []]}, "b": "null", "a\0b": 1},
    [[[[[[]]]]]],
    '{"text": "that is JSON"}',
]
NOT_JSON: Final[list[Any]] = [float("nan"), float("inf"), (1, 2), {1, 2}, b"bytes", {1: "a"}, object()]


def _talk(store: Store, number: int = 5) -> list[Message]:
    said = [Message.user(f"message {n}", tokens=n, id=f"id-{n}") for n in range(1, number + 1)]
    return store.create("k", messages=said).messages


@check()
def a_message_comes_back_equal(store: Store, clock: Clock) -> None:
    """A message comes back with every field it was appended with, its seq and its time."""
    given = Message(
        role=MessageRole.TOOL,
        content=[{"type": "text", "text": "−3 °C"}],
        author="orchestrator",
        name="get_weather",
        tool_call_id="call_1",
        tool_calls=[ToolCall(id="call_1", name="get_weather", arguments='{"a": 1}', output=None)],
        tokens=12,
        id="update-1",
        extra={"thinking": None},
    )
    store.create("k")
    stored = store.append_message("k", given)
    same((stored.seq, stored.created_at, stored.replayed), (1, clock.time, False), "seq, time and replayed")
    same(stored.model_copy(update={"seq": 0, "created_at": None}), given, "what append_message returned")
    found = store.messages("k")[0]
    same(found, stored, "what was read")
    same([call.answered for call in found.tool_calls], [True], "whether an output of null is an answer")
    dated = datetime(2001, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    same(store.append_message("k", Message.user("old", created_at=dated)).created_at, dated, "a time that was given")


@check()
def any_json_comes_back_equal(store: Store, clock: Clock) -> None:
    """Any JSON comes back as it was, in contents, arguments, outputs and extra: true is not 1, and 1 is not 1.0."""
    store.create("k")
    given = [
        Message.tool(value, tool_calls=[ToolCall(id="c", name="n", arguments=value, output=value)], extra={"x": value})
        for value in ODD_JSON
    ]
    store.append_messages("k", given)
    for expected, message in zip(ODD_JSON, store.messages("k"), strict=True):
        call = message.tool_calls[0]
        for found in (message.content, call.arguments, call.output, message.extra["x"]):
            same(json.dumps(found), json.dumps(expected), "JSON that was stored")


@check()
def what_is_not_json_is_refused(store: Store, clock: Clock) -> None:
    """What could not be given back equal is InvalidMessage, and nothing of its batch is written."""
    store.create("k")
    for wrong in NOT_JSON:
        with refused(InvalidMessage, f"a content with {wrong!r}"):
            store.append_messages("k", [Message.user("fine"), Message.user({"x": wrong})])
    same((store.messages("k"), store.info("k").last_seq), ([], 0), "what was written")


@check()
def messages_stand_in_the_order_of_their_seq(store: Store, clock: Clock) -> None:
    """Messages are in the order in which they were appended, even when the clock stands or goes back."""
    store.create("k")
    for number in range(4):
        clock.move(hours=-number)
        store.append_message("k", Message.user(number))
    found = store.messages("k")
    same((contents(found), seqs(found)), ([0, 1, 2, 3], [1, 2, 3, 4]), "contents and seqs")
    same(contents(store.all_messages("k")), [0, 1, 2, 3], "the log")


@check()
def a_batch_lands_in_its_order(store: Store, clock: Clock) -> None:
    """A batch lands whole, in its order, and comes back as stored."""
    store.create("k", messages=[Message.user("first")])
    stored = store.append_messages("k", [Message.user(number) for number in range(30)])
    same((contents(stored), seqs(stored)), (list(range(30)), list(range(2, 32))), "what append_messages returned")
    same(store.messages("k")[1:], stored, "what was read")
    same(store.append_messages("k", []), [], "an empty batch")


@check()
def an_id_is_stored_once(store: Store, clock: Clock) -> None:
    """A message whose id is there already is not written again: the stored one comes back, replayed."""
    store.create("k")
    first = store.append_message("k", Message.user("hello", id="a"))
    clock.move(minutes=1)
    again = store.append_message("k", Message.user("other", id="a"))
    same((again.replayed, again.seq, again.content), (True, first.seq, "hello"), "the message that was sent again")
    some = store.append_messages("k", [Message.user("b", id="b"), Message.user("a", id="a"), Message.user("b", id="b")])
    same([message.replayed for message in some], [False, True, True], "which of a batch were there")
    same(contents(store.messages("k")), ["hello", "b"], "what is stored")
    store.create("l")
    same(store.append_message("l", Message.user("hi", id="a")).replayed, False, "the id in another session, replayed")


@check()
def after_compares_and_appends(store: Store, clock: Clock) -> None:
    """With after=, a message is written only if the session is still there, else it is Conflict, which says where."""
    store.create("k")
    store.append_message("k", Message.user("a"), after=0)
    try:
        store.append_message("k", Message.user("late"), after=0)
    except Conflict as conflict:
        same(conflict.last_seq, 1, "where the conflict says the session is")
    else:
        raise AssertionError("after= a seq that is not the last: expected Conflict, nothing was raised")
    store.append_message("k", Message.user("b"), after=1)
    same(contents(store.messages("k")), ["a", "b"], "what is stored")


@check()
def fields_change_with_an_append(store: Store, clock: Clock) -> None:
    """set= changes fields of the session with the message, or neither lands."""
    revision = store.create("k", title="old", user_id="u").revision
    store.append_message("k", Message.user("a"), set={"title": "new"})
    found = store.info("k")
    same((found.title, found.user_id, found.last_seq), ("new", "u", 1), "the session after an append that sets")
    with refused(Conflict, "an append that expects a revision of before"):
        store.append_message("k", Message.user("b"), set={"title": "newer"}, expect=revision)
    same((store.info("k").title, len(store.messages("k"))), ("new", 1), "title and messages after the conflict")


@check()
def an_append_makes_its_session(store: Store, clock: Clock) -> None:
    """With create=True an append makes a session that is missing, and changes no field of one that is there."""
    store.append_message("k", Message.user("a"), create=True, title="first", ttl=timedelta(hours=1))
    store.append_messages("k", [Message.user("b")], create=True, title="second", ttl=None)
    found = store.get("k")
    same((found.title, found.ttl_seconds, contents(found.messages)), ("first", 3600, ["a", "b"]), "the session")
    with refused(TypeError, "fields of a session without create=True"):
        store.append_message("k", Message.user("c"), title="third")
    with refused(Conflict, "after= in a session that is not there"):
        store.append_message("l", Message.user("a"), create=True, after=3)
    same((len(store.messages("k")), store.exists("l")), (2, False), "messages, and whether another session was made")


@check()
def replace_after_drops_and_appends(store: Store, clock: Clock) -> None:
    """replace_after drops what comes after a seq and appends, both or neither."""
    _talk(store)
    with refused(Conflict, "replace_after with an after= that does not hold"):
        store.append_messages("k", [Message.user("new")], replace_after=2, after=99)
    same(len(store.messages("k")), 5, "messages after the conflict")
    store.append_messages("k", [Message.user("new")], replace_after=2)
    same(contents(store.all_messages("k")), ["message 1", "message 2", "new"], "the log")


@check()
def no_seq_is_given_out_twice(store: Store, clock: Clock) -> None:
    """A seq goes on counting, whatever was taken away before."""
    highest = _talk(store)[-1].seq
    calls: Calls = {
        "pop_message": lambda: store.pop_message("k"),
        "delete_message": lambda: store.delete_message("k", store.messages("k")[-1].seq),
        "truncate": lambda: store.truncate("k", after=1),
        "clear": lambda: store.clear("k"),
    }
    for what, take in calls.items():
        take()
        seq = store.append_message("k", Message.user("next")).seq
        holds(seq > highest, f"after {what} the seq {seq} is given out, and {highest} was before")
        highest = seq


@check()
def parts_of_the_log_can_be_read(store: Store, clock: Clock) -> None:
    """all_messages reads what lies between two seqs, its first or its last; iter_messages and message_pages all."""
    stored = _talk(store, 7)
    cases: list[tuple[dict[str, Any], list[Message]]] = [
        ({}, stored),
        ({"last": 2}, stored[5:]),
        ({"last": 0}, []),
        ({"limit": 3}, stored[:3]),
        ({"after": 2, "before": 6}, stored[2:5]),
        ({"after": 2, "limit": 2}, stored[2:4]),
        ({"before": 6, "last": 2}, stored[3:5]),
        ({"after": 7}, []),
    ]
    for which, expected in cases:
        same(store.all_messages("k", **which), expected, f"all_messages with {which}")
    same(list(store.iter_messages("k", page_size=3)), stored, "iter_messages")
    same(list(store.iter_messages("k", after=1, before=7, page_size=2)), stored[1:6], "a part of iter_messages")
    same([len(page) for page in store.message_pages("k", page_size=3)], [3, 3, 1], "lengths of message_pages")


@check()
def a_message_is_found_by_its_id(store: Store, clock: Clock) -> None:
    """find_message gives the message with an id, or None, and none of another session."""
    stored = _talk(store)
    store.create("l")
    same(store.find_message("k", "id-2"), stored[1], "the message with the id")
    same((store.find_message("k", "nobody"), store.find_message("l", "id-2")), (None, None), "ids that are not there")


@check()
def a_message_is_changed_where_it_stands(store: Store, clock: Clock) -> None:
    """update_message leaves a message its seq, and its id and time unless it brings its own."""
    _talk(store)
    made = clock.time
    clock.move(hours=1)
    changed = store.update_message("k", "id-2", Message.assistant({"new": 2}, tokens=20))
    same((changed.seq, changed.id, changed.created_at), (2, "id-2", made), "seq, id and time")
    same(store.messages("k")[1], changed, "what is stored")
    same(contents(store.messages("k"))[2:], ["message 3", "message 4", "message 5"], "the others")
    with refused(InvalidMessage, "the id of another message"):
        store.update_message("k", 2, Message.user("x", id="id-3"))
    with refused(MessageNotFound, "a seq that is not there"):
        store.update_message("k", 99, Message.user("x"))
    same((store.messages("k")[1], store.info("k").token_count), (changed, 33), "the message, and the tokens of all")


@check()
def a_message_is_deleted_wherever_it_is(store: Store, clock: Clock) -> None:
    """delete_message takes one message away, by its seq or its id, and counts it no more."""
    _talk(store)
    store.delete_message("k", 2)
    store.delete_message("k", "id-4")
    found = store.get("k")
    same((seqs(found.messages), found.message_count, found.token_count), ([1, 3, 5], 3, 9), "what is left")
    with refused(MessageNotFound, "a message that is gone"):
        store.delete_message("k", "id-4")
    same(store.append_message("k", Message.user("again", id="id-4")).replayed, False, "the id that is free, replayed")


@check()
def a_redacted_message_keeps_its_place_only(store: Store, clock: Clock) -> None:
    """redact_message takes content, tool calls and extra; place, role, id and time stay, and the reason is kept."""
    calls = [ToolCall(id="c", name="n", arguments={"secret": 1})]
    given = Message.assistant("secret", id="m", tool_calls=calls, extra={"secret": 1}, tokens=7)
    stored = store.create("k", messages=[given]).messages[0]
    left = store.redact_message("k", "m", reason="a password")
    same((left.content, left.tool_calls, left.extra), (None, [], {"redacted": "a password"}), "what is left")
    same((left.seq, left.role, left.id, left.created_at), (1, stored.role, "m", stored.created_at), "what stays")
    same(store.messages("k"), [left], "what is stored")
    same(store.info("k").token_count, 0, "the tokens of all")


@check()
def a_pop_takes_the_last_message(store: Store, clock: Clock) -> None:
    """pop_message takes the last message and returns it; None if there is none."""
    stored = _talk(store, 2)
    same([store.pop_message("k") for _ in range(3)], [stored[1], stored[0], None], "what was popped")
    found = store.get("k")
    same((found.messages, found.message_count, found.token_count), ([], 0, 0), "what is left")


@check()
def a_cut_takes_what_comes_after_it(store: Store, clock: Clock) -> None:
    """truncate deletes the messages above a seq, and says how many; clear all, or all but those of role system."""
    _talk(store)
    same(store.truncate("k", after=3), 2, "how many truncate took")
    found = store.get("k")
    same((seqs(found.messages), found.message_count, found.token_count), ([1, 2, 3], 3, 6), "what truncate left")
    store.append_message("k", Message.system("Be kind."))
    same(store.clear("k", keep_system=True), 3, "how many clear took")
    same(contents(store.messages("k")), ["Be kind."], "what clear left")
    same((store.clear("k"), store.messages("k")), (1, []), "how many clear took without an exception, and what it left")


@check(token_counter=lambda message: len(str(message.content)))
def tokens_are_counted_where_none_are_given(store: Store, clock: Clock) -> None:
    """A token_counter counts messages that carry no count; the session sums all up."""
    store.create("k")
    stored = store.append_messages("k", [Message.user("12345"), Message.user("12345", tokens=100)])
    same([message.tokens for message in stored], [5, 100], "tokens of the messages")
    same(store.info("k").token_count, 105, "tokens of the session")
