"""Adoptions of sources that change, are damaged, or are adopted by another process."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commands import run

from lango_store import Message, Store, interchange

TABLES = """
CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT, message_data, created_at TIMESTAMP);
CREATE TABLE message_structure (
    id INTEGER PRIMARY KEY, session_id, message_id, branch_id, sequence_number, user_turn_number
);
CREATE TABLE turn_usage (
    session_id, branch_id, user_turn_number, requests, input_tokens, output_tokens, total_tokens, input_tokens_details,
    output_tokens_details, created_at
);
"""


class Source:
    """A SQLite file of openai-agents. `add` appends items to a session, `execute` runs a statement."""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, f"sqlite:///{path}"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(f"PRAGMA journal_mode = WAL; {TABLES}")

    def execute(self, statement: str, *rows: tuple[Any, ...]) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany(statement, rows or [()])

    def add(self, session: str, *items: Any) -> None:
        rows = [(session, json.dumps(item)) for item in items]
        self.execute("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", *rows)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "agents.db")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


def asked(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def call(number: int) -> dict[str, str]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def contents(store: Store, key: str) -> list[Any]:
    return [each.content for each in store.conversation(key).messages()]


def in_first_transaction(action: Callable[[], object]) -> Callable[[int], None]:
    """Return a function for `on_rows` that runs the action after the first transaction."""
    actions = [action]

    def on_rows(_: int) -> None:
        if actions:
            actions.pop()()

    return on_rows


def test_repeated_adoption_reports_the_number_of_rows_that_were_left_out(url: str, source: Source) -> None:
    source.add("a", asked("1"), float("nan"), asked("2"))
    source.execute("UPDATE agent_messages SET message_data = '{' WHERE id = 3")
    words = ("adopt", source.url, "--to", url)
    assert run(*words).returncode == 1
    source.add("a", asked("3"), float("nan"))
    for count in (2, 3, 3):
        done = run(*words, "--json")
        assert done.returncode == 1
        assert f"table agent_messages: {count} rows were left out before" in done.stdout
    with Store(url) as store:
        assert contents(store, "a") == ["1", "3"]


def test_source_that_was_continued_by_another_adoption_is_not_continued_twice(store: Store, source: Source) -> None:
    source.add("a", *(asked(str(number)) for number in range(2500)))
    other = in_first_transaction(lambda: interchange.adopt(store, source.url))
    (report,) = interchange.adopt(store, source.url, on_rows=other)
    assert (report.state, report.messages) == ("collided", 1000)
    assert "was adopted further by another process" in report.skipped[0]
    assert contents(store, "a") == [str(number) for number in range(2500)]
    assert interchange.adopt(store, source.url)[0].state == "already there"


def test_session_created_by_another_process_meanwhile_collides(store: Store, source: Source) -> None:
    source.add("a", *(asked("1") for _ in range(1200)))
    source.add("b", asked("1"))
    create = in_first_transaction(lambda: store.create("b", messages=[Message.user("mine")]))
    assert [each.state for each in interchange.adopt(store, source.url, on_rows=create)] == ["imported", "collided"]
    assert contents(store, "b") == ["mine"]


def test_session_deleted_during_its_adoption_does_not_stop_the_others(store: Store, source: Source) -> None:
    source.add("a", *(asked("1") for _ in range(1200)))
    source.add("b", asked("1"))
    delete = in_first_transaction(lambda: store.delete("a"))
    first, second = interchange.adopt(store, source.url, on_rows=delete)
    assert (first.state, second.state) == ("collided", "imported")
    assert [each.state for each in interchange.adopt(store, source.url)] == ["imported", "already there"]


def test_rows_deleted_while_the_source_is_read_are_still_adopted(store: Store, source: Source) -> None:
    source.add("a", *(asked(str(number)) for number in range(1500)))
    source.add("b", asked("1"))
    delete = in_first_transaction(lambda: source.execute("DELETE FROM agent_messages"))
    assert [each.messages for each in interchange.adopt(store, source.url, on_rows=delete)] == [1500, 1]


def test_items_of_an_adopted_turn_follow_without_a_second_turn(store: Store, source: Source) -> None:
    source.add("a", asked("1"))
    structure = "INSERT INTO message_structure VALUES (NULL, 'a', ?, 'main', ?, 1)"
    source.execute(structure, (1, 1))
    source.execute(
        "INSERT INTO turn_usage (session_id, branch_id, user_turn_number, requests) VALUES ('a', 'main', 1, 5)"
    )
    interchange.adopt(store, source.url)
    source.add("a", asked("2"))
    source.execute(structure, (2, 2))
    (report,) = interchange.adopt(store, source.url)
    assert (report.state, report.messages, report.skipped) == ("continued", 1, [])
    assert [turn.usage for turn in store.conversation("a").turns.list()] == [{"requests": 5}]
    assert contents(store, "a") == ["1", "2"]


@pytest.mark.parametrize("levels", [200, 2_000, 100_000])  # one more than can be stored; Python 3.14 decodes the second
def test_turn_whose_usage_cannot_be_stored_keeps_its_messages(store: Store, source: Source, levels: int) -> None:
    source.add("a", asked("1"))
    source.execute("INSERT INTO message_structure VALUES (NULL, 'a', 1, 'main', 1, 1)")
    columns = "(session_id, branch_id, user_turn_number, requests, input_tokens_details)"
    deep = "[" * levels + "]" * levels
    source.execute(f"INSERT INTO turn_usage {columns} VALUES ('a', 'main', ?, ?, ?)", (1, b"x", None), (7, 1, deep))
    source.execute(f"INSERT INTO turn_usage {columns} VALUES ('a', 'main', 8, x'00', NULL)")
    for state, count in (("imported", 2), ("already there", 2)):
        (report,) = interchange.adopt(store, source.url)
        assert (report.state, len(report.skipped)) == (state, count)
        assert "turn:8: the usage of the turn cannot be stored" in "".join(report.skipped)
    assert contents(store, "a") == ["1"]
    assert [turn.usage for turn in store.conversation("a").turns.list()] == [
        {"requests": 1, "input_tokens_details": deep}
    ]


@pytest.mark.parametrize("before", [995, 999, 1000, 1500])
def test_calls_are_not_divided_by_the_end_of_a_transaction(before: int, store: Store, source: Source) -> None:
    source.add("a", *(asked("1") for _ in range(before)), *map(call, range(10)))
    source.add("a", {"type": "function_call_output", "call_id": "c9", "output": "x"})
    interchange.adopt(store, source.url)
    *_, calls, output = store.conversation("a").messages()
    assert [each.id for each in calls.tool_calls] == [f"c{number}" for number in range(10)]
    assert output.tool_calls[0].name == "f"
    assert store.conversation("a").info().message_count == before + 2


def test_endless_calls_are_divided(store: Store, source: Source) -> None:
    source.add("a", *map(call, range(4500)))
    transactions: list[int] = []
    interchange.adopt(store, source.url, on_rows=transactions.append)
    assert transactions == [2000, 2000, 500]
    assert sum(len(each.tool_calls) for each in store.conversation("a").messages()) == 4500


def test_damaged_call_is_left_out_without_the_calls_around_it(store: Store, source: Source) -> None:
    source.add("a", call(1), {**call(2), "note": float("nan")}, call(3))
    (report,) = interchange.adopt(store, source.url)
    assert [reason.startswith("table agent_messages, row 2 is damaged") for reason in report.skipped] == [True]
    assert [each.id for each in store.conversation("a").messages()[0].tool_calls] == ["c1", "c3"]


def test_sessions_with_damaged_ids_are_reported(store: Store, source: Source) -> None:
    rows = [(b"\xff",), (None,), ("x" * 600,), ("nul\0",), ("b",)]
    source.execute(
        'INSERT INTO agent_messages (session_id, message_data) VALUES (?, \'{"role":"user","content":1}\')', *rows
    )
    source.execute("INSERT INTO agent_messages (session_id, message_data) VALUES (CAST(x'61ff' AS TEXT), '1')")
    reports = {each.key: each for each in interchange.adopt(store, source.url)}
    assert {key[:3]: each.state for key, each in reports.items()} == {
        "Non": "failed",
        "a\\u": "failed",
        "b": "imported",
        "b'\\": "failed",
        "nul": "failed",
        "xxx": "failed",
    }
    assert reports["None"].skipped == [
        "table agent_messages, session_id None: the row is damaged (an id is NoneType, not text): not adopted"
    ]
    assert [each.key for each in store.iter_sessions()] == ["b"]


def test_rows_with_one_id_are_stored_once(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    hello = json.dumps({"type": "human", "data": {"content": "Hello"}})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE chats (id, session_id, message)")
        rows = [(number, "a", hello) for number in (1, 2, 2, *range(3, 1100))]
        connection.executemany("INSERT INTO chats VALUES (?, ?, ?)", rows)
    (report,) = interchange.adopt(store, f"sqlite:///{path}")
    assert (report.state, report.messages) == ("imported", 1099)
    assert len(report.skipped) == 1
    assert "table chats, langchain:2 cannot be stored (id: another row has the same id" in report.skipped[0]
