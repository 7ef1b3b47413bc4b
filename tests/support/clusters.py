"""Queries about a cluster and its databases that bypass the store."""

from datetime import timedelta
from typing import Any

import psycopg
import sqlalchemy as sa
from support.factories import message, messages

from lango_store import Store, ToolCall
from lango_store.tables import FEATURE_TABLE, Base

TABLES = [table.name for table in Base.metadata.sorted_tables if table.name != FEATURE_TABLE]

ALL_KEYS = sorted(str(key.name) for table in Base.metadata.sorted_tables for key in table.foreign_key_constraints)
"""The foreign keys of our tables."""


def say(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements and return the rows of the last one."""
    made = sa.make_url(url)
    given: Any = {**made.translate_connect_args(username="user", database="dbname"), **made.query}
    with psycopg.connect(**given, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def workers(url: str) -> list[str]:
    """Return the URLs of the database on the workers."""
    found = say(url, "SELECT nodename, nodeport FROM pg_dist_node WHERE groupid <> 0 ORDER BY nodeport")
    return [sa.make_url(url).set(host=host, port=port).render_as_string(hide_password=False) for host, port in found]


def shards(url: str | sa.URL, table: str) -> list[tuple[str, str]]:
    """Return the shards of a table, each with the URL of its server."""
    made = sa.make_url(url)
    query = f"SELECT nodename, nodeport, shard_name FROM citus_shards WHERE table_name = '{table}'::regclass"
    return [
        (made.set(host=host, port=port).render_as_string(hide_password=False), name)
        for host, port, name in say(made.render_as_string(hide_password=False), query)
    ]


def distributed(url: str) -> dict[str, tuple[str | None, int]]:
    """Return the distribution column and the colocation group of each of our distributed tables."""
    query = (
        "SELECT logicalrelid::text, column_to_column_name(logicalrelid, partkey), colocationid FROM pg_dist_partition"
    )
    return {table: (column, group) for table, column, group in say(url, query)}


def foreign_keys(url: str) -> list[str]:
    """Return the names of the foreign keys of our tables, except those of shards."""
    query = (
        "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text = ANY('{{{}}}') ORDER BY 1"
    )
    return [name for (name,) in say(url, query.format(",".join(TABLES)))]


def fill(url: str) -> None:
    """Write some rows to every table."""
    with Store(url, payload_threshold=1024, keep_removed=timedelta(days=1)) as store:
        for number in range(20):
            conversation = store.conversation(store.create(f"k{number}", messages=messages(5)).key)
            conversation.save_turn(messages(2), {"tokens": number})
            conversation.pop_message()
            store.conversation(f"k{number}").values.set({"mood": number})
            conversation.inbox.put(messages(1)[0])
            turn = conversation.turn("given up").begin()
            turn.write("half of an ans")
            turn.abandon()
            conversation.truncate(after=conversation.save_turn(messages(2)).first_seq - 1)
            large = message("x" * 2000, role="assistant", tool_calls=[ToolCall(id="c", name="f", arguments={})])
            asking = conversation.append_message(large)
            conversation.calls.begin(asking.seq, 0)
            conversation.suspensions.create()
        store.shared_values("shared").set({"mood": "fine"})


def contents(url: str) -> dict[str, list[Any]]:
    """Return all rows of all tables."""
    return {table: sorted(say(url, f"SELECT to_jsonb(t)::text FROM {table} t")) for table in TABLES}


def is_whole(url: str) -> bool:
    """Return whether all tables are distributed correctly, without rows on the coordinator."""
    placed = distributed(url)
    columns = {"lango_session": "key", "lango_shared_value": "scope"}
    return (
        {table: placed[table][0] for table in TABLES} == {table: columns.get(table, "session_key") for table in TABLES}
        and len({placed[table][1] for table in TABLES}) == 1
        and placed["lango_store_version"][0] is None
        and placed[FEATURE_TABLE][0] is None
        and say(url, f"SELECT {' + '.join(f'pg_relation_size({table!r})' for table in TABLES)}") == [(0,)]
        and foreign_keys(url) == ALL_KEYS
    )
