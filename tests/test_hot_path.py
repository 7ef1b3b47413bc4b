"""What an append and a load cost: statements and round trips, counted where they happen."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import MakeDatabase, watched
from factories import message, messages

from lango_store import Message, Store, create_engine


def round_trips(trace: Path) -> int:
    """Count how often the client waited for the server, in a trace that libpq wrote."""
    return len(re.findall(r"\tF\t\d+\t(?:Sync|Query)\b", trace.read_text()))


@pytest.mark.parametrize("batch", [[message()], [message(id="a")], messages(2), messages(1_000)])
@pytest.mark.parametrize("after", [None, 0])
def test_an_append_is_one_statement_and_one_round_trip(
    make_postgres: MakeDatabase, tmp_path: Path, batch: list[Message], after: int | None
) -> None:
    engine = create_engine(make_postgres(), pool_size=1)
    with Store(engine) as store:
        store.create("k")
        store.create("other")
        store.append_messages("other", messages(len(batch)))
        trace = tmp_path / "trace"
        with watched(engine) as statements, trace.open("w") as file:
            with engine.connect() as connection:
                driver: Any = connection.connection.dbapi_connection
            driver.pgconn.trace(file.fileno())
            store.append_messages("k", batch, after=after)
            driver.pgconn.untrace()
        assert len(statements) == 1
        assert round_trips(trace) == 1
        assert store.info("k").message_count == len(batch)
    engine.dispose()


def test_a_load_is_two_round_trips(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    engine = create_engine(make_postgres(), pool_size=1)
    with Store(engine) as store:
        store.create("k", messages=messages(50))
        with engine.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
        with (tmp_path / "trace").open("w") as file:
            driver.pgconn.trace(file.fileno())
            store.get("k")
            driver.pgconn.untrace()
        assert round_trips(tmp_path / "trace") == 2
    engine.dispose()


def test_an_append_on_sqlite_is_one_transaction(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k")
        with watched(store.engine) as statements:
            store.append_message("k", message())
        assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]


def test_a_large_load_leaves_the_collector_to_its_process(store: Store) -> None:
    store.create("k", messages=messages(1_000))
    with mock.patch.object(gc, "disable") as disabled, mock.patch.object(gc, "enable") as enabled:
        store.get("k")
    assert not disabled.called
    assert not enabled.called


def test_a_wrong_count_does_not_keep_a_load_from_ending(store: Store) -> None:
    store.create("k", messages=messages(3))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM lango_message")
    assert store.get("k").messages == []
