"""`Store(url, retry=…)`: transient failures are retried, and nothing is written twice."""

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support import every_method
from support.databases import CITUS, MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.relay import Relay

from lango_store import (
    AsyncStore,
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    SessionExists,
    Store,
    create_engine,
    schema,
)
from lango_store._connections import cancellation, retry

HALF_A_MINUTE: Final = timedelta(seconds=30)


@pytest.fixture
def url(make_postgres: MakeDatabase, relay: Relay) -> sa.URL:
    """The URL of a database that is reached through the relay."""
    return relay.url(make_postgres())


class Pauses:
    """Replaces the pause between two tries with a function."""

    def __init__(self) -> None:
        self.count = 0
        self.then: Callable[[], object] = lambda: None

    def __call__(self, seconds: float) -> bool:
        self.count += 1
        assert self.count < 50, "tried for ever"
        self.then()
        return True


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(cancellation, "pause", made)
    return made


# Retried methods

WITHOUT: Final = {
    "at": "needs no server",
    "for_user": "needs no server",
    "in_turn": "needs no server",
    "examine": "says what it met",
    "ping": "asks whether the server is there now",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, name) for kind in every_method.KINDS for name in sorted(every_method.methods_of(kind) - WITHOUT.keys())],
)
def test_store_with_retry_waits_for_an_unreachable_server(
    url: sa.URL, relay: Relay, pauses: Pauses, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type, method: str
) -> None:
    if method == "search":
        if CITUS:
            pytest.skip("not on a cluster: a search index is refused on distributed tables")
        schema.enable_search(url)
    pauses.then = relay.admit
    with Store(url, retry=HALF_A_MINUTE) as store:
        every_method.prepare(store, tmp_path / "archive.db")
        calls = every_method.calls_of(store, tmp_path / "archive.db")
        for call in calls[kind][method]:
            caplog.clear()
            pauses.count = 0
            relay.refuse()
            call()
            assert pauses.count == 1
            (line,) = [record.getMessage() for record in caplog.records if record.name == "lango_store"]
            assert re.match(r"done after 2 tries in \d+\.\d s; the first failed: PostgreSQL: ", line)


def test_call_without_retry_fails_at_once_and_next_call_connects(url: sa.URL, relay: Relay, pauses: Pauses) -> None:
    with Store(url, retry=timedelta(0), token_counter=lambda _: 1) as store:
        store.create("k")
        relay.refuse()
        with pytest.raises(DatabaseUnavailable):
            store.append_message("k", message())
        relay.admit()
        assert store.append_message("k", message()).id is None
    assert pauses.count == 0


def test_retry_stops_after_the_given_time_and_raises_the_last_error(
    url: sa.URL, relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(url, retry=timedelta(milliseconds=50)) as store:
        store.create("k")
        relay.refuse()
        with pytest.raises(DatabaseUnavailable, match="PostgreSQL"):
            store.append_message("k", message())
    lines = [record.getMessage() for record in caplog.records if record.name == "lango_store"]
    assert len(lines) == 1
    assert re.match(r"given up after \d+ tries in \d+\.\d s: PostgreSQL: ", lines[0])


def test_retry_waits_for_a_sqlite_lock_longer_than_busy_timeout(make_sqlite: MakeDatabase, pauses: Pauses) -> None:
    url = f"{make_sqlite()}?timeout=0"
    other = create_engine(url)
    with Store(url, retry=HALF_A_MINUTE) as store, other.connect() as connection:
        store.create("k")
        connection.exec_driver_sql("DELETE FROM lango_turn WHERE false")
        pauses.then = connection.rollback
        store.append_message("k", message())
        assert pauses.count == 1
        connection.exec_driver_sql("DELETE FROM lango_turn WHERE false")
        with Store(url) as hasty, pytest.raises(DatabaseBusy):
            hasty.append_message("k", message())
        connection.rollback()
        assert store.conversation("k").info().message_count == 1
    other.dispose()


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), 30])
def test_retry_refuses_values_that_are_not_timedeltas(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="retry"):
        Store("sqlite://", retry=wrong)


def test_permanent_error_is_not_retried(url: sa.URL, pauses: Pauses) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        store.create("k", messages=messages(2))
        with pytest.raises(Conflict):
            store.append_message("k", message(), after=1)
        with pytest.raises(SessionExists):
            store.create("k")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE lango_value")
        with pytest.raises(Exception, match="lango_value"):
            store.conversation("k").values.get()
    assert pauses.count == 0


def test_call_in_callers_transaction_is_not_retried(url: sa.URL, relay: Relay, pauses: Pauses) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        store.create("k")
        with store.engine.connect() as connection:
            mine = store.using(connection)
            assert mine.append_message("k", message()).id is None
            relay.refuse()
            for call in (lambda: mine.append_message("k", message()), lambda: mine.get("k"), lambda: mine.delete("k")):
                with pytest.raises((DatabaseUnavailable, sa.exc.PendingRollbackError)):
                    call()
        relay.admit()
    assert pauses.count == 0


# Retries write nothing twice


def test_store_with_retry_gives_ids_to_messages_and_turns_that_have_none(url: sa.URL) -> None:
    uuid7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        given = [message(), message(id="mine")]
        ids = [each.id for each in conversation.append_messages(given)]
        assert uuid7.fullmatch(str(ids[0]))
        assert ids[1] == "mine"
        assert given[0].id is None
        assert uuid7.fullmatch(str(conversation.save_turn([message()], {"tokens": 1}).id))
        assert uuid7.fullmatch(str(conversation.save_turn([], {"tokens": 1}).id))
        # A turn whose messages all have ids gets no id, and is recognized by its messages.
        assert not conversation.save_turn([message(id="a")], {"tokens": 1}).replayed
        assert conversation.save_turn([message(id="a")], {"tokens": 1}).replayed
        assert conversation.total_usage() == {"tokens": 3}


def contents(store: Store) -> list[Any]:
    return [each.content for each in store.conversation("k").all_messages()]


LANDED: Final = b"COMMIT" if CITUS else b"SELECT 1"
"""The server's answer to a committed append: on a cluster it is a transaction of several statements."""

DONE_ONCE: Final[dict[str, tuple[bytes, Callable[[Store], object], list[str]]]] = {
    "append_message": (LANDED, lambda store: store.append_message("k", message("new")), ["a", "b", "new"]),
    "append_messages": (
        LANDED,
        lambda store: store.conversation("k").append_messages([message("new")] * 2),
        ["a", "b", "new", "new"],
    ),
    "replace_after": (
        b"COMMIT",
        lambda store: store.conversation("k").append_messages([message("new")], replace_after=1, after=2),
        ["a", "new"],
    ),
    "save_turn": (
        LANDED,
        lambda store: store.conversation("k").save_turn([message("new")], {"n": 1}),
        ["a", "b", "new"],
    ),
    "update": (b"UPDATE 1", lambda store: store.conversation("k").update(title="new"), ["a", "b"]),
}


@pytest.mark.parametrize("method", DONE_ONCE)
def test_retry_writes_nothing_twice_if_the_commit_reply_is_lost(
    url: sa.URL, relay: Relay, pauses: Pauses, method: str
) -> None:
    answer, call, expected = DONE_ONCE[method]
    with Store(url, retry=HALF_A_MINUTE) as store:
        store.create("k", messages=[message("a"), message("b")])
        relay.lose(answer)
        call(store)
        assert pauses.count == 1
        assert contents(store) == expected
        assert store.conversation("k").total_usage() == ({"n": 1} if method == "save_turn" else {})


def test_create_without_key_makes_one_session_if_commit_reply_is_lost(
    url: sa.URL, relay: Relay, pauses: Pauses
) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        assert store.count() == 0
        relay.lose(b"COMMIT")
        made = store.create(messages=[message("a")])
        assert pauses.count == 1
        assert [each.key for each in store.list_sessions().items] == [made.key]
        assert [each.content for each in made.messages] == ["a"]


def test_fork_without_key_makes_one_copy_if_commit_reply_is_lost(url: sa.URL, relay: Relay, pauses: Pauses) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        store.create("k", messages=messages(3))
        relay.lose(b"COMMIT")
        made = store.conversation("k").fork(upto=2)
        assert pauses.count == 1
        assert {each.key for each in store.list_sessions().items} == {"k", made.key}
        assert len(made.get().messages) == 2


UNKNOWN: Final[dict[str, tuple[bytes, Callable[[Store], object], int]]] = {
    "create": (b"INSERT 0 1", lambda store: store.create("other"), 1),
    "fork": (b"COMMIT", lambda store: store.conversation("k").fork("other"), 1),
    "update": (
        b"UPDATE 1",
        lambda store: store.conversation("k").update(title="new", expect=store.conversation("k").info().revision),
        1,
    ),
    "pop_message": (b"COMMIT", lambda store: store.conversation("k").pop_message(), 0),
    "truncate": (b"COMMIT", lambda store: store.conversation("k").truncate(after=1), 0),
    "clear": (b"COMMIT", lambda store: store.conversation("k").clear(), 0),
    "delete": (b"DELETE 1", lambda store: store.delete("k"), 0),
    "edits.delete": (b"COMMIT", lambda store: store.conversation("k").edits.delete(1), 0),
    "replace_after": (
        b"COMMIT",
        lambda store: store.conversation("k").append_messages([message("new")], replace_after=1),
        0,
    ),
    "drop_values": (b"COMMIT", lambda store: store.conversation("k").values.delete(), 0),
}


@pytest.mark.parametrize("method", UNKNOWN)
def test_call_with_unknown_outcome_raises_database_unavailable(
    url: sa.URL, relay: Relay, pauses: Pauses, method: str
) -> None:
    answer, call, tries = UNKNOWN[method]
    with Store(url, retry=HALF_A_MINUTE) as store:
        store.create("k", messages=messages(2))
        relay.lose(answer)
        with pytest.raises(DatabaseUnavailable, match="An earlier try may have succeeded" if tries else "PostgreSQL"):
            call(store)
        assert pauses.count == tries
        assert store.count() in (0, 1, 2)


# Conflicts with other transactions


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
@pytest.mark.parametrize("where", ["server", "engine"])
def test_serialization_failure_is_retried_even_without_the_retry_option(
    make_postgres: MakeDatabase, where: str, level: str
) -> None:
    made = sa.make_url(make_postgres())
    text = level.lower().replace(" ", "\\ ")
    engine = (
        create_engine(made, isolation_level=level)
        if where == "engine"
        else create_engine(made, connect_args={"options": f"-cdefault_transaction_isolation={text}"})
    )
    with Store(engine) as store:
        store.create("k")

        def write(writer: int) -> None:
            for number in range(8):
                store.append_message("k", message(f"{writer}:{number}"))

        with ThreadPoolExecutor(8) as writers:
            list(writers.map(write, range(8)))
        found = contents(store)
        assert Counter(found) == Counter(f"{writer}:{number}" for writer in range(8) for number in range(8))
    engine.dispose()


@not_on_a_cluster("Citus allows no trigger with an error of its own on a distributed table")
def test_call_rolled_back_at_every_try_raises_database_busy(
    make_postgres: MakeDatabase, pauses: Pauses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "_LOCK_TIMEOUT", 0.05)
    with Store(make_postgres()) as store:
        store.create("k")
        with store.engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM pg_sleep(0.01); RAISE SQLSTATE ''40001''; END'"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER undo BEFORE INSERT ON lango_message FOR EACH ROW EXECUTE FUNCTION undo()"
            )
        with pytest.raises(DatabaseBusy):
            store.append_message("k", message())
        assert pauses.count > 1
        with store.engine.connect() as connection, pytest.raises(DatabaseBusy):
            store.using(connection).append_message("k", message())
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


# Cancellation


def test_cancelled_call_is_not_retried(url: sa.URL, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    pausing = threading.Event()
    pause = cancellation.Cancellation.pause

    def telling(self: cancellation.Cancellation, seconds: float) -> bool:
        pausing.set()
        return pause(self, 1000.0)

    monkeypatch.setattr(cancellation.Cancellation, "pause", telling)

    async def main() -> None:
        async with AsyncStore(url, retry=timedelta(hours=1)) as store:
            await store.create("k")
            for call in (lambda: store.get("k"), lambda: store.append_message("k", message())):
                relay.refuse()
                pausing.clear()
                task: asyncio.Task[Any] = asyncio.create_task(call())
                assert await asyncio.to_thread(pausing.wait, 60)
                task.cancel()
                with pytest.raises(asyncio.CancelledError) as cancelled:
                    await task
                relay.admit()
            assert isinstance(cancelled.value.__cause__, DatabaseUnavailable)  # of the awaited write
            assert (await store.get("k")).messages == []

    asyncio.run(asyncio.wait_for(main(), 60))
