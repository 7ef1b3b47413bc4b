"""Statements for a cluster, tested on one server, where they work too."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.statements import counted
from support.statements_sent import methods_reading_any_session

from lango_store import Store
from lango_store._connections import schema_gate
from lango_store._dialect.citus import Citus

CLUSTER = Citus()


@pytest.fixture(autouse=True)
def every_server_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect_dialect(connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":  # archives are SQLite files
            vars(connection.dialect)["lango_store"] = CLUSTER

    monkeypatch.setattr(schema_gate, "detect_dialect", detect_dialect)


@pytest.mark.slow
@not_on_a_cluster("it explains statements that Citus cannot")
def test_only_methods_on_several_sessions_send_queries_without_a_session_key(
    make_postgres: MakeDatabase, tmp_path: Path
) -> None:
    without = {"search", "stats", "examine"}  # not supported, or needs the catalog of Citus
    methods = methods_reading_any_session(make_postgres(), tmp_path, without=without)
    lists = ("count", "list_sessions", "iter_sessions")
    of_many = {f"Store.{name}" for name in (*lists, "expire", "delete_where", "erase", "export_user", "owed", "work")}
    of_children = {"Store.delete", "Conversation.children", "Conversation.total_usage"}
    of_keys = {"Store.values_of", "Store.shared_values_of"}
    of_groups = {"StoreTurns.list_in_progress", "StoreCalls.list_unknown", "StoreSuspensions.list"}
    of_groups |= {"StoreBudgets.list", "StoreBudgets.reset", "StoreShares.list", "StoreShares.document"}
    of_groups |= {"StoreCalls.waiting", "StoreCalls.finish"}
    assert methods == of_many | of_groups | of_children | of_keys | {
        "Maintenance.move_payloads",
        "Maintenance.apply_policy",
    }


APPENDS: dict[str, Callable[[Store], object]] = {
    "a message": lambda store: store.append_message("k", message()),
    "a message with an id": lambda store: store.append_message("k", message(id="a")),
    "messages": lambda store: store.conversation("k").append_messages(messages(1_000)),
    "compared": lambda store: store.conversation("k").append_messages(messages(2), after=0),
    "a record": lambda store: store.append_message("k", message(role="record")),
    "a turn": lambda store: store.conversation("k").save_turn(messages(2), {"tokens": 1}),
}


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS.keys())
def test_append_is_one_round_trip(one_connection: sa.Engine, tmp_path: Path, append: Callable[[Store], object]) -> None:
    with Store(one_connection) as store:
        store.create("k")
        with counted(one_connection, tmp_path) as counts:
            append(store)
        assert counts.round_trips == 1


def test_append_that_sends_several_statements_returns_the_stored_messages(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:  # without a clock: times come from the database
        made = store.conversation("k").append_messages(messages(2), create=True, ttl=timedelta(hours=1))
        again = store.append_message("k", message(), create=True)
        turn = store.conversation("k").save_turn(messages(2), {"tokens": 1})
        assert store.conversation("k").messages() == [*made, again, *turn.messages]
        assert store.conversation("k").turns.list() == [turn.model_copy(update={"messages": []})]
        assert store.create("new", messages=messages(2)) == store.get("new")


def test_concurrent_appends_get_consecutive_seqs(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, ThreadPoolExecutor(8) as pool:
        store.create("k")
        seqs: list[Any] = list(pool.map(lambda number: store.append_message("k", message(f"{number}")).seq, range(200)))
        assert sorted(seqs) == list(range(1, 201))
        assert store.conversation("k").info().message_count == 200
