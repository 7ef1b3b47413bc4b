"""The revision of a session: every write changes it, and `expect` makes a write conditional on it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
from support.databases import MakeDatabase
from support.factories import message, messages

from lango_store import Conflict, Message, Store
from lango_store.testing import Clock

WRITES: dict[str, Callable[[Store], object]] = {
    "append_message": lambda store: store.append_message("k", message()),
    "append_messages": lambda store: store.conversation("k").append_messages(messages(3)),
    "append_messages with replace_after": lambda store: store.conversation("k").append_messages(
        messages(1), replace_after=1
    ),
    "append_message with create": lambda store: store.append_message("k", message(), create=True),
    "save_turn": lambda store: store.conversation("k").save_turn(messages(2), {"tokens": 1}),
    "update": lambda store: store.conversation("k").update(title="new"),
    "touch": lambda store: store.touch("k", ttl=timedelta(days=1)),
    "edits.update": lambda store: store.conversation("k").edits.update(2, message("other")),
    "edits.delete": lambda store: store.conversation("k").edits.delete(2),
    "edits.redact": lambda store: store.conversation("k").edits.redact(2),
    "pop_message": lambda store: store.conversation("k").pop_message(),
    "truncate": lambda store: store.conversation("k").truncate(after=1),
    "clear": lambda store: store.conversation("k").clear(),
    "compact": lambda store: store.conversation("k").compact(lambda window: message("summary")),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_write_increases_the_revision(store: Store, write: Callable[[Store], object]) -> None:
    before = store.create("k", messages=messages(5)).revision
    assert store.conversation("k").info().revision == before
    write(store)
    after = store.conversation("k").info().revision
    assert after > before
    with pytest.raises(Conflict) as conflict:
        store.conversation("k").update(title="stale", last_consolidated=0, expect=before)
    assert conflict.value.revision == after
    assert store.get("k").revision == after


def test_call_without_effect_keeps_the_revision(store: Store) -> None:
    store.create("k", messages=[message(id="a"), message()])
    before = store.conversation("k").info()
    store.append_message("k", message(id="a"))
    store.conversation("k").append_messages([])
    store.conversation("k").update()
    store.conversation("k").truncate(after=2)
    store.get("k"), store.conversation("k").history(), store.list_sessions()
    assert store.conversation("k").info() == before


def test_write_with_expect_succeeds_at_the_current_revision(store: Store) -> None:
    revision = store.create("k").revision
    store.append_message("k", message(), expect=revision)
    store.conversation("k").append_messages(messages(3), expect=revision + 1, after=1)
    store.conversation("k").save_turn(messages(2), expect=revision + 2)
    assert store.conversation("k").update(title="T", expect=revision + 3).revision == revision + 4
    store.conversation("k").append_messages(messages(1), replace_after=2, expect=revision + 4)
    store.conversation("k").edits.update(1, message("other"), expect=revision + 6)
    store.conversation("k").edits.delete(1, expect=revision + 7)
    last = store.conversation("k").info().revision
    with pytest.raises(Conflict, match=f"at revision {last}, not at {revision}"):
        store.delete("k", expect=revision)
    assert store.delete("k", expect=last)
    assert not store.delete("k", expect=last)


STALE: dict[str, Callable[[Store, int], object]] = {
    "append_message": lambda store, stale: store.append_message("k", message("lost"), expect=stale),
    "append_messages": lambda store, stale: store.conversation("k").append_messages(messages(2), expect=stale),
    "append_messages with create": lambda store, stale: store.conversation("k").append_messages(
        messages(2), expect=stale, create=True
    ),
    "append_messages with replace_after": lambda store, stale: store.conversation("k").append_messages(
        messages(2), expect=stale, replace_after=0
    ),
    "append_message with an id": lambda store, stale: store.append_message("k", message(id="new"), expect=stale),
    "save_turn": lambda store, stale: store.conversation("k").save_turn(messages(2), expect=stale, id="t"),
    "update": lambda store, stale: store.conversation("k").update(title="x", expect=stale),
    "edits.update": lambda store, stale: store.conversation("k").edits.update(1, message("other"), expect=stale),
    "edits.delete": lambda store, stale: store.conversation("k").edits.delete(1, expect=stale),
    "delete": lambda store, stale: store.delete("k", expect=stale),
}


@pytest.mark.parametrize("write", STALE.values(), ids=STALE.keys())
def test_write_with_stale_expect_changes_nothing(store: Store, write: Callable[[Store, int], object]) -> None:
    stale = store.create("k", messages=messages(2)).revision
    store.conversation("k").update(title="first")
    before = store.get("k")
    with pytest.raises(Conflict) as conflict:
        write(store, stale)
    assert (conflict.value.expected, conflict.value.revision) == (stale, before.revision)
    assert conflict.value.last_seq == before.last_seq
    assert store.get("k") == before


def test_repeated_append_with_old_expect_is_replayed(store: Store) -> None:
    revision = store.create("k").revision
    first = store.append_message("k", message("a", id="1"), expect=revision)
    again = store.append_message("k", message("a", id="1"), expect=revision)
    assert (again.replayed, again.seq) == (True, first.seq)
    turn = store.conversation("k").save_turn(messages(1), id="t", expect=revision + 1)
    again_turn = store.conversation("k").save_turn(messages(1), id="t", expect=revision + 1)
    assert (again_turn.replayed, again_turn.turn_no) == (True, turn.turn_no)
    assert store.conversation("k").info().revision == revision + 2


def test_exactly_one_of_eight_concurrent_writes_with_equal_expect_succeeds(store: Store) -> None:
    for number in range(2):
        revision = store.create(f"k{number}").revision
        barrier = Barrier(8)

        def race(n: int, barrier: Barrier = barrier, key: str = f"k{number}", revision: int = revision) -> int:
            barrier.wait()
            try:
                store.append_message(key, message(n), expect=revision)
            except Conflict:
                return 0
            return 1

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(race, range(8))) == 1
        assert store.conversation(f"k{number}").info().last_seq == 1


@pytest.mark.slow
def test_recreated_session_never_reuses_a_revision(make_database: MakeDatabase, tmp_path: Path) -> None:
    clock = Clock()  # does not advance by itself
    with Store(make_database(), clock=clock) as store:
        used: set[int] = set()
        for number in range(6):
            first = store.create("k", ttl=timedelta(minutes=1)) if number % 2 else store.open("k").get()
            revisions = {first.revision}
            for _ in range(5):
                store.append_message("k", message())
                revisions.add(store.conversation("k").info().revision)
            assert not revisions & used
            used |= revisions
            if number == 3:
                archive = tmp_path / "archive.db"
                clock.move(minutes=2)
                store.expire(archive=archive)
                assert store.restore("k", archive).revision not in used
            store.delete("k")


def test_stale_expect_conflicts_in_the_callers_transaction(store: Store) -> None:
    stale = store.create("k").revision
    store.append_message("k", Message.user("first"))
    with store.engine.begin() as connection:
        bound = store.using(connection)
        with pytest.raises(Conflict):
            bound.append_message("k", Message.user("second"), expect=stale)
        bound.append_message("k", Message.user("third"), expect=stale + 1)
    assert [each.content for each in store.conversation("k").messages()] == ["first", "third"]


def test_update_with_expect_and_no_fields_increases_the_revision(store: Store) -> None:
    revision = store.create("k").revision
    assert store.conversation("k").update(expect=revision).revision == revision + 1
    with pytest.raises(Conflict):
        store.conversation("k").update(expect=revision)
