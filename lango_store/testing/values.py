"""Checks of values: JSON by name, a session's own or shared."""

from __future__ import annotations

import json
from typing import Any, Final

from lango_store.errors import Conflict, InvalidKey, InvalidMessage, SessionNotFound
from lango_store.model import Message
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import refused, same
from lango_store.testing.messages import NOT_JSON, ODD_JSON

NAMED: Final[dict[str, Any]] = {f"v{number:02}": value for number, value in enumerate(ODD_JSON)}


@check()
def any_json_is_a_value(store: Store, clock: Clock) -> None:
    """A value is any JSON, None too, and comes back as it was; what is not JSON is refused, and none of it is set."""
    store.set_values("shared", NAMED)
    same(json.dumps(store.values("shared")), json.dumps(NAMED), "the values")
    for wrong in NOT_JSON:
        with refused(InvalidMessage, f"a value with {wrong!r}"):
            store.set_values("shared", {"new": 1, "wrong": {"x": wrong}})
    same("new" in store.values("shared"), False, "whether a value beside one that was refused is there")


@check()
def other_names_stay(store: Store, clock: Clock) -> None:
    """set_values leaves other names as they are; values gives them in the order of their names, by a prefix too."""
    store.set_values("shared", {"b": 1, "a": {"x": 1}, "ab": 2})
    store.set_values("shared", {"a": {"y": 2}, "c": None})
    found = store.values("shared")
    same(list(found.items()), [("a", {"y": 2}), ("ab", 2), ("b", 1), ("c", None)], "the values")
    same(store.values("shared", prefix="a"), {"a": {"y": 2}, "ab": 2}, "those with a prefix")
    same(store.values("another"), {}, "a scope that nobody has set")


@check()
def values_are_dropped_by_name(store: Store, clock: Clock) -> None:
    """drop_values deletes the values with these names, or all of a scope, and says how many there were."""
    store.set_values("shared", {"a": 1, "b": 2, "c": 3})
    store.set_values("another", {"a": 1})
    same(store.drop_values("shared", ["a", "nobody"]), 1, "how many were dropped by name")
    same((store.values("shared"), store.drop_values("shared")), ({"b": 2, "c": 3}, 2), "the rest, and how many it was")
    same((store.values("shared"), store.values("another")), ({}, {"a": 1}), "both scopes")


@check()
def a_session_s_own_values_go_with_it(store: Store, clock: Clock) -> None:
    """Values in the scope of a session's key go when it goes; shared values stay."""
    store.create("k", values={"k": {"step": 1}, "shared": {"step": 2}})
    store.conversation("k").set_values({"more": 3})
    same(store.conversation("k").values(), {"more": 3, "step": 1}, "the session's own")
    store.clear("k")
    same(store.values("k"), {"more": 3, "step": 1}, "the session's own, its messages cleared")
    store.delete("k")
    store.create("k")
    same((store.values("k"), store.values("shared")), ({}, {"step": 2}), "own and shared values after a deletion")


@check()
def values_land_with_a_message_or_not_at_all(store: Store, clock: Clock) -> None:
    """Values of an append land with its message, or neither does; a message that is replayed sets none again."""
    store.create("k")
    given = {"k": {"step": 1}, "shared": {"by": "k"}}
    store.append_message("k", Message.user("a", id="a"), values=given)
    same((store.values("k"), store.values("shared")), ({"step": 1}, {"by": "k"}), "the values")
    with refused(Conflict, "an append with values after a seq that is not the last"):
        store.append_message("k", Message.user("b"), after=0, values={"k": {"step": 2}, "shared": {"by": "b"}})
    store.set_values("k", {"step": 3})
    store.append_message("k", Message.user("a", id="a"), values=given)
    same(
        (store.values("k"), store.values("shared")),
        ({"step": 3}, {"by": "k"}),
        "the values after a conflict and a replay",
    )


@check()
def another_session_s_values_are_left_alone(store: Store, clock: Clock) -> None:
    """An append sets no values of another session; no session is made under the key of a shared scope with values."""
    store.create("k")
    store.create("l", values={"l": {"step": 1}})
    store.set_values("shared", {"a": 1})
    with refused(InvalidKey, "an append with values of another session"):
        store.append_message("k", Message.user("a"), values={"l": {"step": 2}})
    with refused(InvalidKey, "a session under the key of a shared scope"):
        store.create("shared")
    same((store.messages("k"), store.values("l"), store.exists("shared")), ([], {"step": 1}, False), "what is stored")


@check()
def values_of_a_session_need_it(store: Store, clock: Clock) -> None:
    """A handle's values are those of a session that is there; to set them moves its revision, not its updated_at."""
    store.create("k")
    before = store.info("k")
    with refused(SessionNotFound, "values of a session that is not there"):
        store.conversation("nobody").set_values({"a": 1})
    same(store.values("nobody"), {}, "values of a session that is not there")
    clock.move(hours=1)
    store.set_values("k", {"a": 1})
    after = store.info("k")
    same(
        (after.updated_at, after.revision != before.revision),
        (before.updated_at, True),
        "updated_at, and a new revision",
    )
