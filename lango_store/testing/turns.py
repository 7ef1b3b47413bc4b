"""Checks of turns: messages saved with what they cost, once; and of forks."""

from __future__ import annotations

from datetime import timedelta

from lango_store.errors import Conflict, InvalidMessage, SessionExists
from lango_store.model import Message
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import contents, refused, same


@check()
def a_turn_lands_with_what_it_cost(store: Store, clock: Clock) -> None:
    """save_turn appends the messages and keeps what they cost; turns, find_turn and messages_of give both back."""
    handle = store.open("k", messages=[Message.system("Be kind.")])
    usage = {"input_tokens": 10, "details": {"cached": 3}}
    saved = handle.save_turn([Message.user("q"), Message.assistant("a")], usage, id="t", metadata={"run": 1})
    same((saved.turn_no, saved.first_seq, saved.last_seq, saved.replayed), (1, 2, 3, False), "its number and place")
    empty = handle.save_turn([], {"input_tokens": 1})
    found = handle.turns()
    same([(turn.turn_no, turn.id) for turn in found], [(1, "t"), (empty.turn_no, None)], "the turns")
    same((found[0].usage, found[0].metadata), (usage, {"run": 1}), "what is kept of the first")
    same(handle.find_turn("t"), found[0], "the turn with the id")
    same(handle.find_turn("nobody"), None, "a turn that is not there")
    same(contents(handle.messages_of(found[0])), ["q", "a"], "the messages of the turn")
    same((contents(store.messages("k")), handle.event_count()), (["Be kind.", "q", "a"], 2), "window and event count")


@check()
def a_turn_is_saved_once(store: Store, clock: Clock) -> None:
    """A turn that is sent again with its id, or with messages that all have ids, is replayed and costs nothing more."""
    handle = store.open("k")
    for id_, message_ids in (("t", (None, None)), (None, ("a", "b"))):
        said = [Message.user("q", id=message_ids[0]), Message.assistant("a", id=message_ids[1])]
        first = handle.save_turn(said, {"tokens": 5}, id=id_)
        again = handle.save_turn(said, {"tokens": 5}, id=id_)
        same(
            (again.replayed, again.turn_no, again.messages), (True, first.turn_no, _replayed(first.messages)), "replay"
        )
    same((len(store.messages("k")), handle.event_count()), (4, 2), "messages and turns")
    same(handle.total_usage(), {"tokens": 10}, "what all turns cost")


def _replayed(stored: list[Message]) -> list[Message]:
    return [message.model_copy() for message in stored]


@check()
def a_turn_lands_whole_or_not_at_all(store: Store, clock: Clock) -> None:
    """A turn of which anything is refused leaves nothing behind."""
    handle = store.open("k", messages=[Message.user("hello")])
    with refused(InvalidMessage, "a turn with a message that is not JSON"):
        handle.save_turn([Message.user("fine"), Message.user({"x": object()})], {"tokens": 5})
    with refused(InvalidMessage, "a turn with a usage that is not JSON"):
        handle.save_turn([Message.user("fine")], {"tokens": object()})
    with refused(Conflict, "a turn after a seq that is not the last"):
        handle.save_turn([Message.user("late")], {"tokens": 5}, after=0)
    same((contents(store.messages("k")), handle.turns(), handle.total_usage()), (["hello"], [], {}), "what is stored")


@check()
def usage_adds_up(store: Store, clock: Clock) -> None:
    """total_usage adds numbers field by field, nested ones too, and counts turns that are cut from the window."""
    handle = store.open("k")
    same(handle.total_usage(), {}, "what no turns cost")
    handle.save_turn([Message.user("a")], {"tokens": 1, "details": {"cached": 2}, "model": "x"})
    handle.save_turn([Message.user("b")], {"tokens": 2.5, "details": {"cached": 3, "new": 1}, "model": "y"})
    expected = {"tokens": 3.5, "details": {"cached": 5, "new": 1}, "model": "y"}
    same(handle.total_usage(), expected, "what both turns cost")
    handle.compact(lambda window: [Message.assistant("summary")])
    same(handle.total_usage(), expected, "what they cost after a compaction")


@check()
def a_turn_makes_its_session(store: Store, clock: Clock) -> None:
    """save_turn with create=True makes a session that is missing or expired, with its fields."""
    handle = store.conversation("k")
    handle.save_turn([Message.user("a")], create=True, title="T", session_metadata={"m": 1}, ttl=timedelta(hours=1))
    info = store.info("k")
    same((info.title, info.metadata, info.turn_count), ("T", {"m": 1}, 1), "the session that was made")
    clock.move(hours=2)
    same(handle.save_turn([Message.user("b")], create=True).turn_no, 1, "the number of the new session's first turn")
    same(contents(store.messages("k")), ["b"], "what the new session holds")


@check()
def a_fork_is_a_copy_of_its_own(store: Store, clock: Clock) -> None:
    """A fork has the messages up to a seq and the turns inside, names its origin, and each goes on alone."""
    handle = store.open("k", title="T", messages=[Message.user("a", id="a")])
    handle.save_turn([Message.user("b"), Message.assistant("c")], {"tokens": 5})
    handle.save_turn([Message.user("d"), Message.assistant("e")], {"tokens": 7})
    branch = handle.fork("branch", upto=3)
    info = branch.info()
    same((contents(branch.messages()), info.title, info.forked_from), (["a", "b", "c"], "T", "k"), "the fork")
    same(branch.total_usage(), {"tokens": 5}, "what the turns of the fork cost")
    branch.append_message(Message.user("f"))
    handle.pop_message()
    same(
        (contents(branch.messages()), contents(handle.messages())), (["a", "b", "c", "f"], ["a", "b", "c", "d"]), "both"
    )
    store.delete("k")
    same(contents(store.messages("branch")), ["a", "b", "c", "f"], "the fork without its origin")


@check()
def a_fork_may_end_before_a_question(store: Store, clock: Clock) -> None:
    """fork(before_user_message=n) ends before the n-th user's message, 1 the first, -1 the last."""
    said = [
        Message.system("s"),
        Message.user("q1"),
        Message.assistant("a1"),
        Message.user("q2"),
        Message.assistant("a2"),
    ]
    handle = store.open("k", messages=said)
    same(contents(handle.fork(before_user_message=-1).messages()), ["s", "q1", "a1"], "before the last question")
    same(contents(handle.fork(before_user_message=1).messages()), ["s"], "before the first question")
    store.create("taken")
    with refused(SessionExists, "a fork under a key that is taken"):
        handle.fork("taken")
    same(store.messages("taken"), [], "what the session with the taken key holds")
