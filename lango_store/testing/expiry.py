"""Checks of sessions that expire: hidden at once, revived on purpose only, and purged."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from lango_store.errors import SessionExists, SessionExpired, SessionNotFound
from lango_store.model import Message
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import Calls, contents, refused, same

HOUR: Final = timedelta(hours=1)


@check()
def an_expired_session_is_hidden_at_once(store: Store, clock: Clock) -> None:
    """Past its TTL a session is SessionExpired to reads and writes, and in no list or count."""
    store.create("k", ttl=HOUR, messages=[Message.user("a", id="a")])
    store.create("stays", ttl=None)
    clock.move(hours=1)
    calls: Calls = {
        "get": lambda: store.get("k"),
        "messages": lambda: store.messages("k"),
        "find_message": lambda: store.find_message("k", "a"),
        "append_message": lambda: store.append_message("k", Message.user("b")),
        "update": lambda: store.update("k", title="T"),
        "get_or_create": lambda: store.get_or_create("k"),
        "pop_message": lambda: store.pop_message("k"),
    }
    for what, call in calls.items():
        with refused(SessionExpired, f"{what} of a session past its TTL"):
            call()
    with refused(SessionExists, "create of a key that an expired session has"):
        store.create("k")
    listed = [info.key for info in store.list_sessions().items]
    same((store.exists("k"), listed, store.count()), (False, ["stays"], 1), "exists, list and count")
    same([info.key for info in store.iter_sessions(expired=True)], ["k"], "a list of expired sessions")


@check()
def an_append_moves_the_expiry(store: Store, clock: Clock) -> None:
    """An append moves the expiry to the TTL from then on, a read does not, and nothing moves it back."""
    store.create("k", ttl=HOUR)
    clock.move(minutes=40)
    store.get("k"), store.messages("k"), store.info("k")
    same(store.info("k").expires_at, clock.time + timedelta(minutes=20), "expires_at after reads")
    store.append_message("k", Message.user("a"))
    same(store.info("k").expires_at, clock.time + HOUR, "expires_at after an append")
    until = clock.time + HOUR
    clock.move(minutes=-30)
    store.append_message("k", Message.user("b"))
    same(store.info("k").expires_at, until, "expires_at after an append by a clock that went back")


@check()
def a_touch_revives(store: Store, clock: Clock) -> None:
    """touch moves the expiry, sets another TTL if one is given, and revives a session that is not purged yet."""
    store.create("k", ttl=HOUR, messages=[Message.user("a")])
    clock.move(hours=3)
    same(store.touch("k").expires_at, clock.time + HOUR, "expires_at after a touch")
    same(contents(store.messages("k")), ["a"], "the messages of the session that was revived")
    same(
        store.touch("k", ttl=timedelta(days=2)).expires_at, clock.time + timedelta(days=2), "expires_at by another TTL"
    )
    same(store.touch("k", ttl=None).expires_at, None, "expires_at without a TTL")


@check()
def an_expired_session_can_be_looked_at(store: Store, clock: Clock) -> None:
    """With expired=True a session past its TTL can be read, and stays expired."""
    before = store.create("k", ttl=HOUR, messages=[Message.user("a")])
    clock.move(hours=2)
    same(store.get("k", expired=True), before, "the session")
    same(store.info("k", expired=True).expires_at, before.expires_at, "its expiry")
    with refused(SessionExpired, "get after it was looked at"):
        store.get("k")


@check()
def an_expired_session_is_replaced_on_purpose(store: Store, clock: Clock) -> None:
    """renew=True, and an append with create=True, put a new session in the place of an expired one."""
    calls: Calls = {
        "get_or_create": lambda: store.get_or_create("k", renew=True, ttl=HOUR),
        "open": lambda: store.open("k", renew=True, ttl=HOUR),
        "append_message": lambda: store.append_message("k", Message.user("new"), create=True, ttl=HOUR),
    }
    for what, renew in calls.items():
        store.get_or_create("k", renew=True, ttl=HOUR, title="old")
        store.append_message("k", Message.user("old"))
        clock.move(hours=2)
        renew()
        found = store.get("k")
        expected = (None, ["new"] if what == "append_message" else [])
        same((found.title, contents(found.messages)), expected, f"the new session of {what}")
        clock.move(hours=2)


@check()
def a_purge_takes_what_is_past_and_nothing_else(store: Store, clock: Clock) -> None:
    """expire deletes what is past its TTL, for good, and reports it; a dry run reports the same and deletes nothing."""
    for number in range(6):
        ttl = timedelta(hours=number) if number else None
        store.create(f"k{number}", ttl=ttl, messages=[Message.user(n) for n in range(number)])
    clock.move(hours=3)
    preview = store.expire(dry_run=True)
    same((preview.sessions, preview.messages, store.count(expired=None)), (3, 6, 6), "a dry run, and what is there")
    report = store.expire(batch_size=2)
    same((report.sessions, report.messages), (3, 6), "sessions and messages that were purged")
    same([info.key for info in store.iter_sessions(expired=None)], ["k0", "k4", "k5"], "what is left")
    with refused(SessionNotFound, "touch of a session that was purged"):
        store.touch("k1")
    same(store.expire().sessions, 0, "sessions that a second purge took")


@check()
def a_purge_takes_what_is_idle_if_told_to(store: Store, clock: Clock) -> None:
    """expire(older_than=…) also takes sessions that are idle for so long, as far as its filters and limit say."""
    for number in range(6):
        store.create(f"k{number}", agent_id="x" if number < 4 else "y")
        clock.move(days=1)
    same(store.expire(older_than=timedelta(days=4), agent_id="y").sessions, 0, "sessions of an agent that are not idle")
    same(store.expire(older_than=timedelta(days=4), limit=1).sessions, 1, "sessions up to a limit")
    same(store.expire(older_than=timedelta(days=4)).sessions, 2, "sessions that are idle")
    same([info.key for info in store.iter_sessions()], ["k3", "k4", "k5"], "what is left")


@check(default_ttl=timedelta(hours=1))
def the_default_ttl_is_for_new_sessions(store: Store, clock: Clock) -> None:
    """A store's default_ttl counts for new sessions that are given none; None is never."""
    same(store.create("k").ttl_seconds, 3600, "the TTL of a session that is given none")
    same(store.create("l", ttl=None).expires_at, None, "expires_at of a session that never expires")
    same(store.create("m", ttl=timedelta(minutes=1)).ttl_seconds, 60, "a TTL that is given")
    store.append_message("n", Message.user("a"), create=True)
    same(store.info("n").ttl_seconds, 3600, "the TTL of a session that an append made")
