"""Holds: a session with a hold is not deleted until the hold is released."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.factories import message, messages
from support.rows import all_rows

from lango_store import InvalidState, InvalidValue, Message, SessionExpired, SessionHeld, SessionOnHold, Store
from lango_store.interchange.copying import copy
from lango_store.testing import Clock

DAY = timedelta(days=1)
HOLD = "case 17"


def held(store: Store, key: str, **fields: str) -> None:
    """Create an expiring session with a hold."""
    store.create(key, ttl=DAY, messages=messages(2), **fields)  # type: ignore[arg-type]
    assert store.conversation(key).update(hold=HOLD).hold == HOLD


def test_delete_refuses_a_session_on_hold_until_it_is_released(store: Store) -> None:
    held(store, "k")
    info = store.conversation("k").info()
    for expect in (None, info.revision):
        with pytest.raises(SessionOnHold, match="release it first") as raised:
            store.delete("k", expect=expect)
        assert (raised.value.key, raised.value.hold, raised.value.constraint) == ("k", HOLD, f"hold: {HOLD}")
    assert isinstance(raised.value, SessionHeld)
    assert store.get("k").hold == HOLD
    assert store.conversation("k").update(hold=None).hold is None
    assert store.delete("k")
    assert not store.delete("k")


def test_delete_with_descendants_deletes_nothing_if_one_is_on_hold(store: Store) -> None:
    store.create("k")
    store.create("k/a")
    held(store, "k/b")
    with pytest.raises(SessionOnHold) as raised:
        store.delete("k", descendants=True)
    assert raised.value.key == "k/b"
    assert store.count() == 3


def test_expire_lists_sessions_on_hold_and_purges_the_others(store: Store, clock: Clock, tmp_path: Path) -> None:
    for number in range(5):
        store.create(f"k{number}", ttl=DAY, messages=messages(1))
    held(store, "on hold")
    held(store, "k1/child")
    clock.move(days=2)
    planned = store.expire(dry_run=True, descendants=True)
    assert (planned.sessions, planned.held) == (5, {"on hold": f"hold: {HOLD}", "k1/child": f"hold: {HOLD}"})
    report = store.expire(archive=tmp_path / "cold.db", descendants=True, batch_size=2)
    assert (report.sessions, report.held) == (5, planned.held)
    assert {*all_rows(store)} == {"on hold", "k1/child"}
    store.touch("on hold")
    assert store.conversation("on hold").update(hold=None).hold is None
    clock.move(days=2)
    assert store.expire().sessions == 1


def test_descendant_on_hold_is_kept_and_reported_although_it_is_not_due(store: Store, clock: Clock) -> None:
    store.create("k", ttl=DAY)
    store.create("k/child")
    store.conversation("k/child").update(hold=HOLD)
    clock.move(days=2)
    report = store.expire(descendants=True)
    assert (report.sessions, report.held) == (1, {"k/child": f"hold: {HOLD}"})
    assert store.exists("k/child")


def test_delete_where_deletes_the_others_and_raises(store: Store) -> None:
    store.create("a", user_id="ann")
    held(store, "b", user_id="ann")
    with pytest.raises(SessionOnHold) as raised:
        store.delete_where(user_id="ann")
    assert (raised.value.key, raised.value.hold) == ("b", HOLD)
    assert [info.key for info in store.iter_sessions()] == ["b"]


def test_erase_reports_sessions_on_hold(store: Store) -> None:
    store.create("a", user_id="ann", messages=messages(1))
    held(store, "b", user_id="ann")
    held(store, "room", user_id="bob")
    store.append_message("room", Message.user("kept", author="ann"))
    before = all_rows(store)
    planned = store.erase("ann", authors=True, dry_run=True)
    receipt = store.erase("ann", authors=True)
    for name in ("held", "reasons", "erased", "redacted"):
        assert getattr(planned, name) == getattr(receipt, name)
    assert receipt.held == {"b": f"hold: {HOLD}", "room": f"hold: {HOLD}"}
    assert (receipt.reasons, receipt.complete, receipt.remaining) == ({f"hold: {HOLD}": 2}, False, 0)
    assert receipt.erased == {"store": {"lango_session": 1, "lango_message": 1}}
    before.pop("a")
    assert all_rows(store) == before


def test_expired_session_on_hold_is_hidden_and_not_replaced(store: Store, clock: Clock) -> None:
    held(store, "k")
    clock.move(days=2)
    for call in (
        lambda: store.get("k"),
        lambda: store.open("k", renew=True),
        lambda: store.append_message("k", message(), create=True),
    ):
        with pytest.raises(SessionExpired):
            call()
    assert store.get("k", expired=True).message_count == 2
    store.touch("k")
    assert store.append_message("k", message()).seq == 3


def test_removed_messages_of_a_session_on_hold_are_not_purged(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k", messages=messages(3))
    conversation.edits.delete(2)
    conversation.update(hold=HOLD)
    clock.move(days=31)
    keeping.expire()
    assert _removed(keeping) == 1
    conversation.update(hold=None)
    keeping.expire()
    assert _removed(keeping) == 0


def _removed(store: Store) -> int:
    with store.engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM lango_removed_message").scalar_one())


def test_copies_have_the_hold_and_forks_have_not(store: Store, make_database: MakeDatabase) -> None:
    held(store, "k")
    assert store.conversation("k").fork("copy").info().hold is None
    with Store(make_database(), clock=store._context.clock_time) as target:
        copy(store, target)
        assert target.get("k").hold == HOLD


def test_hold_needs_a_reason(store: Store) -> None:
    conversation = store.open("k")
    with pytest.raises(InvalidValue, match="None to release"):
        conversation.update(hold="")
    assert conversation.info().hold is None


def test_store_for_a_user_does_not_change_holds(store: Store) -> None:
    held(store, "k", user_id="ann")
    with pytest.raises(InvalidState, match="hold"):
        store.for_user("ann").conversation("k").update(hold=None)
    assert store.get("k").hold == HOLD
