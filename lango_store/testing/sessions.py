"""Checks of sessions as such: made, looked up, changed, listed, deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from lango_store.errors import Conflict, InvalidKey, InvalidMessage, SessionExists, SessionNotFound
from lango_store.model import Message
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import Calls, contents, holds, refused, same

FIELDS: Final[dict[str, Any]] = {
    "agent_id": "support",
    "user_id": "ann",
    "title": "Weather in Oslo",
    "model": "gpt-x",
    "settings": {"thinking": "high", "nested": [1, {"a": None}]},
    "metadata": {"channel": "telegram"},
    "tools": [{"name": "get_weather"}],
}


@check()
def a_session_comes_back_as_it_was_made(store: Store, clock: Clock) -> None:
    """A session comes back with the fields it was made with, its times, and no messages."""
    made = store.create("k", **FIELDS)
    found = store.get("k")
    same({name: getattr(found, name) for name in FIELDS}, FIELDS, "fields of the session")
    same((found.key, found.created_at, found.updated_at), ("k", clock.time, clock.time), "its key and times")
    same((found.messages, found.last_seq, found.message_count), ([], 0, 0), "its messages")
    same(made, found, "what create returned")
    same(store.info("k").revision, found.revision, "its revision, read without messages")


@check()
def a_taken_key_is_refused(store: Store, clock: Clock) -> None:
    """Creating a session under a key that is taken is SessionExists, and changes nothing."""
    store.create("k", title="first", messages=[Message.user("hello")])
    before = store.get("k")
    with refused(SessionExists, "create of a key that is taken"):
        store.create("k", title="second", messages=[Message.user("other")])
    same(store.get("k"), before, "the session that was there")


@check()
def no_key_means_a_new_one(store: Store, clock: Clock) -> None:
    """A session that is created without a key has one that no other has."""
    keys = {store.create().key for _ in range(10)}
    same(len(keys), 10, "number of keys given out")
    holds(all(store.exists(key) for key in keys), "a session is not there under the key that create returned")


@check()
def what_is_not_there_is_said(store: Store, clock: Clock) -> None:
    """Reads and writes of a session that is not there are SessionNotFound, and make none."""
    calls: Calls = {
        "get": lambda: store.get("k"),
        "info": lambda: store.info("k"),
        "messages": lambda: store.messages("k"),
        "append_message": lambda: store.append_message("k", Message.user("hello")),
        "update": lambda: store.update("k", title="T"),
        "touch": lambda: store.touch("k"),
        "clear": lambda: store.clear("k"),
    }
    for what, call in calls.items():
        with refused(SessionNotFound, f"{what} of a session that is not there"):
            call()
    same((store.exists("k"), store.delete("k"), store.count()), (False, False, 0), "exists, delete and count")


@check()
def get_or_create_makes_a_session_once(store: Store, clock: Clock) -> None:
    """get_or_create and open make a session that is missing, and leave one alone that is there."""
    store.get_or_create("k", title="first", messages=[Message.user("hello")])
    found = store.get_or_create("k", title="second", messages=[Message.user("hello")])
    same((found.title, contents(found.messages)), ("first", ["hello"]), "the session after a second call")
    same(store.open("k", title="third").info().title, "first", "its title after open")
    same(store.open("l", title="third").info().title, "third", "the title of a session that open made")


@check()
def an_update_changes_what_it_names(store: Store, clock: Clock) -> None:
    """update changes what it names only, None clears, JSON is replaced whole, and updated_at moves on activity only."""
    made = store.create("k", **FIELDS)
    clock.move(hours=1)
    changed = store.update("k", title="Snow", user_id=None, settings={"thinking": "low"})
    same((changed.title, changed.user_id, changed.settings), ("Snow", None, {"thinking": "low"}), "what was named")
    same((changed.agent_id, changed.metadata), (made.agent_id, made.metadata), "what was not named")
    same(changed.updated_at, made.updated_at, "updated_at after an update that is not activity")
    same(store.update("k", activity=True).updated_at, clock.time, "updated_at after an update that is activity")
    same(store.info("k").title, "Snow", "the title, read again")


@check()
def every_write_moves_the_revision(store: Store, clock: Clock) -> None:
    """The revision is another after every write to a session, and the same after a read."""
    seen = [store.create("k", messages=[Message.user("hello", id="m")]).revision]
    handle = store.conversation("k")
    calls: Calls = {
        "append_message": lambda: store.append_message("k", Message.user("again")),
        "update": lambda: store.update("k", title="T"),
        "save_turn": lambda: handle.save_turn([Message.user("a turn")]),
        "update_message": lambda: store.update_message("k", "m", Message.user("hello!")),
        "set_values": lambda: store.set_values("k", {"step": 1}),
        "pop_message": lambda: store.pop_message("k"),
        "truncate": lambda: store.truncate("k", after=1),
        "clear": lambda: store.clear("k"),
    }
    for what, write in calls.items():
        write()
        revision = store.info("k").revision
        holds(revision not in seen, f"{what} left the session at a revision that it had before")
        seen.append(revision)
    store.get("k"), store.messages("k"), store.values("k")
    same(store.info("k").revision, seen[-1], "the revision after reads")


@check()
def a_stale_write_changes_nothing(store: Store, clock: Clock) -> None:
    """A write that expects a revision the session no longer has is Conflict, and changes nothing."""
    stale = store.create("k", messages=[Message.user("hello")]).revision
    fresh = store.update("k", title="T", expect=stale).revision
    before = store.get("k")
    handle = store.conversation("k")
    calls: Calls = {
        "update": lambda: store.update("k", title="U", expect=stale),
        "append_message": lambda: store.append_message("k", Message.user("late"), expect=stale),
        "save_turn": lambda: handle.save_turn([Message.user("late")], expect=stale),
        "update_message": lambda: store.update_message("k", 1, Message.user("late"), expect=stale),
        "delete_message": lambda: store.delete_message("k", 1, expect=stale),
        "delete": lambda: store.delete("k", expect=stale),
    }
    for what, write in calls.items():
        with refused(Conflict, f"{what} that expects a revision of before"):
            write()
    same(store.get("k"), before, "the session after stale writes")
    same(store.append_message("k", Message.user("in time"), expect=fresh).seq, 2, "seq of a write in time")


@check()
def a_deleted_session_is_gone(store: Store, clock: Clock) -> None:
    """A deleted session is gone with all it had, and one that is made anew under its key begins with nothing."""
    store.create("k", title="T", messages=[Message.user("secret", id="m")])
    store.conversation("k").save_turn([Message.user("secret")], {"tokens": 3})
    store.set_values("k", {"secret": 1})
    same((store.delete("k"), store.delete("k"), store.exists("k")), (True, False, False), "delete, twice, and exists")
    found = store.create("k")
    handle = store.conversation("k")
    same((found.title, found.last_seq, found.turn_count), (None, 0, 0), "the new session's fields")
    same((store.all_messages("k"), handle.turns(), store.values("k")), ([], [], {}), "what the new session holds")
    same(store.append_message("k", Message.user("new", id="m")).replayed, False, "an id of the old session, replayed")


@check()
def a_list_is_by_last_update_and_goes_on_by_its_cursor(store: Store, clock: Clock) -> None:
    """list_sessions gives the last updated first, page by page, each once; order="created" the last made first."""
    for number in range(7):
        store.create(f"k{number}")
        clock.move(minutes=1)
    store.append_message("k2", Message.user("hello"))
    expected = ["k2", "k6", "k5", "k4", "k3", "k1", "k0"]
    found: list[str] = []
    cursor = None
    for _ in range(3):
        page = store.list_sessions(limit=3, cursor=cursor)
        found += [info.key for info in page.items]
        cursor = page.next
    same((found, cursor), (expected, None), "keys of three pages, and the last cursor")
    created = [info.key for info in store.list_sessions(order="created").items]
    same(created, [f"k{number}" for number in reversed(range(7))], "keys in the order of their making")


@check()
def filters_narrow_a_list_down(store: Store, clock: Clock) -> None:
    """Filters choose the same sessions in list_sessions, iter_sessions and count."""
    for number in range(6):
        store.create(f"{'ab'[number % 2]}:{number}", user_id=f"u{number % 3}", agent_id="x", title=f"Talk {number}")
        clock.move(days=1)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"user_id": "u1"}, ["a:4", "b:1"]),
        ({"key_prefix": "b:"}, ["b:1", "b:3", "b:5"]),
        ({"agent_id": "x", "user_id": "u2"}, ["a:2", "b:5"]),
        ({"agent_id": "y"}, []),
        ({"title": "talk 3"}, ["b:3"]),
        ({"created_before": clock.time - timedelta(days=4)}, ["a:0", "b:1"]),
        ({"updated_since": clock.time - timedelta(days=2)}, ["a:4", "b:5"]),
    ]
    for which, expected in cases:
        listed = sorted(info.key for info in store.list_sessions(**which).items)
        walked = [info.key for info in store.iter_sessions(page_size=2, **which)]
        same((listed, walked, store.count(**which)), (expected, expected, len(expected)), f"sessions with {which}")


@check()
def delete_where_forgets_what_it_names(store: Store, clock: Clock) -> None:
    """delete_where takes all sessions that its filters name, expired ones too, no others, and wants a filter."""
    for number in range(5):
        store.create(f"k{number}", user_id="ann" if number % 2 else "bob", ttl=timedelta(minutes=1 + 9 * number))
    clock.move(minutes=15)
    with refused(ValueError, "delete_where without a filter"):
        store.delete_where()
    same(store.delete_where(user_id="ann"), 2, "sessions of ann that were deleted")
    same(sorted(info.key for info in store.iter_sessions(expired=None)), ["k0", "k2", "k4"], "what is left")


@check()
def what_cannot_be_kept_is_refused(store: Store, clock: Clock) -> None:
    """A key, or a field, that could not be given back is InvalidKey or InvalidMessage, and makes no session."""
    for key in ("", "a\0b", "\ud800", "k" * 513):
        with refused(InvalidKey, f"the key {key[:10]!r} of {len(key)} characters"):
            store.create(key)
    with refused(InvalidMessage, "settings that are not JSON"):
        store.create("k", settings={"x": object()})
    with refused(InvalidMessage, "a first message that is not JSON"):
        store.create("k", messages=[Message.user("fine"), Message.user({"x": float("nan")})])
    same(store.count(expired=None), 0, "sessions that were made")
    same(store.create("k" * 512).key, "k" * 512, "a key of 512 characters")


@check()
def what_is_read_is_the_reader_s(store: Store, clock: Clock) -> None:
    """Whatever a reader does to what it read changes nothing that is stored."""
    store.create("k", settings={"a": [1]}, messages=[Message.user({"b": [2]})])
    found = store.get("k")
    found.settings["a"].append(3)
    found.messages[0].content["b"].append(4)
    found.messages.clear()
    again = store.get("k")
    same((again.settings, contents(again.messages)), ({"a": [1]}, [{"b": [2]}]), "what is stored")
