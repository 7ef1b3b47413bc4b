"""Adoption from databases with several tables: which of them are read, and under which keys."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from support.commands import run
from support.databases import MakeDatabase

from lango_store import Store, interchange

HELLO = json.dumps({"type": "human", "data": {"content": "Hello"}})


def execute(source: str, *statements: str) -> None:
    """Run statements in a SQLite file or a PostgreSQL database."""
    if source.startswith("sqlite"):
        with closing(sqlite3.connect(source.removeprefix("sqlite:///"))) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return
    with psycopg.connect(source.replace("+psycopg", "")) as opened:
        for statement in statements:
            opened.execute(statement.replace("%", "%%").encode())


def items(name: str, *rows: tuple[str, str]) -> list[str]:
    """Return statements that create a table of items with rows of session id and text, as openai-agents has them."""
    table = '"' + name.replace('"', '""') + '"'
    create = f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, session_id TEXT, message_data TEXT, created_at TIMESTAMP)"
    values = [
        f"INSERT INTO {table} VALUES ({number}, '{id}', '{json.dumps({'role': 'user', 'content': text})}', NULL)"
        for number, (id, text) in enumerate(rows, 1)
    ]
    return [create, *values]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agents.db'}"


def contents(store: Store) -> dict[str, list[object]]:
    return {
        each.key: [message.content for message in store.conversation(each.key).messages()]
        for each in store.iter_sessions()
    }


@pytest.mark.one_database
def test_one_id_in_two_tables_needs_a_prefix(url: str, source: str) -> None:
    execute(source, *items("support", ("ann", "to support")), *items("sales", ("ann", "to sales"), ("bob", "Hello")))
    words = ("adopt", source, "--to", url)
    done = run(*words)
    assert done.returncode == 1
    assert "table sales: table support has a session with the same key" in done.stderr
    assert "adopted 2 sessions" in done.stdout
    refused = run(*words, "--table", "sales")
    assert "was adopted from table support, not from table sales" in refused.stderr
    assert run(*words, "--table", "sales", "--prefix", "sales/").returncode == 0
    with Store(url) as store:
        assert contents(store) == {
            "ann": ["to support"],
            "bob": ["Hello"],
            "sales/ann": ["to sales"],
            "sales/bob": ["Hello"],
        }


@pytest.mark.one_database
def test_table_of_another_name_is_refused(url: str, source: str) -> None:
    execute(source, *items("support", ("ann", "Hello")))
    with (
        Store(url) as store,
        pytest.raises(ValueError, match="'sales' is not a table of openai-agents: give one of supp"),
    ):
        interchange.adopt(store, source, table="sales")


@pytest.mark.one_database
def test_ids_that_differ_only_in_their_type_are_two_sessions(url: str, source: str) -> None:
    execute(source, "CREATE TABLE chats (id, session_id, message)")
    for id, session_id in enumerate(["1", "2", "'1'"]):
        execute(source, f"INSERT INTO chats VALUES ({id}, {session_id}, '{HELLO}')")
    with Store(url) as store:
        for _ in range(2):
            reports = interchange.adopt(store, source)
            assert [(each.key, bool(each.skipped)) for each in reports] == [("1", False), ("2", False), ("1", True)]
            assert reports[-1].state == "failed"
            assert "ids differ only in their type" in reports[-1].skipped[0]
        assert [each.id for each in store.conversation("1").messages()] == ["langchain:0"]


@pytest.mark.one_database
def test_table_without_messages_of_langchain_is_not_a_history(url: str, source: str) -> None:
    execute(source, "CREATE TABLE feedback (id, session_id, message)")
    execute(source, "INSERT INTO feedback VALUES (1, 'a', 'Thank you'), (2, 'b', '{\"stars\": 5}'), (3, 'c', NULL)")
    with Store(url) as store:
        with pytest.raises(ValueError, match="none of openai-agents, google-adk, langgraph, langchain"):
            interchange.adopt(store, source)
        execute(source, "CREATE TABLE chats (id, session_id, message)")
        execute(source, f"INSERT INTO chats VALUES (1, 'd', '{{'), (2, 'd', '{HELLO}')")
        history, others = interchange.adopt(store, source)
        assert (history.key, history.messages, others.state) == ("d", 1, "left out")
        assert others.notes == [
            "table feedback, columns (and numbers of values) id (3), message (2), session_id (3): not adopted"
        ]
        assert contents(store) == {"d": ["Hello"]}


@pytest.mark.one_database
def test_table_to_which_no_items_refer_has_no_sessions(url: str, source: str) -> None:
    execute(source, *items("support", ("ann", "Hello")))
    execute(source, "CREATE TABLE carts (session_id, created_at, updated_at)", "INSERT INTO carts VALUES ('x', 0, 0)")
    with Store(url) as store:
        assert [each.key for each in interchange.adopt(store, source)] == ["ann"]


@pytest.mark.parametrize("name", ['my "chats"', "a:b %s %"])
def test_names_of_tables_and_columns_are_quoted(name: str, url: str, make_database: MakeDatabase) -> None:
    source = make_database(migrated=False)
    execute(source, *items(name, ("ann", "Hello")))
    execute(
        source, 'CREATE TABLE "branch_reservations" ("x ""y:z" INTEGER)', "INSERT INTO branch_reservations VALUES (1)"
    )
    history = '"' + f"history {name}".replace('"', '""') + '"'
    execute(source, f"CREATE TABLE {history} (id INTEGER, session_id TEXT, message TEXT)")
    execute(source, f"INSERT INTO {history} VALUES (1, 'bob', '{HELLO}')")
    with Store(url) as store:
        reports = interchange.adopt(store, source, "openai-agents")
        assert reports[1].notes == [
            'table branch_reservations, columns (and numbers of values) x "y:z (1): not adopted'
        ]
        interchange.adopt(store, source, "langchain")
        assert contents(store) == {"ann": ["Hello"], "bob": ["Hello"]}


def test_tables_in_another_schema_are_found_and_can_be_adopted(url: str, make_postgres: MakeDatabase) -> None:
    source = make_postgres(migrated=False)
    execute(source, "CREATE SCHEMA agents", "SET search_path = agents", *items("chats", ("ann", "Hello")))
    with Store(url) as store:
        with pytest.raises(ValueError, match=r"openai-agents are in the schema 'agents': append \?options=-csearch"):
            interchange.adopt(store, source)
        joined = "&" if "?" in source else "?"
        interchange.adopt(store, f"{source}{joined}options=-csearch_path%3Dagents")
        assert contents(store) == {"ann": ["Hello"]}
