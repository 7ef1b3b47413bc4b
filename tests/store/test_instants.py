"""The exact time at which a session expires: the same on both databases, to the microsecond."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.factories import message, messages

from lango_store import SessionExpired, Store
from lango_store._operations.session.sessions import MAX_TTL
from lango_store.testing import Clock

MICROSECOND = timedelta(microseconds=1)
TTL = timedelta(days=3, seconds=7, microseconds=999_999)

moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
spans = st.timedeltas(MICROSECOND, MAX_TTL) | st.timedeltas(MICROSECOND, timedelta(seconds=3))
_numbers = itertools.count()


@pytest.mark.slow
@settings(max_examples=25)
@given(now=moments, ttl=spans, later=st.timedeltas(timedelta(0), timedelta(days=400)))
@example(now=datetime(2026, 1, 1, tzinfo=UTC), ttl=MAX_TTL - MICROSECOND, later=MICROSECOND)
@example(now=datetime(2024, 2, 28, 23, 59, 59, 999_999, UTC), ttl=MICROSECOND, later=timedelta(0))
@example(now=datetime(2024, 2, 28, 23, 59, 59, 999_999, UTC), ttl=timedelta(seconds=0.999999), later=MICROSECOND)
@example(now=datetime(1999, 12, 31, 23, 59, 59, 1, UTC), ttl=timedelta(seconds=2.5), later=timedelta(seconds=1))
def test_expires_at_equals_the_time_that_python_computes(
    store: Store, clock: Clock, now: datetime, ttl: timedelta, later: timedelta
) -> None:
    conversation = store.conversation(f"k{next(_numbers)}")
    clock.time = now
    created = store.create(conversation.key, ttl=ttl)
    assert created.expires_at == store.conversation(conversation.key).info().expires_at == now + ttl
    clock.time = now + min(later, ttl - MICROSECOND)
    conversation.append_message(message())
    assert conversation.info().expires_at == clock.time + ttl
    conversation.append_messages(messages(2))
    clock.time += ttl
    assert not store.exists(conversation.key)
    assert store.touch(conversation.key).expires_at == clock.time + ttl
    assert store.touch(conversation.key, ttl=ttl).expires_at == clock.time + ttl


def test_expires_at_equals_updated_at_plus_ttl_without_a_clock(url: str) -> None:
    with Store(url) as store:
        store.create("k", ttl=TTL)
        for write in (
            lambda: store.append_message("k", message()),
            lambda: store.conversation("k").append_messages(messages(2)),
        ):
            write()
            info = store.conversation("k").info()
            assert info.expires_at == info.updated_at + TTL


RENEWALS: dict[str, Callable[[Store], object]] = {
    "appended to": lambda store: store.append_message("k", message()),
    "touched": lambda store: store.touch("k"),
}


@pytest.fixture(params=["created", *RENEWALS])
def expires_at(request: pytest.FixtureRequest, store: Store, clock: Clock) -> datetime:
    """Return `expires_at` of session "k" after it was created, appended to or touched."""
    store.create("k", ttl=TTL, messages=[message(id="a")])
    store.create("stays")
    if request.param != "created":
        clock.move(hours=1)
        RENEWALS[request.param](store)
    return clock.time + TTL


def test_session_is_live_one_microsecond_before_expires_at(store: Store, clock: Clock, expires_at: datetime) -> None:
    clock.time = expires_at - MICROSECOND
    assert store.exists("k")
    assert store.get("k").messages[0].content == "hello"
    assert store.conversation("k").info().expires_at == expires_at
    assert store.conversation("k").messages(last=1)
    assert {info.key for info in store.list_sessions().items} == {"k", "stays"}
    assert store.list_sessions(expired=True).items == []
    assert (store.count(), store.count(expired=True)) == (2, 0)
    stats = store.stats()
    assert (stats.expired, stats.expiring["expired"]) == (0, 0)
    assert store.expire(dry_run=True).sessions == store.expire().sessions == 0
    assert store.open("k", renew=True).get().expires_at == expires_at
    assert store.append_message("k", message()).seq > 1


def test_session_is_expired_exactly_at_expires_at(store: Store, clock: Clock, expires_at: datetime) -> None:
    clock.time = expires_at
    for call in (
        lambda: store.get("k"),
        lambda: store.append_message("k", message()),
        lambda: store.conversation("k").save_turn(messages(1)),
    ):
        with pytest.raises(SessionExpired) as raised:
            call()
        assert raised.value.expires_at == expires_at
    assert not store.exists("k")
    assert [info.key for info in store.list_sessions().items] == ["stays"]
    assert [info.key for info in store.list_sessions(expired=True).items] == ["k"]
    assert (store.count(), store.count(expired=True)) == (1, 1)
    stats = store.stats()
    assert (stats.expired, stats.expiring["expired"]) == (1, 1)
    preview = store.expire(dry_run=True)
    assert [info.key for info in preview.oldest] == ["k"]
    assert store.expire(now=expires_at - MICROSECOND).sessions == 0
    assert (preview.sessions, store.expire().sessions) == (1, 1)
    assert store.count(expired=None) == 1


def test_expire_treats_older_than_as_inclusive_and_created_before_as_exclusive(store: Store, clock: Clock) -> None:
    store.create("k")
    created_at = clock.time
    clock.move(hours=1)
    hour = timedelta(hours=1)
    assert store.expire(dry_run=True, older_than=hour + MICROSECOND).sessions == 0
    assert store.expire(dry_run=True, older_than=hour).sessions == 1
    assert store.expire(dry_run=True, created_before=created_at).sessions == 0
    assert store.expire(created_before=created_at).sessions == 0
    assert store.expire(dry_run=True, created_before=created_at + MICROSECOND).sessions == 1
    assert store.expire(older_than=hour + MICROSECOND).sessions == 0
    assert store.expire(older_than=hour).sessions == 1
