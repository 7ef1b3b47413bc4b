"""Checks of many writers at once: nothing is lost, nothing is doubled, and of those that compare one wins."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, TypeVar

from lango_store.errors import Conflict
from lango_store.model import Message
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import contents, same, seqs

R = TypeVar("R")

WRITERS: Final = 8


def _at_once(write: Callable[[int], R]) -> list[R]:
    together = Barrier(WRITERS)

    def start(number: int) -> R:
        together.wait()
        return write(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(start, range(WRITERS)))


def _won(write: Callable[[int], object]) -> int:
    def tried(number: int) -> bool:
        try:
            write(number)
        except Conflict:
            return False
        return True

    return sum(_at_once(tried))


@check()
def writers_at_once_lose_nothing(store: Store, clock: Clock) -> None:
    """Eight writers on one session lose nothing and double nothing, and each one's messages are in its order."""
    store.create("k")
    _at_once(lambda writer: [store.append_message("k", Message.user([writer, number])) for number in range(5)])
    found = store.all_messages("k")
    same(seqs(found), list(range(1, 5 * WRITERS + 1)), "seqs")
    for writer in range(WRITERS):
        mine = [number for by, number in contents(found) if by == writer]
        same(mine, list(range(5)), f"what writer {writer} said")
    same(store.info("k").message_count, 5 * WRITERS, "message_count")


@check()
def batches_at_once_do_not_mix(store: Store, clock: Clock) -> None:
    """Batches and turns that land at once stand one after the other, none inside another."""
    handle = store.open("k")
    _at_once(
        lambda writer: (
            handle.save_turn([Message.user(writer)] * 4, {"tokens": 1})
            if writer % 2
            else store.append_messages("k", [Message.user(writer)] * 4)
        )
    )
    said = contents(store.all_messages("k"))
    same(
        [len(set(said[first : first + 4])) for first in range(0, len(said), 4)], [1] * WRITERS, "writers in each batch"
    )
    same(handle.total_usage(), {"tokens": WRITERS // 2}, "what all turns cost")


@check()
def an_id_sent_by_many_at_once_is_stored_once(store: Store, clock: Clock) -> None:
    """A message with an id is stored once, however many send it at once, and all get the same."""
    store.create("k")
    found = _at_once(lambda writer: store.append_message("k", Message.user("hello", id="a")))
    same({message.seq for message in found}, {1}, "seqs that the senders got")
    same(sum(not message.replayed for message in found), 1, "senders whose message was stored")
    same(len(store.all_messages("k")), 1, "messages that are stored")


@check()
def of_writers_that_compare_one_wins(store: Store, clock: Clock) -> None:
    """Of writers that append after the same seq, or expect the same revision, one wins and the others are Conflict."""
    store.create("k")
    same(_won(lambda writer: store.append_message("k", Message.user(writer), after=0)), 1, "winners by after=")
    revision = store.info("k").revision
    same(_won(lambda writer: store.update("k", title=str(writer), expect=revision)), 1, "winners by expect=")
    same((store.info("k").last_seq, store.info("k").revision), (1, revision + 1), "last_seq and revision")


@check()
def racers_on_a_new_key_make_one_session(store: Store, clock: Clock) -> None:
    """Eight first appends with create=True make one session, and every message is stored once."""
    _at_once(lambda writer: store.append_message("k", Message.user(writer), create=True, title=str(writer)))
    same(sorted(contents(store.all_messages("k"))), list(range(WRITERS)), "what was said")
    same(store.count(), 1, "sessions")
    made = _at_once(lambda writer: store.get_or_create("l", title=str(writer)).title)
    same(len(set(made)), 1, "titles that eight callers of get_or_create saw")


@check()
def writers_of_different_names_lose_nothing(store: Store, clock: Clock) -> None:
    """Writers that set values of different names at once lose nothing, in a session's scope and in a shared one."""
    store.create("k")
    expected = {f"{writer}:{number}": number for writer in range(WRITERS) for number in range(4)}

    def write(writer: int) -> None:
        for number in range(4):
            for scope in ("k", "shared"):
                store.set_values(scope, {f"{writer}:{number}": number})

    _at_once(write)
    same((store.values("k"), store.values("shared")), (expected, expected), "values of the session, and shared ones")
