"""Statements and round trips of appends, loads and other frequent calls."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import psycopg
import pytest
import sqlalchemy as sa
from support.call_counts import count_calls, count_moves
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.statements import Counts, counted, watched

from lango_store import Conversation, Message, RunningTurn, Store, ToolCall
from lango_store.testing import Clock

RECORD = message(role="record")
BATCHES = [
    [message()],
    [message(id="a")],
    messages(2),
    messages(1_000),
    [RECORD],
    [message(role="record", id="a"), message()],
    [message(), *[RECORD] * 500],
]


@not_on_a_cluster("takes several statements on a cluster: test_distributed_store counts them")
@pytest.mark.parametrize("batch", BATCHES, ids=[f"batch {n}" for n in range(len(BATCHES))])
@pytest.mark.parametrize("after", [None, 0])
def test_append_is_one_statement_and_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, batch: list[Message], after: int | None
) -> None:
    with Store(one_connection) as store:
        store.create("k")
        store.create("other")
        store.conversation("other").append_messages(messages(len(batch)))
        with counted(one_connection, tmp_path) as counts:
            store.conversation("k").append_messages(batch, after=after)
        assert counts == Counts(1, 1)
        assert store.conversation("k").info().last_seq == len(batch)


@not_on_a_cluster("a cluster needs one more query, for how the tables are distributed")
def test_schema_check_of_a_new_store_is_seven_plain_statements(undistributed: str) -> None:
    with Store(undistributed) as store, watched(store.engine) as statements:
        assert not store.exists("k")
    *checks, read = statements
    assert len(checks) == 7
    plain = ("SHOW ", "SELECT current_", "SELECT to_", "SELECT version_", "SELECT name FROM lango_feature ")
    assert all(each.startswith(plain) for each in checks)
    assert "lango_session" in read


CHANGES: dict[str, Callable[[Store], object]] = {
    "update": lambda store: store.conversation("k").update(title="new"),
    "update of several": lambda store: store.conversation("k").update(
        settings={"a": 1}, last_consolidated=2, user_id=None
    ),
    "update of nothing": lambda store: store.conversation("k").update(),
    "update that is activity": lambda store: store.conversation("k").update(metadata={"read": True}, activity=True),
    "touch": lambda store: store.touch("k"),
    "touch with a TTL": lambda store: store.touch("k", ttl=timedelta(days=1)),
    "touch without a TTL": lambda store: store.touch("k", ttl=None),
}
DELETES: dict[str, Callable[[Store], object]] = {
    "delete": lambda store: store.delete("k"),
    "delete of a missing session": lambda store: store.delete("missing"),
}
WRITES: dict[str, Callable[[Store], object]] = {
    "delete": DELETES["delete"],
    "append with create": lambda store: store.append_message("k", message(), create=True, title="T"),
    "append that creates": lambda store: store.append_message("new", message(), create=True, title="T"),
    "append with an id that creates": lambda store: store.append_message("new", message(id="i"), create=True),
    "append of many that creates": lambda store: store.conversation("new").append_messages(
        messages(20), create=True, ttl=None
    ),
    "turn": lambda store: store.conversation("k").save_turn([message()], {"tokens": 1}, after=3),
    "turn without messages": lambda store: store.conversation("k").save_turn([], {"tokens": 1}, id="t"),
    "large turn": lambda store: store.conversation("k").save_turn(messages(1_000), {"tokens": 1}, id="t"),
    "turn that creates": lambda store: store.conversation("new").save_turn(messages(3), {"n": 1}, create=True),
    "set_values": lambda store: store.conversation("k").values.set({"a": 1, "b": [2]}),
    "set_shared_values": lambda store: store.shared_values("app").set({"a": 1, "b": [2]}),
    "shared_values": lambda store: store.shared_values("app").get(),
}


@not_on_a_cluster("takes several statements on a cluster: test_distributed_store counts them")
@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
def test_frequent_write_is_one_statement_and_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, call: Callable[[Store], object]
) -> None:
    with Store(one_connection) as store:
        store.open("other").save_turn(messages(3), id="t")
        store.create("k", messages=messages(3))
        with counted(one_connection, tmp_path) as counts:
            call(store)
        assert counts == Counts(1, 1)


@not_on_a_cluster("takes several statements on a cluster: test_distributed_store counts them")
@pytest.mark.parametrize("name", ["append with create", *(name for name in WRITES if "creates" in name)])
def test_write_that_creates_a_session_in_callers_transaction_is_one_statement_in_a_savepoint(
    one_connection: sa.Engine, name: str
) -> None:
    with Store(one_connection) as store:
        store.create("k", messages=messages(3))
        with watched(one_connection) as statements, one_connection.begin() as connection:
            WRITES[name](store.using(connection))
    assert [each.split()[0] for each in statements] in (["SAVEPOINT", word, "RELEASE"] for word in ("INSERT", "WITH"))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("clock", [None, Clock()], ids=["database clock", "test clock"])
def test_session_change_is_one_statement_and_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, change: Callable[[Store], object], clock: Clock | None
) -> None:
    with Store(one_connection, clock=clock) as store:
        store.create("k", ttl=timedelta(hours=1), messages=messages(3))
        with counted(one_connection, tmp_path) as counts:
            change(store)
        assert counts == Counts(1, 1)


@pytest.mark.parametrize("change", (CHANGES | DELETES).values(), ids=(CHANGES | DELETES).keys())
def test_session_change_is_one_transaction_on_sqlite(
    make_sqlite: MakeDatabase, change: Callable[[Store], object]
) -> None:
    with Store(make_sqlite()) as store:
        store.create("k", ttl=timedelta(hours=1), messages=messages(3))
        with watched(store.engine) as statements:
            change(store)
        words = [each.split()[0] for each in dict.fromkeys(statements)]  # SQLite traces a delete again for each cascade
        deleted = [["BEGIN", *["DELETE"] * count, "COMMIT"] for count in (1, 2)]  # two if the session exists
        missing = ["BEGIN", "DELETE", "SELECT", "COMMIT"]  # a hold may be the reason why nothing was deleted
        assert words in (["BEGIN", "UPDATE", "COMMIT"], *deleted, missing)


@pytest.mark.parametrize(("size", "statements"), [(0, 2), (4_096, 3)], ids=["without payloads", "with payloads"])
def test_large_load_reads_all_payloads_with_one_statement(
    one_connection: sa.Engine, tmp_path: Path, size: int, statements: int
) -> None:
    with Store(one_connection) as store:
        sent = [message(f"data:,{number}".ljust(size, "x")) for number in range(2_500)]
        conversation = store.open("k", messages=sent)
        with counted(one_connection, tmp_path) as counts:
            loaded = store.get("k").messages
        assert counts == Counts(statements, statements)
        assert [each.content for each in loaded] == [each.content for each in sent]
        for read in (conversation.all_messages, lambda: conversation.messages(last=50), conversation.history):
            with counted(one_connection, tmp_path) as counts:
                read()
            assert counts == Counts(statements - 1, statements - 1)


def run_turn(conversation: Conversation, id: str | None = None) -> None:
    with conversation.turn(id) as turn:
        turn.append(message())


@not_on_a_cluster("takes several statements on a cluster: test_distributed_store counts them")
def test_turn_in_progress_is_one_statement_for_each_step(one_connection: sa.Engine, tmp_path: Path) -> None:
    with Store(one_connection) as store:
        conversation = store.open("k")
        with counted(one_connection, tmp_path) as counts:
            run_turn(conversation)
        assert counts == Counts(3, 3)  # begin, append, end
        with counted(one_connection, tmp_path) as counts:
            run_turn(conversation, "t")
        assert counts == Counts(7, 7)  # begins in a transaction, which looks for earlier attempts


def test_turn_in_progress_is_three_short_transactions_on_sqlite(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        conversation = store.open("k")
        with watched(store.engine) as statements:
            run_turn(conversation)
        words = [each.split()[0] for each in statements]
        begin, append = ["BEGIN", "UPDATE", "COMMIT"], ["BEGIN", "UPDATE", "INSERT", "COMMIT"]
        assert words == [*begin, *append, "BEGIN", "UPDATE", "SELECT", "UPDATE", "INSERT", "COMMIT"]


def run_call(conversation: Conversation) -> None:
    with conversation.turn() as turn:
        asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="f")]))
        with turn.call(asking, 0) as effect:
            effect.output = "done"


def run_session(store: Store) -> None:
    key = store.create().key
    for _ in range(22):
        store.append_message(key, message())
    store.get(key)


@dataclass(frozen=True)
class Frequent:
    """A frequent call: on each database, how many functions of the package and of libraries it runs.

    `trips` is how many statements it sends to PostgreSQL, and for how many round trips it waits.
    """

    call: Callable[[Store, RunningTurn], object]
    sqlite: tuple[int, int]
    postgresql: tuple[int, int]
    trips: tuple[int, int] = (1, 1)


CALLS = {
    "append": Frequent(lambda store, _: store.append_message("1000", message()), (36, 31), (37, 85)),
    "append of a long text": Frequent(
        lambda store, _: store.append_message("1000", message("x" * 16_000)), (38, 31), (39, 85)
    ),
    "append of an answer with its model": Frequent(
        lambda store, _: store.append_message("1000", message(model="m", provider="p", request="r")),
        (39, 31),
        (40, 85),
    ),
    "append in a turn": Frequent(lambda _, turn: turn.append(message()), (42, 31), (42, 86)),
    "save_turn": Frequent(lambda store, _: store.conversation("1000").save_turn([message()]), (54, 32), (54, 86)),
    "turn": Frequent(lambda store, _: run_turn(store.conversation("1000")), (127, 92), (119, 257), (3, 3)),
    "turn with a tool call": Frequent(
        lambda store, _: run_call(store.conversation("1000")), (258, 154), (266, 931), (16, 16)
    ),
    "1,000 in one call": Frequent(
        lambda store, _: store.conversation("batches").append_messages(messages(1_000)), (3055, 1030), (3039, 1191)
    ),
    "load of 20": Frequent(lambda store, _: store.get("20"), (39, 29), (44, 140), (2, 2)),
    "load of 100": Frequent(lambda store, _: store.get("100"), (39, 29), (44, 140), (2, 2)),
    "load of 1,000": Frequent(lambda store, _: store.get("1000"), (39, 29), (44, 140), (2, 2)),
    "last 50": Frequent(lambda store, _: store.conversation("1000").messages(last=50), (33, 28), (36, 84)),
    "history": Frequent(lambda store, _: store.conversation("20").history(), (43, 28), (47, 84)),
    # psycopg prepares the statement of the appends, which takes a round trip.
    "create, 22 appends, load": Frequent(lambda store, _: run_session(store), (878, 771), (904, 2124), (25, 26)),
    "list of 20": Frequent(lambda store, _: store.list_sessions(limit=20), (92, 29), (95, 85)),
}


@contextmanager
def filled(database: str | sa.Engine) -> Iterator[tuple[Store, RunningTurn]]:
    """Open a store with sessions of several sizes, and a turn in progress."""
    with Store(database) as store:
        for key, size in (("20", 20), ("100", 100), ("1000", 1_000), ("batches", 0), ("turn", 0)):
            store.create(key, messages=messages(size))
        for _ in range(20):
            store.create()
        with store.conversation("turn").turn() as turn:
            yield store, turn


@pytest.mark.parametrize("name", CALLS)
def test_frequent_call_runs_few_functions_on_sqlite(make_sqlite: MakeDatabase, name: str) -> None:
    """A change that adds a function to a frequent call has to change its number here."""
    with filled(make_sqlite()) as (store, turn):
        counts = count_calls(lambda: CALLS[name].call(store, turn))
    assert _stable(counts) == _stable(CALLS[name].sqlite)


@not_on_a_cluster("a cluster needs several statements")
@pytest.mark.parametrize("name", CALLS)
def test_frequent_call_runs_few_functions_on_postgresql(make_postgres: MakeDatabase, name: str) -> None:
    with filled(make_postgres()) as (store, turn):
        counts = count_calls(lambda: CALLS[name].call(store, turn))
    assert _stable(counts) == _stable(CALLS[name].postgresql)


def test_turn_with_a_tool_call_moves_seldom_between_packages(make_sqlite: MakeDatabase) -> None:
    with filled(make_sqlite()) as (store, _):
        assert count_moves(lambda: run_call(store.conversation("1000"))) == 152


@not_on_a_cluster("a cluster needs several statements")
@pytest.mark.parametrize("name", CALLS)
def test_frequent_call_takes_few_round_trips(one_connection: sa.Engine, tmp_path: Path, name: str) -> None:
    with filled(one_connection) as (store, turn), counted(one_connection, tmp_path) as counts:
        CALLS[name].call(store, turn)
    assert counts == Counts(*CALLS[name].trips)


def _stable(counts: tuple[int, int]) -> tuple[int, ...]:
    """Leave out the calls of libraries in other releases than these: their pools and cursors call other functions."""
    is_known = sa.__version__.startswith("2.1.") and psycopg.__version__.startswith("3.3.")
    return counts if is_known and psycopg.pq.__impl__ != "python" else counts[:1]


def test_append_is_one_transaction_on_sqlite(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k")
        with watched(store.engine) as statements:
            store.append_message("k", message())
        assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]


@pytest.mark.slow
def test_large_load_does_not_disable_garbage_collection(store: Store) -> None:
    store.create("k", messages=messages(1_000))
    with mock.patch.object(gc, "disable") as disabled, mock.patch.object(gc, "enable") as enabled:
        store.get("k")
    assert not disabled.called
    assert not enabled.called


def test_load_terminates_if_stored_message_count_is_wrong(store: Store) -> None:
    store.create("k", messages=messages(3))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM lango_message")
    assert store.get("k").messages == []
