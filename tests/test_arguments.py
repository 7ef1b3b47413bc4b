"""Arguments of wrong types: every public verb refuses them by their name, and nothing is written."""

from __future__ import annotations

import contextlib
import inspect
import math
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock, MakeDatabase, awaiting
from factories import message

from lango_store import AsyncStore, Conversation, LangoStoreError, Store, create_engine, interchange, schema, window
from lango_store.archive import Archive

WRONG: list[Any] = [
    Decimal(1),
    Fraction(1, 2),
    True,
    math.nan,
    math.inf,
    b"bytes",
    0,
    -1,
    2**70,
    1.5,
    "text",
    "\ud800",
    "",
    [],
    [1],
    {},
    {"a": object()},
    (),
    object(),
    None,
    datetime(2026, 11, 22),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, tzinfo=UTC),
    timedelta(days=10**6),
    timedelta(0),
    ...,
]

SOUND: dict[str, Any] = {
    "key": "a",
    "message": message("hello", tokens=1),
    "messages": [message("hello", tokens=1)],
    "after": 0,
    "id": "i",
    "archive": "/nonexistent/archive.db",
    "user_id": "u",
    "last": 1,
    "turn": 1,
    "seq_or_id": 1,
    "summary": message("short", tokens=1),
    "summarizer": lambda _: message("short", tokens=1),
    "page_size": 2,
    "scope": "a",
    "words": "hello",
    "values": {"n": 1},
}

SAID_AS = {"database": "url"}

NOT_CALLED = {"close", "using", "on_statement"}

FUNCTIONS: dict[str, list[Callable[..., Any]]] = {
    "schema": [
        schema.upgrade,
        schema.downgrade,
        schema.stamp,
        schema.current,
        schema.undone,
        schema.rows,
        schema.namespace,
        schema.check,
        schema.sql,
        schema.enable_search,
        schema.disable_search,
        schema.rebuild_search,
        schema.search_status,
    ],
    "window": [
        window.answers,
        window.tokens_of,
        window.legal_suffix,
        window.without_orphans,
        window.tail_within,
        window.plan_eviction,
        window.evict,
        window.fit,
        window.completion_budget,
        window.as_prompt,
    ],
    "interchange": [interchange.recognise, interchange.files_of, interchange.import_path, interchange.export],
    "constructors": [Store, AsyncStore, Archive, create_engine],
}
"""What is not a verb of a handle; `schema.run` and `schema.include_name` are for Alembic to call."""


CHOSEN: dict[str, dict[str, Any]] = {"export": {"keys": ["a"]}}
"""Arguments that a function wants although it can do without each."""


def verbs(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, verb in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and name not in NOT_CALLED:
            yield name, verb


def arguments(verb: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The names of all its arguments, of a TypedDict that it unpacks too, and of those that are needed."""
    names: list[str] = []
    needed: list[str] = []
    for parameter in list(inspect.signature(verb).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            names += typing.get_args(typing.get_type_hints(verb)[parameter.name])[0].__optional_keys__
            continue
        names.append(parameter.name)
        if parameter.default is parameter.empty:
            needed.append(parameter.name)
    return names, needed


def calls(kind: type, handle: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every verb with each of its arguments wrong in turn, the other required ones right."""
    sound = SOUND | ({"pending": handle.begin_compaction()} if hasattr(handle, "begin_compaction") else {})
    alone = {"delete_where": {"user_id": "nobody"}}
    for name, verb in verbs(kind):
        if not hasattr(handle, name):  # what an asynchronous handle does otherwise
            continue
        names, needed = arguments(verb)
        chosen = {each: sound.get(each) for each in needed} | alone.get(name, {})
        for argument in names:
            for value in WRONG:
                yield name, argument, chosen | {argument: value}


def calls_of_functions(functions: list[Callable[..., Any]], sound: dict[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Every function with each of its arguments wrong in turn, the other required ones right."""
    for function in functions:
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        needed = {p.name: sound[p.name] for p in parameters if p.default is inspect.Parameter.empty}
        for parameter in parameters:
            for value in WRONG:
                yield function, parameter.name, needed | CHOSEN.get(function.__name__, {}) | {parameter.name: value}


def refused(call: Callable[..., Any], argument: str, values: dict[str, Any]) -> bool:
    """Whether a call was refused, in words that name what was wrong; True for one that reads or writes nothing."""
    name = getattr(call, "__name__", str(call))
    try:
        found = call(**values)
        if isinstance(found, Iterator):
            list(found)
        if isinstance(found, Archive):
            found.close()
    except LangoStoreError:
        return True
    except (TypeError, ValueError) as error:
        named = any(each in str(error).lower() for each in (argument.lower(), SAID_AS.get(argument, argument)))
        if not named:
            raise AssertionError(f"{name}({argument}={values[argument]!r}): {error}") from error
        return True
    except Exception as error:
        raise AssertionError(f"{name}({argument}={values[argument]!r}): {type(error).__name__}: {error}") from error
    return False


@contextlib.contextmanager
def stating(store: Store) -> Iterator[Callable[[], list[Any]]]:
    """Return a function that returns what every write changes, read by one statement on a connection of its own."""
    query = (
        "SELECT key, last_seq, message_count, turn_count, expires_at, title, user_id FROM lango_session ORDER BY key"
    )
    with contextlib.closing(store.engine.raw_connection()) as connection:
        driver: Any = connection.driver_connection
        if store.engine.dialect.name == "postgresql":
            driver.autocommit = True
        yield lambda: list(driver.execute(query))
        connection.invalidate()


def fill(store: Store) -> None:
    store.create("a", messages=[message("one", id="i", tokens=1), message("two", tokens=1)])
    store.create("b")


@pytest.fixture(params=["sync", "async"])
def filled(request: pytest.FixtureRequest, make_database: MakeDatabase) -> Iterator[Store]:
    url = make_database()
    with Store(url) as store:
        fill(store)
        if request.param == "sync":
            yield store
            return
    with awaiting(AsyncStore(url)) as store:
        yield store


@pytest.mark.parametrize("kind", [Store, Conversation])
def test_arguments_of_wrong_types_are_refused_by_name_and_write_nothing(
    filled: Store, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handle = filled if kind is Store else filled.conversation("a")
    faults = []
    with Store(filled.engine) as plain, stating(plain) as state:
        before = state()
        for name, argument, values in calls(kind, handle):
            try:
                was_refused = refused(getattr(handle, name), argument, values)
            except AssertionError as error:
                faults.append(str(error))
                continue
            if (after := state()) != before:
                if was_refused:
                    faults.append(f"{name}({argument}={values[argument]!r}) was refused and wrote")
                for row in after:
                    plain.delete(row[0])
                fill(plain)
                before = state()
    assert not faults, "\n".join(faults)


def faults_of(functions: list[Callable[..., Any]], sound: dict[str, Any], is_allowed: Callable[[], bool]) -> list[str]:
    faults = []
    for function, argument, values in calls_of_functions(functions, sound):
        try:
            refused(function, argument, values)
        except AssertionError as error:
            faults.append(str(error))
        if not is_allowed():
            faults.append(f"{function.__name__}({argument}={values[argument]!r}) changed what is there")
            break
    return faults


def test_functions_and_constructors_refuse_arguments_of_wrong_types_by_name(
    make_database: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = make_database()
    with Store(url) as store, stating(store) as state:
        fill(store)
        before = state()
        sound = SOUND | {
            "database": url,
            "url": url,
            "revision": schema.head(),
            "max_tokens": 1,
            "need": 1,
            "budget": 1,
            "context": 1,
            "plan": [(0, 0)],
            "path": tmp_path / "archive.db",
            "store": store,
            "source": tmp_path / "nothing",
            "to": tmp_path / "out",
            "format": "jsonl",
        }
        Archive(tmp_path / "archive.db", create=True).close()
        faults = [
            fault
            for functions in FUNCTIONS.values()
            for fault in faults_of(functions, sound, lambda: state() == before)
        ]
        assert not faults, "\n".join(faults)


def test_an_archive_refuses_arguments_of_wrong_types_by_name(
    make_database: MakeDatabase, tmp_path: Path, clock: Clock
) -> None:
    with Store(make_database(), clock=clock) as store, Archive(tmp_path / "archive.db", create=True) as archive:
        fill(store)
        with store.access.transaction() as connection:
            archive.keep(connection, ["a"], clock())
            before = archive.count(key_prefix="a")
            methods: list[Callable[..., Any]] = [
                archive.search,
                archive.count,
                archive.forget,
                archive.redact,
                archive.restore,
                archive.keep,
            ]
            sound = {
                "connection": connection,
                "key": "nobody",
                "keys": ["a"],
                "now": clock(),
                "ttl": None,
                "text": "one",
                "seq_or_id": 1,
            }
            only = {"key_prefix": "nobody"}
            faults = []
            for method, argument, values in calls_of_functions(methods, sound):
                filtered = only if "key_prefix" in inspect.signature(method).parameters else {}
                try:
                    refused(method, argument, filtered | values)
                except AssertionError as error:
                    faults.append(str(error))
                assert archive.count(key_prefix="a") == before, f"{method.__name__}({argument}={values[argument]!r})"
        assert not faults, "\n".join(faults)


def test_what_a_list_holds_is_refused_by_its_place() -> None:
    wrong: Any = [message("one"), {"role": "user"}]
    with pytest.raises(TypeError, match=r"messages\[1\] is dict: give a Message"):
        window.legal_suffix(wrong)
    with pytest.raises(TypeError, match=r"plan\[0\] is list: give \(int, int\)"):
        window.evict([message("one")], [[0, "one"]])  # type: ignore[list-item]


def test_a_ttl_in_seconds_and_a_time_without_a_zone_say_what_to_give(filled: Store) -> None:
    wrong: Any = 60
    with pytest.raises(TypeError, match=r"ttl is int: give a timedelta, such as timedelta\(minutes=30\) or None"):
        filled.create("c", ttl=wrong)
    with pytest.raises(ValueError, match=r"updated_since=.* has no time zone: use datetime.now\(UTC\)"):
        filled.list_sessions(updated_since=datetime(2026, 11, 22))
    with pytest.raises(TypeError, match="renew is str: give True or False"):
        filled.get_or_create("c", renew=wrong and "no")  # type: ignore[arg-type]
    assert not filled.exists("c")
