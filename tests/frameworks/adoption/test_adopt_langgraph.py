"""Adoption of LangGraph's threads: afterwards, `LangoSaver` has their histories, and graphs resume."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")
from frameworks.langgraph.graphs import Reversing, asked, built, config, with_delta_channel, with_messages
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from support.databases import MakeDatabase

from lango_store import Message, Store, interchange
from lango_store.integrations.langgraph import LangoSaver

from .adopting import adopt, kill_adoption, states

pytestmark = pytest.mark.timeout(300)

Open = Callable[[str], AbstractContextManager[Any]]


@contextmanager
def open_sqlite(url: str) -> Iterator[Any]:
    with SqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
        yield saver


@contextmanager
def open_postgres(url: str) -> Iterator[Any]:
    with PostgresSaver.from_conn_string(url.replace("+psycopg", "")) as saver:
        saver.setup()
        yield saver


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'graphs.db'}"


def fill(saver: Any, count: int) -> list[str]:
    """Run graphs with random plans in several threads, and return the ids of the threads."""
    chance = random.Random(count)
    threads = [f"user/{number}" for number in range(count)]
    for thread in threads:
        for number in range(chance.randrange(1, 4)):
            plan = " ".join(chance.sample(["tool", "edit", "remove", "branch", "sub", "wait"], 3))
            built(saver).invoke({"messages": [asked("Hello", f"q{number}")], "plan": plan}, config(thread))
    for number in range(4):
        with_delta_channel(saver).invoke({"items": [number]}, config("delta"))
    return [*threads, "delta"]


def check_equal(saver: Any, store: Store, threads: list[str]) -> None:
    for thread in threads:
        found = [*LangoSaver(store).list(config(thread))]
        assert found == [*saver.list(config(thread))]


def check_resumed(saver: Any, store: Store, threads: list[str]) -> None:
    """Continue each thread with both savers; the results must be equal."""
    for thread in threads:
        state = built(saver).get_state(config(thread))
        given: Any = (
            Command(resume="yes") if state.interrupts else {"messages": [asked("More", "more")], "plan": "tool"}
        )
        ours, theirs = (built(each).invoke(given, config(thread)) for each in (LangoSaver(store), saver))
        assert ours == theirs
    states = [with_delta_channel(each).get_state(config("delta")).values for each in (LangoSaver(store), saver)]
    assert states[0] == states[1]


def check_killed_and_repeated(url: str, source: str, opened: Open) -> None:
    with opened(source) as saver:
        threads = fill(saver, 15)
        chance = random.Random(3)
        for _ in range(2):
            kill_adoption(url, source, chance.randrange(1, 8))
        reports = adopt(url, source)
        assert [each.skipped for each in reports if each.skipped] == []
        with Store(url) as store:
            check_equal(saver, store, threads)
            assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
        assert states(adopt(url, source)) == {"already there": len(threads)}
        with Store(url) as store:
            check_resumed(saver, store, threads[:-1])


def test_threads_of_sqlite_saver_are_equal_after_kills_and_resume(url: str, source: str) -> None:
    check_killed_and_repeated(url, source, open_sqlite)


def test_threads_of_postgres_saver_are_equal_after_kills_and_resume(url: str, make_postgres: MakeDatabase) -> None:
    check_killed_and_repeated(url, make_postgres(migrated=False), open_postgres)


def test_thread_that_grew_is_continued_with_its_pending_writes(url: str, source: str) -> None:
    with open_sqlite(source) as saver, Store(url) as store:
        graph = built(saver)
        graph.invoke({"messages": [asked("Hello", "h")], "plan": "wait"}, config(), interrupt_before=["ask"])
        assert [(each.state, each.messages) for each in adopt(url, source, dry_run=True)] == [("imported", 3)]
        assert store.count() == 0
        assert [(each.state, each.messages) for each in adopt(url, source)] == [("imported", 3)]
        graph.invoke(None, config())
        assert graph.get_state(config()).interrupts
        assert [(each.state, each.messages) for each in adopt(url, source)] == [("continued", 0)]
        check_equal(saver, store, ["t"])
        graph.invoke(Command(resume="yes"), config())
        assert states(adopt(url, source)) == {"continued": 1}
        check_equal(saver, store, ["t"])
        assert [str(each.role) for each in store.conversation("t").messages()] == ["user", "assistant"]


def test_thread_that_continued_in_the_store_is_kept(url: str, source: str) -> None:
    with open_sqlite(source) as saver, Store(url) as store:
        with_messages(saver).invoke({"messages": [("user", "1")]}, config())
        adopt(url, source)
        with_messages(LangoSaver(store)).invoke({"messages": [("user", "2")]}, config())
        log = store.conversation("t").all_messages()
        assert states(adopt(url, source)) == {"already there": 1}
        with_messages(saver).invoke({"messages": [("user", "3")]}, config())
        (report,) = adopt(url, source)
        assert (report.state, "in the store than in the source" in report.skipped[0]) == ("collided", True)
        assert store.conversation("t").all_messages() == log


def test_session_of_another_source_collides(url: str, source: str) -> None:
    with open_sqlite(source) as saver, Store(url) as store:
        with_messages(saver).invoke({"messages": [("user", "1")]}, config())
        store.create("t", messages=[Message.user("mine")])
        assert states(adopt(url, source)) == {"collided": 1}
        assert [each.content for each in store.conversation("t").all_messages()] == ["mine"]


@dataclass
class Place:
    """A class that is not on LangGraph's list of safe types."""

    name: str


def test_value_of_another_class_is_kept_as_it_was_serialized(url: str, source: str) -> None:
    serde = JsonPlusSerializer(allowed_msgpack_modules=[(Place.__module__, "Place")])
    with open_sqlite(source) as saver, Store(url) as store:
        saver.serde = serde
        built(saver).invoke({"messages": [asked("Hello", "h")], "data": {"where": Place("Oslo")}}, config())
        saver.serde = serde
        assert states(adopt(url, source)) == {"imported": 1}
        found = [*LangoSaver(store, serde=serde).list(config())]
        assert found == [*saver.list(config())]
        assert "Place(name='Oslo')" in str(found)


def test_encrypted_thread_fails_and_a_damaged_checkpoint_is_left_out(url: str, source: str) -> None:
    with open_sqlite(source) as saver:
        with_messages(saver).invoke({"messages": [("user", "1")]}, config("damaged"))
        saver.serde = EncryptedSerializer(Reversing(), JsonPlusSerializer())
        with_messages(saver).invoke({"messages": [("user", "1")]}, config("encrypted"))
    with closing(sqlite3.connect(source.removeprefix("sqlite:///"))) as connection, connection:
        (first,) = connection.execute(
            "SELECT min(checkpoint_id) FROM checkpoints WHERE thread_id = 'damaged'"
        ).fetchone()
        connection.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE checkpoint_id = ?", [first])
    damaged, encrypted = adopt(url, source)
    assert (damaged.state, damaged.messages, len(damaged.skipped)) == ("imported", 2, 1)
    assert (encrypted.state, len(encrypted.skipped)) == ("failed", 3)
    assert states(adopt(url, source)) == {"already there": 1, "failed": 1}


def execute(source: str, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(source.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(statement, values)


def test_damaged_checkpoints_are_reported_each_time_and_the_others_are_adopted(url: str, source: str) -> None:
    with open_sqlite(source) as saver:
        for number in range(9):
            with_messages(saver).invoke({"messages": [("user", str(number))]}, config("damaged"))
        with_messages(saver).invoke({"messages": [("user", "1")]}, config("sound"))
        ids = [each.checkpoint["id"] for each in saver.list(config("damaged"))][::-1]
        deep = b'{"x":' * 300 + b"1" + b"}" * 300
        change = "UPDATE checkpoints SET {} = ? WHERE checkpoint_id = ?"
        for number, (column, value) in enumerate(
            [
                ("checkpoint", b"\xc0"),  # None in msgpack
                ("metadata", deep),
                ("metadata", b"[1]"),
                ("metadata", b"[" * 3000),
                ("type", "pickle"),
                ("parent_checkpoint_id", b"\xff"),
                ("checkpoint_ns", b"\xff"),
            ]
        ):
            execute(source, change.format(column), value, ids[number])
        execute(source, "UPDATE writes SET channel = x'ff' WHERE checkpoint_id = ?", ids[7])
        for state, count in (("imported", len(ids) - 8), ("already there", 0)):
            damaged, sound = adopt(url, source)
            assert (damaged.state, damaged.messages, sound.state) == (state, count, state)
            assert [each.partition(" cannot")[0] for each in damaged.skipped] == [
                f"table checkpoints, checkpoint {id}" for id in ids[:8]
            ]
        with Store(url) as store:
            check_equal(saver, store, ["sound"])
            assert [each.checkpoint["id"] for each in LangoSaver(store).list(config("damaged"))] == ids[:7:-1]


def test_pruned_thread_is_continued_as_long_as_a_checkpoint_is_known(url: str, source: str) -> None:
    prune = "DELETE FROM checkpoints WHERE checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints)"
    with open_sqlite(source) as saver, Store(url) as store:
        with_messages(saver).invoke({"messages": [("user", "1")]}, config())
        adopt(url, source)
        execute(source, prune)
        assert states(adopt(url, source)) == {"already there": 1}
        with_messages(saver).invoke({"messages": [("user", "2")]}, config())
        assert [(each.state, each.messages, each.skipped) for each in adopt(url, source)] == [("continued", 3, [])]
        assert LangoSaver(store).get_tuple(config()) == saver.get_tuple(config())
        with_messages(saver).invoke({"messages": [("user", "3")]}, config())
        execute(source, prune)
        (report,) = adopt(url, source)
        assert (report.state, "has no checkpoint of this source" in report.skipped[0]) == ("collided", True)
        assert states(adopt(url, source, prefix="new/")) == {"imported": 1}
        assert LangoSaver(store, prefix="new/").get_tuple(config()) == saver.get_tuple(config())


def test_rows_deleted_while_a_thread_is_read_are_still_adopted(url: str, source: str) -> None:
    with open_sqlite(source) as saver, Store(url) as store:
        for number in range(15):
            with_messages(saver).invoke({"messages": [("user", str(number))]}, config())
        count = len([*saver.list(config())])

        def delete(_: int) -> None:
            execute(source, "DELETE FROM checkpoints")

        (report,) = interchange.adopt(store, source, on_rows=delete)
        assert (report.messages, report.skipped) == (count, [])


def test_expired_session_collides(url: str, source: str) -> None:
    with open_sqlite(source) as saver, Store(url) as store:
        with_messages(saver).invoke({"messages": [("user", "1")]}, config())
        store.create("t", ttl=timedelta(microseconds=1))
        assert states(adopt(url, source)) == {"collided": 1}
