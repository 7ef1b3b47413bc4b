"""What the tables can be distributed for: whatever is about one session names its key, so that one server is asked."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from every_verb import Calls, calls_of, prepare
from shapes import KEYS, unkeyed
from sqlalchemy.sql.schema import ColumnCollectionConstraint

from lango_store import SearchUnavailable, Store, create_engine, schema
from lango_store.tables import Base

OF_ALL_SESSIONS = {
    "Store.count": "counts sessions",
    "Store.list_sessions": "lists sessions by time",
    "Store.iter_sessions": "walks through all sessions",
    "Store.search": "searches all messages",
    "Conversation.search": "reads what it has found by pairs of a key and a seq",
    "Store.stats": "sums up all sessions",
    "Store.examine": "looks through all rows",
    "Store.expire": "looks for what is due",
    "Store.delete_where": "looks for what a filter names",
}
"""The verbs that are about no one session, and ask every server; each with the reason."""


def fresh(store: Store, cold: Path) -> None:
    """Let the store have what the calls are about, and nothing else."""
    for info in list(store.iter_sessions()):
        store.delete(info.key)
    cold.unlink(missing_ok=True)
    prepare(store, cold)


def ways(calls: Calls) -> list[tuple[type, str, int]]:
    """Give the place of each call."""
    return [(kind, name, way) for kind in calls for name in calls[kind] for way in range(len(calls[kind][name]))]


def sent(url: str, folder: Path) -> dict[str, list[str]]:
    """Return the statements that each verb sends."""
    told: list[str] = []
    found: dict[str, list[str]] = {}
    cold = folder / "cold.db"
    with Store(url, on_statement=lambda text, _: told.append(text)) as store:
        fresh(store, cold)
        for kind, name, way in ways(calls_of(store, cold)):
            fresh(store, cold)
            call = calls_of(store, cold)[kind][name][way]
            told.clear()
            call()
            found.setdefault(f"{kind.__name__}.{name}", []).extend(told)
    return found


def test_what_is_about_one_session_names_its_key(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    url = make_postgres()
    schema.enable_search(url)
    statements = sent(url, tmp_path)
    assert sum(map(len, statements.values())) > 250
    of_any = {verb: [text for text in texts if unkeyed(text)] for verb, texts in statements.items()}
    assert {verb: texts for verb, texts in of_any.items() if texts and verb not in OF_ALL_SESSIONS} == {}
    assert [verb for verb in OF_ALL_SESSIONS if not of_any[verb]] == []  # the list has nothing that need not be there


TWO_SESSIONS = {"Conversation.fork": "the fork's rows may be on another server"}


@pytest.mark.citus
def test_what_is_about_one_session_asks_one_server(make_postgres: MakeDatabase, tmp_path: Path) -> None:
    url = make_postgres()
    asked: list[str] = []
    engine = create_engine(url, pool_size=1, connect_args={"options": "-c citus.log_remote_commands=on"})

    def listen(driver: Any, _: object) -> None:
        driver.add_notice_handler(lambda notice: asked.append(f"{notice.message_primary} {notice.message_detail}"))

    sa.event.listen(engine, "connect", listen)
    cold = tmp_path / "cold.db"
    several: dict[str, set[str]] = {}
    with Store(engine) as store:
        fresh(store, cold)
        for kind, name, way in ways(calls_of(store, cold)):
            fresh(store, cold)
            call = calls_of(store, cold)[kind][name][way]
            asked.clear()
            with contextlib.suppress(SearchUnavailable):
                call()
            servers = {server for text in asked for server in re.findall(r"on server \S+@(\S+)", text)}
            if len(servers) > 1:
                several.setdefault(f"{kind.__name__}.{name}", servers)
    engine.dispose()
    assert several.keys() <= OF_ALL_SESSIONS.keys() | TWO_SESSIONS.keys()
    assert {"Store.list_sessions", "Store.count", "Store.stats"} <= several.keys()


BAD = {
    "no predicate": ("DELETE FROM lango_turn", {"lango_turn"}),
    "another column": ("UPDATE lango_message SET text = %(x)s WHERE lango_message.id = %(id)s", {"lango_message"}),
    "a range of keys": ("SELECT 1 FROM lango_session WHERE lango_session.key > %(key)s", {"lango_session"}),
    "a subquery that reads all": (
        "SELECT 1 FROM lango_session WHERE lango_session.key = %(key)s AND EXISTS (SELECT 1 FROM lango_value)",
        {"lango_value"},
    ),
    "a join of two without a value": (
        "SELECT 1 FROM lango_session JOIN lango_turn ON lango_turn.session_key = lango_session.key",
        {"lango_session", "lango_turn"},
    ),
    "another of its own rows": (
        "SELECT 1 FROM lango_message JOIN lango_turn ON lango_turn.session_key = lango_message.id "
        "WHERE lango_message.session_key = %(key)s",
        {"lango_turn"},
    ),
    "a part of a WITH": (
        "WITH a AS (SELECT lango_value.name FROM lango_value) UPDATE lango_session SET title = %(t)s "
        "WHERE lango_session.key = %(key)s",
        {"lango_value"},
    ),
    "an insert without": ("INSERT INTO lango_turn (turn_no, kind) SELECT %(a)s, %(b)s", {"lango_turn"}),
    "a value in a text": ("SELECT 1 FROM lango_turn WHERE kind = 'lango_turn.session_key = %(key)s'", {"lango_turn"}),
}
GOOD = (
    'SELECT 1 FROM lango_session WHERE lango_session.key = %(key)s::VARCHAR COLLATE "C"',
    "SELECT 1 FROM lango_session AS any_session WHERE any_session.key = %(key)s",
    "SELECT 1 FROM lango_turn JOIN lango_session ON lango_session.key = lango_turn.session_key JOIN lango_message "
    "ON lango_message.session_key = lango_turn.session_key WHERE lango_session.key = %(key)s",
    "SELECT 1 FROM lango_message WHERE lango_message.session_key = %(key)s AND NOT (EXISTS (SELECT 1 FROM lango_turn "
    "WHERE lango_turn.session_key = lango_message.session_key))",
    "INSERT INTO lango_turn (session_key, turn_no) SELECT %(key)s, %(a)s",
)


@pytest.mark.parametrize(("statement", "tables"), BAD.values(), ids=BAD.keys())
def test_a_statement_without_the_key_is_noticed(statement: str, tables: set[str]) -> None:
    assert unkeyed(statement) == tables


@pytest.mark.parametrize("statement", GOOD)
def test_a_statement_with_the_key_is_not(statement: str) -> None:
    assert unkeyed(statement) == set()


def test_every_key_and_unique_index_begins_with_whose_a_row_is() -> None:
    for table in Base.metadata.sorted_tables:
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
