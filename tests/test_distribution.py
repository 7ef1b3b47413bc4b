"""Tables spread over the nodes of a cluster and brought back: with their rows, and all or nothing."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import messages

from lango_store import LangoStoreError, Store, schema
from lango_store.tables import Base

TABLES = [table.name for table in Base.metadata.sorted_tables]


def connected(url: str, **options: Any) -> psycopg.Connection[Any]:
    made = sa.make_url(url).set(drivername="postgresql")
    return psycopg.connect(made.render_as_string(hide_password=False), autocommit=True, **options)


def say(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, and give the rows of the last."""
    with connected(url) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def distributed(url: str) -> dict[str, tuple[str | None, int]]:
    """Give the column and the group of each of our tables that is distributed."""
    query = (
        "SELECT logicalrelid::text, column_to_column_name(logicalrelid, partkey), colocationid FROM pg_dist_partition"
    )
    return {table: (column, group) for table, column, group in say(url, query)}


def fill(url: str) -> None:
    with Store(url) as store:
        for number in range(20):
            conversation = store.conversation(store.create(f"k{number}", messages=messages(5)).key)
            conversation.save_turn(messages(2), {"tokens": number})
            store.set_values(f"k{number}", {"mood": number})
        store.set_values("shared", {"mood": "fine"})


def contents(url: str) -> dict[str, list[Any]]:
    """Give all rows of all tables."""
    return {table: sorted(say(url, f"SELECT to_jsonb(t)::text FROM {table} t")) for table in TABLES}


def test_a_file_is_not_distributed(make_sqlite: MakeDatabase) -> None:
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(LangoStoreError, match="lango-store copy"):
            move(make_sqlite())


def test_without_citus_the_next_step_is_said(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, "DROP EXTENSION IF EXISTS citus CASCADE")
    schema.upgrade(url)
    for move in (schema.distribute, schema.undistribute):
        with pytest.raises(LangoStoreError, match="CREATE EXTENSION citus"):
            move(url)


@pytest.fixture
def cluster(make_postgres: MakeDatabase) -> str:
    """The coordinator's URL of a database with our tables, which are not distributed."""
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    return url


def workers(url: str) -> list[str]:
    found = say(url, "SELECT nodename, nodeport FROM pg_dist_node WHERE groupid <> 0 ORDER BY nodeport")
    return [sa.make_url(url).set(host=host, port=port).render_as_string(hide_password=False) for host, port in found]


@pytest.mark.citus
def test_the_tables_are_distributed_by_the_session_and_brought_back(cluster: str) -> None:
    fill(cluster)
    rows, oddities = contents(cluster), schema.check(cluster)
    statements = schema.distribute(cluster)
    placed = distributed(cluster)
    assert {table: placed[table][0] for table in TABLES} == {
        "lango_session": "key",
        "lango_turn": "session_key",
        "lango_message": "session_key",
        "lango_value": "scope",
    }
    assert len({placed[table][1] for table in TABLES}) == 1
    assert len(statements) > len(TABLES)
    assert contents(cluster) == rows
    assert sum(say(cluster, f"SELECT pg_relation_size('{table}')")[0][0] for table in TABLES) == 0
    assert say(
        cluster, "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conname LIKE 'fk_lango%' ORDER BY 1"
    ) == [
        ("fk_lango_message_session",),
        ("fk_lango_turn_session",),
    ]
    assert schema.check(cluster) == oddities == []
    assert schema.distribute(cluster) == []

    assert schema.undistribute(cluster) != []
    assert distributed(cluster) == {}
    assert contents(cluster) == rows
    assert schema.check(cluster) == []
    assert schema.undistribute(cluster) == []
