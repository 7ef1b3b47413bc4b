"""Invalid arguments: each is refused by name before anything is written."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from support.factories import message, messages

from lango_store import (
    AsyncStore,
    InvalidMessage,
    InvalidValue,
    LangoStoreError,
    Message,
    SchemaOutOfDate,
    Store,
    schema,
)
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


TIMES: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "list_sessions updated_since": ("updated_since", lambda store, time: store.list_sessions(updated_since=time)),
    "list_sessions created_since": ("created_since", lambda store, time: store.list_sessions(created_since=time)),
    "iter_sessions": ("created_since", lambda store, time: list(store.iter_sessions(created_since=time))),
    "count": ("created_before", lambda store, time: store.count(created_before=time)),
    "expire now": ("now", lambda store, time: store.expire(now=time)),
    "expire created_before": ("created_before", lambda store, time: store.expire(created_before=time)),
    "usage since": ("since", lambda store, time: store.usage(since=time)),
    "usage until": ("until", lambda store, time: store.usage(until=time)),
    "suspensions": ("due_before", lambda store, time: store.suspensions.list(due_before=time)),
    "search since": ("since", lambda store, time: store.search("oslo", since=time)),
    "search until": ("until", lambda store, time: store.conversation("k").search("oslo", until=time)),
    "get": ("as_of", lambda store, time: store.get("k", as_of=time)),
    "fork": ("as_of", lambda store, time: store.conversation("k").fork("new", as_of=time)),
    "diff": ("as_of", lambda store, time: store.conversation("k").versions.diff(0, time)),
}


@pytest.mark.parametrize("time", [NAIVE, "2026-01-01", date(2026, 1, 1), 1.5], ids=repr)
@pytest.mark.parametrize("argument", TIMES)
def test_time_that_is_not_an_aware_datetime_is_refused_by_name(store: Store, argument: str, time: Any) -> None:
    name, call = TIMES[argument]
    store.create("k")
    if name != "as_of":
        schema.enable_search(store.engine)
    shown = re.escape(f"{name}={time!r} is not a datetime with a time zone: pass one, such as datetime(2026")
    with pytest.raises(ValueError, match=shown):
        call(store, time)
    assert store.exists("k")
    assert not store.exists("new")


OPTIONS: dict[str, tuple[type[Exception], list[Any]]] = {
    "migrate": (TypeError, ["no", 1, None]),
    "default_ttl": (TypeError, [30, "30d", True]),
    "clock": (TypeError, [datetime(2026, 1, 1)]),
    "durability": (ValueError, ["none", None]),
    "token_counter": (TypeError, [4, "tokens"]),
    "on_statement": (TypeError, ["print"]),
    "retry": (ValueError, [30, timedelta(seconds=-1)]),
    "payload_threshold": (ValueError, [0, -1, 1.5, True, "1"]),
    "keep_removed": (ValueError, [0, timedelta(0), "30d", timedelta.max]),
    "replica": (TypeError, [5]),
}


@pytest.mark.parametrize("kind", [Store, AsyncStore])
@pytest.mark.parametrize("option", OPTIONS)
def test_store_refuses_an_invalid_option_by_name(url: str, kind: Callable[..., object], option: str) -> None:
    error, values = OPTIONS[option]
    for value in values:
        with pytest.raises(error, match=option):
            kind(url, **{option: value})


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(days=-1), timedelta.max])
def test_store_refuses_a_default_ttl_that_is_out_of_range(url: str, ttl: timedelta) -> None:
    with pytest.raises(ValueError, match=r"default_ttl .* is not between 0 and 100 years"):
        Store(url, default_ttl=ttl)


@pytest.mark.parametrize("option", ["default_ttl", "clock", "token_counter", "on_statement"])
def test_store_refuses_a_coroutine_function_as_an_option(url: str, option: str) -> None:
    async def function(*_: object) -> None:
        """Do nothing."""

    with pytest.raises(TypeError, match=f"{option}=.*not a coroutine function"):
        AsyncStore(url, **{option: function})  # type: ignore[arg-type]


def test_store_tests_no_option_that_its_constructor_lacks() -> None:
    options = {name for name, each in inspect.signature(Store).parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert options == OPTIONS.keys()


def test_result_of_a_default_ttl_function_is_checked(url: str) -> None:
    with Store(url, default_ttl=lambda key: INT) as store:
        for create in (lambda: store.create("k"), lambda: store.append_message("k", message(), create=True)):
            with pytest.raises(TypeError, match="the result of default_ttl is int"):
                create()
        assert not store.exists("k")


def test_older_than_given_as_a_number_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="older_than is int: give a timedelta"):
        store.expire(older_than=INT)


def test_clock_that_returns_a_number_is_refused(url: str) -> None:
    with (
        Store(url, clock=lambda: 1.5) as store,  # type: ignore[arg-type,return-value]
        pytest.raises(ValueError, match=r"clock\(\)=1.5 is not a datetime with a time zone"),
    ):
        store.create("k")


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
    with pytest.raises(InvalidMessage, match=r"is str, not a Message: pass Message\.user\(text\)"):
        store.append_message("k", text)
    with pytest.raises(InvalidMessage, match="is str, not a Message"):
        store.create("new", messages=text)
    assert store.conversation("k").messages() == []
    assert not store.exists("new")


CALLING: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("value", "remedy", "converted"),
    [
        ("hello", "Message.user(text)", Message.user("hello")),
        (CALLING, "Message.from_openai(dict)", Message.from_openai(CALLING)),
    ],
    ids=["text", "dict"],
)
def test_error_for_a_value_that_is_not_a_message_names_a_conversion_that_works(
    store: Store, value: Any, remedy: str, converted: Message
) -> None:
    store.create("k")
    conversation = store.conversation("k")
    for append in (
        lambda each: store.append_message("k", each),
        lambda each: conversation.append_messages([each]),
        lambda each: conversation.save_turn([each]),
        conversation.inbox.put,
    ):
        with pytest.raises(InvalidMessage, match=re.escape(f"not a Message: pass {remedy}")):
            append(value)
        append(converted)
    assert conversation.info().message_count == 3


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
        lambda store: store.search("oslo", limit=True),
        lambda store: store.list_sessions(limit=1.5),
        lambda store: store.conversation("k").messages(last=True),
        lambda store: store.conversation("k").messages(last="2"),
        lambda store: next(store.conversation("k").tail(after=None)),
        lambda store: next(store.conversation("k").tail(after=True)),
    ],
    ids=["limit of search", "limit of a list", "last", "last of text", "tail None", "tail True"],
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
