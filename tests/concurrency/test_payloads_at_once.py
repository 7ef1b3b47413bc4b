"""Reads and appends of payloads while another thread edits the session."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident
from typing import Any

import pytest
from support.factories import contents, message
from support.payloads import bodies, large_message
from support.session_checks import assert_sound

from lango_store import Conversation, PayloadNotFound, Store
from lango_store._operations.log import payloads

ROUNDS = 30


def texts(number: int) -> list[str]:
    return [f"{number}-{place} ".ljust(65_536, "x") for place in range(3)]


def update(conversation: Conversation, number: int) -> None:
    conversation.edits.update(1, message(texts(number)))


def replace(conversation: Conversation, number: int) -> None:
    conversation.append_messages([message(texts(number))], replace_after=0)


READS: dict[str, Callable[[Conversation], Any]] = {
    "window": lambda k: k.messages(),
    "last": lambda k: k.messages(last=1),
    "log": lambda k: k.all_messages(),
    "log of one": lambda k: k.all_messages(limit=1),
    "iteration": lambda k: list(k.iter_messages()),
    "history": lambda k: [json.loads(each["content"]) for each in k.history()],  # no blocks, so a prompt has JSON text
    "log with damage": lambda k: k.all_messages(damaged="return"),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", [update, replace])
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reads_during_edits_return_whole_messages(
    store: Store, read: Callable[[Conversation], Any], edit: Callable[[Conversation, int], None]
) -> None:
    conversation = store.open("k", messages=[message(texts(0))])
    expected = {str(texts(number)) for number in range(ROUNDS + 1)}
    finished = Event()

    def keep_reading() -> int:
        reads = 0
        while not finished.is_set():
            (found,) = read(conversation)
            assert str(found if isinstance(found, list) else found.content) in expected
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(keep_reading) for _ in range(2)]
        try:
            for number in range(1, ROUNDS + 1):
                edit(conversation, number)
        finally:
            finished.set()
        assert all(reader.result() for reader in readers)
    assert contents(conversation.messages()) == [texts(ROUNDS)]
    assert bodies(store) == sorted(texts(ROUNDS))
    assert_sound(store)


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_read_succeeds_if_the_message_is_edited_between_statements_of_the_read(
    store: Store, read: Callable[[Conversation], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = store.open("k", messages=[message(texts(0))])
    read_payloads, numbers = payloads.read, iter(range(1, 5))

    def read_after_edit(connection: Any, key: str, digests: set[str]) -> dict[str, str]:
        if get_ident() == reader and (number := next(numbers, None)):
            editor.submit(update, conversation, number).result()
        return read_payloads(connection, key, digests)

    reader = get_ident()
    monkeypatch.setattr(payloads, "read", read_after_edit)
    with ThreadPoolExecutor(1) as editor:
        (found,) = read(conversation)
    assert "x" * 4_000 in str(found)


def test_replay_of_a_turn_during_edits_returns_whole_messages(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("stored") as turn:
        turn.append(message(texts(0)))
    conversation.turn("running").begin()  # so that the replay does not get the lease, which would lock the session

    def keep_replaying() -> int:
        replays = 0
        while not finished.is_set():
            with conversation.turn("stored") as again:
                assert again.stored is not None
                assert len(str(contents(again.stored.messages))) > 12_000
            replays += 1
        return replays

    finished = Event()
    with ThreadPoolExecutor(1) as pool:
        replaying = pool.submit(keep_replaying)
        try:
            for number in range(1, ROUNDS + 1):
                update(conversation, number)
        finally:
            finished.set()
        assert replaying.result()


def test_payload_loaded_during_edits_is_returned_whole_or_raises_payload_not_found(store: Store) -> None:
    conversation = store.open("k", messages=[message(texts(0))])

    def keep_loading() -> set[str]:
        found: set[str] = set()
        for _ in range(ROUNDS):
            (stored,) = conversation.messages(payloads="reference")
            try:
                found |= {conversation.payload(each.digest)[-1] for each in stored.content}
            except PayloadNotFound:
                found.add("not found")
        return found

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(keep_loading)
        for number in range(1, ROUNDS + 1):
            update(conversation, number)
        assert reader.result() <= {"x", "not found"}


@pytest.mark.slow
def test_large_string_stays_while_a_message_has_it_despite_concurrent_removals(store: Store) -> None:
    """Each thread appends the same string and removes it again, so that it is released and inserted all the time."""
    conversation = store.open("k")

    def work(number: int) -> None:
        for _ in range(ROUNDS // 5):
            seq = conversation.append_message(large_message("y" * 70_000, author=f"{number}")).seq
            assert conversation.all_messages(after=seq - 1, limit=1)[0].extra == {"raw": [["y" * 70_000]]}
            if number:
                conversation.edits.delete(seq)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(conversation.messages()) == ROUNDS // 5
    assert bodies(store) == ["y" * 70_000]
    assert_sound(store)
