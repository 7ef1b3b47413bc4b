"""Invalid arguments: each is refused by name before anything is written."""

import copy
import pickle
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.factories import message, messages

from lango_store import AsyncStore, InvalidMessage, InvalidValue, LangoStoreError, SchemaOutOfDate, Store, schema
from lango_store.testing import Clock

pytestmark = pytest.mark.one_database

NAIVE = datetime(2026, 11, 22)
INT: Any = 60


@pytest.mark.parametrize("name", ["last", "max_tokens"])
def test_history_refuses_negative_bounds(store: Store, name: str) -> None:
    store.create("k")
    bounds: dict[str, Any] = {name: -1}
    with pytest.raises(ValueError, match=f"{name}=-1 is not a number"):
        store.conversation("k").history(**bounds)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.list_sessions(updated_since=NAIVE),
        lambda store: store.count(created_before=NAIVE),
        lambda store: store.expire(now=NAIVE),
        lambda store: store.expire(created_before=NAIVE),
    ],
    ids=["list_sessions", "count", "expire now", "expire created_before"],
)
def test_time_without_a_time_zone_is_refused(store: Store, call: Callable[[Store], object]) -> None:
    store.create("k")
    with pytest.raises(ValueError, match="time zone"):
        call(store)
    assert store.exists("k")


@pytest.mark.parametrize("seq", [-1, 1.5, True, "1", 2**63])
def test_invalid_seq_or_revision_is_refused(store: Store, seq: Any) -> None:
    session = store.create("k", messages=messages(3))
    conversation = store.conversation("k")
    calls: list[Callable[[], object]] = [
        lambda: store.append_message("k", message(), after=seq),
        lambda: store.append_message("k", message(), expect=seq),
        lambda: store.conversation("k").append_messages(messages(2), replace_after=seq),
        lambda: conversation.save_turn(messages(2), after=seq),
        lambda: store.conversation("k").update(title="new", expect=seq),
        lambda: conversation.truncate(after=seq),
        lambda: conversation.fork("fork", upto=seq),
        lambda: store.delete("k", expect=seq),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"={seq!r} is not a (seq|revision)"):
            call()
    assert store.get("k") == session
    assert not store.exists("fork")


def test_ttl_given_as_a_number_is_refused(store: Store) -> None:
    for call in (store.create, store.open):
        with pytest.raises(TypeError, match=r"ttl is int: give a timedelta, such as timedelta\(minutes=30\)"):
            call("k", ttl=INT)
    assert not store.exists("k")
    store.create("k", ttl=timedelta(hours=1))
    with pytest.raises(TypeError, match="ttl is int"):
        store.touch("k", ttl=INT)


def test_text_instead_of_messages_is_refused(store: Store) -> None:
    store.create("k")
    text: Any = "hello"
    with pytest.raises(InvalidMessage, match="is str, not a Message"):
        store.conversation("k").append_messages(text)
    with pytest.raises(InvalidMessage, match="is str, not a Message"):
        store.create("new", messages=text)
    assert store.conversation("k").messages() == []
    assert not store.exists("new")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
@pytest.mark.parametrize("name", ["agent_id", "user_id", "key_prefix", "title"])
def test_filter_with_nul_or_surrogate_is_refused(store: Store, name: str, text: str) -> None:
    store.create("k")
    filters: dict[str, Any] = {name: text}
    for call in (store.list_sessions, store.count):
        with pytest.raises(InvalidValue, match=name):
            call(**filters)
    if name != "title":
        with pytest.raises(InvalidValue, match=name):
            store.delete_where(**filters)
        with pytest.raises(InvalidValue, match=name):
            store.expire(**filters)
    assert store.exists("k")


LONG_ARGUMENTS: dict[str, Callable[[Store], object]] = {
    "key": lambda store: store.get("k" * 512),
    "id": lambda store: store.conversation("s").edits.delete("i" * 512),
    "order": lambda store: store.list_sessions(order="o" * 100_000),  # type: ignore[arg-type]
    "position": lambda store: store.at("p" * 100_000),
    "role": lambda store: store.append_message("s", message(role="user").model_copy(update={"role": "r" * 100_000})),
    "field": lambda store: store.create("new", **{"f" * 100_000: INT}),
    "search role": lambda store: store.search("word", role="r" * 100_000),
    "revision": lambda store: store.delete("s", expect=[1] * 100_000),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("argument", LONG_ARGUMENTS)
def test_error_shortens_a_long_argument(store: Store, argument: str) -> None:
    store.create("s")
    with pytest.raises((LangoStoreError, ValueError, TypeError)) as raised:
        LONG_ARGUMENTS[argument](store)
    assert len(str(raised.value)) < 700
    assert "…" in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.search("oslo", offset=True),
        lambda store: store.search("oslo", limit=True),
        lambda store: store.list_sessions(limit=1.5),
        lambda store: store.conversation("k").messages(last=True),
        lambda store: store.conversation("k").messages(last="2"),
        lambda store: next(store.conversation("k").tail(after=None)),
        lambda store: next(store.conversation("k").tail(after=True)),
    ],
    ids=["offset", "limit of search", "limit of a list", "last", "last of text", "tail None", "tail True"],
)
def test_value_that_is_not_an_int_is_refused(store: Store, call: Callable[[Any], object]) -> None:
    store.create("k", messages=messages(2))
    with pytest.raises(ValueError, match="="):
        call(store)


@pytest.mark.parametrize("value", [True, 1.5, "1"])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("batch_size", lambda store, value: store.expire(older_than=timedelta(0), batch_size=value)),
        ("batch_size", lambda store, value: store.delete_where(key_prefix="k", batch_size=value)),
        ("limit", lambda store, value: store.expire(older_than=timedelta(0), limit=value)),
        ("page_size", lambda store, value: list(store.iter_sessions(page_size=value))),
        ("page_size", lambda store, value: list(store.conversation("k").iter_messages(page_size=value))),
        ("threshold", lambda store, value: store.maintenance.move_payloads(threshold=value)),
        ("after", lambda store, value: store.conversation("k").versions.changes(after=value)),
        ("step", lambda store, value: store.conversation("k").history(last=2, step=value)),
        ("step_tokens", lambda store, value: store.conversation("k").history(max_tokens=9, step_tokens=value)),
    ],
)
def test_number_that_is_not_an_int_is_refused_by_name(
    store: Store, clock: Clock, name: str, call: Callable[[Store, Any], object], value: Any
) -> None:
    store.create("k", messages=messages(2))
    clock.move(hours=1)
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} ")):
        call(store, value)
    assert store.conversation("k").info().message_count == 2


@pytest.mark.parametrize("copying", [copy.deepcopy, pickle.dumps])
def test_store_and_conversation_cannot_be_pickled_or_deep_copied(
    store: Store, copying: Callable[[object], object]
) -> None:
    for each in (store, store.conversation("k"), AsyncStore(store), AsyncStore(store).conversation("k")):
        with pytest.raises(TypeError, match="pass the URL"):
            copying(each)


@pytest.mark.slow
def test_search_index_before_the_first_call_of_a_migrating_store_names_ping(empty_url: str) -> None:
    with Store(empty_url, migrate=True) as store:
        with pytest.raises(SchemaOutOfDate, match=r"call ping\(\)"):
            schema.enable_search(store.engine)
        store.ping()
        schema.enable_search(store.engine)
        assert store.search("oslo").items == []
