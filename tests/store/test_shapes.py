"""Statements and tables fit for distribution: each statement about one session names its key."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.sql.schema import ColumnCollectionConstraint
from support.databases import MakeDatabase, not_on_a_cluster
from support.every_method import calls_of
from support.statements_sent import KEYS, every_call, fill, methods_reading_any_session

from lango_store import SearchUnavailable, Store, create_engine, schema
from lango_store.tables import Base

ALL_SESSIONS = {
    "Store.count": "counts sessions",
    "Store.list_sessions": "lists sessions by time",
    "Store.iter_sessions": "iterates over all sessions",
    "StoreBudgets.list": "lists the budgets of all scopes",
    "StoreBudgets.reset": "wakes the turns that wait",
    "StoreTurns.list_in_progress": "lists the open turns of all sessions",
    "StoreCalls.list_unknown": "lists the unknown calls of all sessions",
    "StoreCalls.waiting": "lists the waiting calls of all sessions",
    "StoreCalls.finish": "finds the session by the handle",
    "Store.values_of": "reads the values of several sessions",
    "Store.shared_values_of": "reads the values of several scopes",
    "StoreSuspensions.list": "lists the suspensions of all sessions",
    "StoreShares.list": "lists the shares of all sessions",
    "StoreShares.document": "finds a share by the digest of its token",
    "Store.owed": "lists the sessions that are owed a turn",
    "Store.work": "looks for sessions that are owed a turn",
    "Store.stats": "sums up all sessions",
    "Maintenance.move_payloads": "looks for messages of all sessions",
    "Maintenance.apply_policy": "looks for sessions that match a rule",
    "Maintenance.examine": "looks through all rows",
    "Store.expire": "looks for expired sessions",
    "Store.delete_where": "looks for sessions that match a filter",
    "Store.delete": "deletes children if asked to",
    "Store.erase": "looks for all sessions of a user",
    "Store.export_user": "looks for all sessions of a user",
    "Conversation.children": "lists children",
    "Conversation.total_usage": "reads the turns of children if asked to",
}
"""Methods that concern more than one session and query every server, each with the reason."""


@pytest.mark.slow
@not_on_a_cluster("test_call_on_one_session_queries_one_server covers clusters")
def test_statements_of_a_call_on_one_session_filter_by_its_key(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    url = make_postgres()
    schema.enable_search(url)
    assert methods_reading_any_session(url, tmp_path) == ALL_SESSIONS.keys()


OTHER_SERVERS = {
    "Store.usage": "adds up the turns of all sessions",
    "Conversation.tail": "asks for news of all followed sessions at once",
    "Conversation.fork": "the rows of the fork may be on another server",
    "Conversation.child": "the parent may be on another server",
}


@pytest.mark.citus
def test_call_on_one_session_queries_one_server(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    url = make_postgres()
    notices: list[str] = []
    engine = create_engine(url, pool_size=1, connect_args={"options": "-c citus.log_remote_commands=on"})

    def listen(driver: Any, _: object) -> None:
        driver.add_notice_handler(lambda notice: notices.append(f"{notice.message_primary} {notice.message_detail}"))

    sa.event.listen(engine, "connect", listen)
    cold = tmp_path / "cold.db"
    servers_by_method: dict[str, set[str]] = {}
    with Store(engine) as store:
        fill(store, cold)
        for kind, name, number in every_call(calls_of(store, cold)):
            fill(store, cold)
            call = calls_of(store, cold)[kind][name][number]
            notices.clear()
            with contextlib.suppress(SearchUnavailable):
                call()
            servers = {server for text in notices for server in re.findall(r"on server \S+@(\S+)", text)}
            if len(servers) > 1:
                servers_by_method.setdefault(f"{kind.__name__}.{name}", servers)
    engine.dispose()
    assert servers_by_method.keys() <= ALL_SESSIONS.keys() | OTHER_SERVERS.keys()
    assert {"Store.list_sessions", "Store.count", "Store.stats"} <= servers_by_method.keys()


def test_primary_keys_and_unique_indexes_start_with_the_distribution_column() -> None:
    for table in (Base.metadata.tables[name] for name in KEYS):
        unique: list[sa.Index | ColumnCollectionConstraint] = [
            table.primary_key,
            *(each for each in table.constraints if isinstance(each, sa.UniqueConstraint)),
            *(index for index in table.indexes if index.unique),
        ]
        for each in unique:
            assert next(iter(each.columns)).name == KEYS[table.name], each.name
        for key in table.foreign_key_constraints:
            assert key.elements[0].target_fullname == "lango_session.key"
            assert key.columns[0].name in (KEYS[table.name], "session_key"), key.name
            assert key.ondelete == "CASCADE"
        assert [each for each in table.constraints if each.name is None] == []
        assert [
            column.name for column in table.columns if column.identity or column is table.autoincrement_column
        ] == []
