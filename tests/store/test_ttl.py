"""The TTL of sessions: expiry, revival and replacement."""

from datetime import datetime, timedelta

import pytest
from support.factories import message, messages

from lango_store import UNSET, LangoStoreError, SessionExists, SessionExpired, SessionNotFound, Store
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def test_process_that_creates_the_session_decides_its_ttl(url: str) -> None:
    day, month = timedelta(days=1), timedelta(days=30)
    with Store(url, default_ttl=day) as first, Store(url, default_ttl=month) as second:
        for creating, appending, ttl in ((first, second, day), (second, first, month)):
            key = f"created with {ttl}"
            creating.append_message(key, message(), create=True)
            appending.append_message(key, message(), create=True)
            info = appending.conversation(key).info()
            assert info.expires_at == info.updated_at + ttl
            appending.touch(key, ttl=2 * day)
            creating.append_message(key, message(), create=True)
            assert creating.conversation(key).info().ttl_seconds == (2 * day).total_seconds()


def test_append_restarts_the_ttl_but_a_read_does_not(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR)
    assert store.conversation("k").info().expires_at == clock.time + HOUR
    clock.move(minutes=40)
    (
        store.get("k"),
        store.conversation("k").messages(),
        store.conversation("k").info(),
        store.list_sessions(),
        store.exists("k"),
    )
    clock.move(minutes=10)
    store.append_message("k", message())
    assert store.conversation("k").info().expires_at == clock.time + HOUR
    store.conversation("k").append_messages(messages(3))
    clock.move(minutes=59)
    assert store.exists("k")


def test_expired_session_refuses_reads_and_writes_and_is_not_listed(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR, messages=[message(id="a")])
    store.create("stays", ttl=None)
    clock.move(hours=1)
    for call in (
        lambda: store.get("k"),
        lambda: store.conversation("k").info(),
        lambda: store.conversation("k").messages(),
        lambda: store.conversation("k").all_messages(last=1),
        lambda: list(store.conversation("k").iter_messages()),
        lambda: store.conversation("k").find_message("a"),
        lambda: store.append_message("k", message()),
        lambda: store.append_message("k", message(id="a")),
        lambda: store.append_message("k", message(), after=1),
        lambda: store.conversation("k").append_messages(messages(2)),
        lambda: store.conversation("k").append_messages(messages(2), replace_after=0),
        lambda: store.conversation("k").update(title="t"),
        lambda: store.conversation("k").clear(),
        lambda: store.conversation("k").truncate(after=0),
        lambda: store.open("k").get(),
    ):
        with pytest.raises(SessionExpired, match="touch") as raised:
            call()
        assert isinstance(raised.value, SessionNotFound)
    assert store.exists("k") is False
    assert [info.key for info in store.list_sessions().items] == ["stays"]
    assert store.count() == 1
    assert [info.key for info in store.list_sessions(expired=True).items] == ["k"]
    assert store.count(expired=True) == 1
    assert store.count(expired=None) == 2
    with pytest.raises(SessionExists, match="expired") as exists:
        store.create("k")
    assert exists.value.expired


def test_touch_revives_an_expired_session_and_sets_the_ttl(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR, messages=[message("still here")])
    clock.move(days=2)
    touched = store.touch("k")
    assert touched == store.conversation("k").info()
    assert touched.expires_at == clock.time + HOUR
    assert store.get("k").messages[0].content == "still here"
    assert store.touch("k", ttl=timedelta(days=1)).ttl_seconds == 86_400
    assert store.touch("k", ttl=UNSET).ttl_seconds == 86_400
    never = store.touch("k", ttl=None)
    assert (never.ttl_seconds, never.expires_at) == (None, None)
    clock.move(days=10_000)
    assert store.exists("k")


def test_expired_session_can_be_deleted_or_replaced(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR, title="old", messages=messages(3))
    store.create("other", ttl=HOUR)
    live = store.open("k", renew=True, title="new").get()
    assert live.title == "old"
    clock.move(hours=2)
    renewed = store.open("k", renew=True, title="new", ttl=HOUR).get()
    assert (renewed.title, renewed.messages, renewed.last_seq) == ("new", [], 0)
    assert store.conversation("other").info(expired=True).key == "other"
    clock.move(hours=2)
    assert store.delete("k") is True


def test_renew_does_not_replace_a_session_that_was_revived_meanwhile(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        store.create("k", ttl=HOUR, title="old")
    times = iter([clock() + 2 * HOUR])  # expired at the first read, revived before the second
    with Store(url, clock=lambda: next(times, clock())) as store:
        store.open("k", renew=True, title="new")
        assert store.conversation("k").info().title == "old"


def test_ttl_of_a_session_overrides_the_default_ttl(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, default_ttl=HOUR) as store:
        assert store.create("default").ttl_seconds == 3600
        assert store.create("never", ttl=None).ttl_seconds is None
        assert store.create("short", ttl=timedelta(seconds=1.5)).ttl_seconds == 1.5
    with Store(url, clock=clock, default_ttl=lambda key: HOUR if key.startswith("guest:") else None) as store:
        assert store.create("guest:1").ttl_seconds == 3600
        assert store.create("member:1").ttl_seconds is None


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta.max])
def test_invalid_ttl_is_refused(store: Store, ttl: timedelta) -> None:
    with pytest.raises(ValueError, match="ttl"):
        store.create("k", ttl=ttl)
    assert not store.exists("k")


def test_longest_ttl_is_100_years(store: Store) -> None:
    longest = timedelta(days=36_525)
    assert store.create("k", ttl=longest).ttl_seconds == longest.total_seconds()
    with pytest.raises(ValueError, match="100 years"):
        store.touch("k", ttl=longest + timedelta(microseconds=1))


def test_clock_without_time_zone_is_refused(url: str) -> None:
    with Store(url, clock=lambda: datetime(2026, 1, 1)) as store, pytest.raises(ValueError, match="time zone"):
        store.create("k")


def test_reading_an_expired_session_does_not_revive_it(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR, messages=messages(3))
    before = store.get("k")
    assert store.get("k", expired=True) == before
    clock.move(hours=1)
    handle = store.conversation("k")
    assert store.get("k", expired=True) == handle.get(expired=True) == before
    assert store.conversation("k").info(expired=True) == handle.info(expired=True)
    assert store.conversation("k").info(expired=True).expires_at == before.expires_at
    assert store.conversation("k").all_messages(last=2, expired=True) == before.messages[1:]
    assert handle.all_messages(after=1, expired=True) == before.messages[1:]
    for read in (handle.get, handle.all_messages):
        with pytest.raises(SessionExpired):
            read()
    store.delete("k")
    for call in (handle.get, handle.info, handle.all_messages):
        with pytest.raises(SessionNotFound) as raised:
            call(expired=True)
        assert raised.type is SessionNotFound


@pytest.mark.parametrize("write", ["append", "append with create", "turn"])
def test_committed_append_is_returned_although_the_stored_expiry_is_unreadable(store: Store, write: str) -> None:
    store.create("k", ttl=HOUR)
    damaged = {"sqlite": "never", "postgresql": "infinity"}[store.engine.dialect.name]
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_session SET expires_at = '{damaged}'")
    if write == "turn":
        stored = store.conversation("k").save_turn([message("landed")]).messages[0]
    else:
        stored = store.append_message("k", message("landed"), create=write == "append with create")
    with pytest.raises(LangoStoreError):
        store.conversation("k").info()
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET expires_at = NULL")
    assert store.conversation("k").messages() == [stored]
