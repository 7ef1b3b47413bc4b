"""Arguments of wrong types: every public verb refuses them by their name, and nothing is written."""

from __future__ import annotations

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
from conftest import MakeDatabase, awaiting
from factories import message

from lango_store import AsyncStore, Conversation, LangoStoreError, Store

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
    "summary": message("short", tokens=1),
    "summarizer": lambda _: message("short", tokens=1),
    "page_size": 2,
}

NOT_CALLED = {"close", "using", "on_statement"}


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
    """Every verb with each of its arguments wrong in turn, the needed others right."""
    sound = SOUND | ({"begun": handle.begin_compaction()} if hasattr(handle, "begin_compaction") else {})
    alone = {"delete_where": {"user_id": "nobody"}}
    for name, verb in verbs(kind):
        if not hasattr(handle, name):  # what an asynchronous handle does otherwise
            continue
        names, needed = arguments(verb)
        chosen = {each: sound.get(each) for each in needed} | alone.get(name, {})
        for argument in names:
            for value in WRONG:
                yield name, argument, chosen | {argument: value}


def refused(what: Any, name: str, argument: str, values: dict[str, Any]) -> bool:
    """Whether a call was refused, in words that name what was wrong; True for one that reads or writes nothing."""
    try:
        found = getattr(what, name)(**values)
        if isinstance(found, Iterator):
            list(found)
    except LangoStoreError:
        return True
    except (TypeError, ValueError) as error:
        named = argument in str(error)
        if not named:
            raise AssertionError(f"{name}({argument}={values[argument]!r}): {error}") from error
        return True
    except Exception as error:
        raise AssertionError(f"{name}({argument}={values[argument]!r}): {type(error).__name__}: {error}") from error
    return False


def state(store: Store) -> Any:
    """What every write changes."""
    query = (
        "SELECT key, last_seq, message_count, turn_count, expires_at, title, user_id FROM lango_session ORDER BY key"
    )
    with store.engine.connect() as connection:
        return connection.exec_driver_sql(query).all()


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
    with Store(filled.engine) as plain:
        before = state(plain)
        for name, argument, values in calls(kind, handle):
            try:
                was_refused = refused(handle, name, argument, values)
            except AssertionError as error:
                faults.append(str(error))
                continue
            if (after := state(plain)) != before:
                if was_refused:
                    faults.append(f"{name}({argument}={values[argument]!r}) was refused and wrote")
                for row in after:
                    plain.delete(row[0])
                fill(plain)
                before = state(plain)
    assert not faults, "\n".join(faults)


def test_a_ttl_in_seconds_and_a_time_without_a_zone_say_what_to_give(filled: Store) -> None:
    wrong: Any = 60
    with pytest.raises(TypeError, match=r"ttl is int: give a timedelta, such as timedelta\(minutes=30\) or None"):
        filled.create("c", ttl=wrong)
    with pytest.raises(ValueError, match=r"updated_since=.* has no time zone: use datetime.now\(UTC\)"):
        filled.list_sessions(updated_since=datetime(2026, 11, 22))
    with pytest.raises(TypeError, match="renew is str: give True or False"):
        filled.get_or_create("c", renew=wrong and "no")  # type: ignore[arg-type]
    assert not filled.exists("c")
