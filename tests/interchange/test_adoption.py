"""Adoption without the frameworks: the command, and what needs no package of a framework.

tests/frameworks/adoption adopts databases that the packages themselves have written.
"""

import json
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from support.commands import run

from lango_store import Message, Store, interchange

# As SQLiteSession of openai-agents 0.24.0 creates them.
ITEMS = """
CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP, updated_at TIMESTAMP);
CREATE TABLE agent_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id) ON DELETE CASCADE
);
CREATE INDEX idx_agent_messages_session_id ON agent_messages (session_id, id);
"""
# As SqliteSessionService of google-adk 2.13.0 creates them.
EVENTS = """
CREATE TABLE app_states (app_name TEXT PRIMARY KEY, state TEXT NOT NULL, update_time REAL NOT NULL);
CREATE TABLE user_states (app_name TEXT, user_id TEXT, state TEXT, update_time REAL, PRIMARY KEY (app_name, user_id));
CREATE TABLE sessions (app_name TEXT, user_id TEXT, id TEXT, state TEXT, create_time REAL, update_time REAL);
CREATE TABLE events (
    id TEXT, app_name TEXT, user_id TEXT, session_id TEXT, invocation_id TEXT, timestamp REAL, event_data TEXT
);
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(ITEMS)
    add(path, "a", [{"role": "user", "content": "Hello"}])
    return path


def add(path: Path, session: str, items: Iterable[object]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [(session, json.dumps(item)) for item in items]
        connection.executemany("INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)", rows)


def test_command_adopts_once_and_reports_what_it_did(url: str, file: Path) -> None:
    words = ("adopt", f"sqlite:///{file}", "--to", url)
    planned = run(*words, "--dry-run", "--json")
    assert json.loads(planned.stdout)["state"] == "imported"
    done = run(*words)
    assert (done.returncode, done.stdout) == (
        0,
        "adopted 1 session, continued 0, 1 message; 0 already there, 0 collided, 0 failed, 0 rows left out\n",
    )
    assert json.loads(run(*words, "--json").stdout)["state"] == "already there"
    with Store(url) as store:
        assert [each.content for each in store.conversation("a").messages()] == ["Hello"]


def test_command_fails_if_a_session_collides_or_a_row_is_left_out(url: str, file: Path) -> None:
    with Store(url) as store:
        store.create("b")
    add(file, "b", [{"role": "user", "content": "Hello"}])
    add(file, "c", [float("nan")])
    done = run("adopt", f"sqlite:///{file}", "--to", url)
    assert done.returncode == 1
    assert "collided: b" in done.stderr
    assert "openai-agents:3" in done.stderr
    assert "1 collided" in done.stdout
    assert "1 rows left out" in done.stdout


@pytest.mark.one_database
def test_command_creates_a_missing_file_but_not_for_a_dry_run(file: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    words = ("adopt", f"sqlite:///{file}", "--to", f"sqlite:///{new}")
    assert run(*words, "--dry-run").returncode == 2
    assert run(*words, "--from", "langchain").returncode == 2
    assert not new.exists()
    assert run(*words).returncode == 0
    with Store(f"sqlite:///{new}") as store:
        assert store.exists("a")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--from", "autogen"], "give one of openai-agents, google-adk, langgraph, langchain"),
        (["--from", "langchain"], "none of langchain"),
    ],
)
@pytest.mark.one_database
def test_command_refuses_a_source_that_is_not_there(words: list[str], fault: str, url: str, file: Path) -> None:
    done = run("adopt", f"sqlite:///{file}", "--to", url, *words)
    assert done.returncode == 2
    assert fault in " ".join(done.stderr.split())


@pytest.mark.one_database
def test_database_of_a_store_is_refused_as_source(url: str) -> None:
    with (
        Store(url) as store,
        pytest.raises(ValueError, match="none of openai-agents, google-adk, langgraph, langchain"),
    ):
        interchange.adopt(store, url)


@pytest.mark.one_database
def test_database_of_two_frameworks_needs_a_choice(url: str, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(EVENTS)
    with Store(url) as store:
        with pytest.raises(ValueError, match="openai-agents and google-adk"):
            interchange.adopt(store, f"sqlite:///{file}")
        assert [each.key for each in interchange.adopt(store, f"sqlite:///{file}", "openai-agents")] == ["a"]


@pytest.mark.one_database
def test_adk_needs_its_package(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.adk.events", None)
    monkeypatch.delitem(sys.modules, "lango_store.integrations.google_adk.stored", raising=False)
    path = tmp_path / "adk.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(EVENTS)
    with Store(url) as store, pytest.raises(ValueError, match="pip install 'lango-store\\[google-adk\\]'"):
        interchange.adopt(store, f"sqlite:///{path}")


def test_large_strings_become_payloads_once(url: str, file: Path) -> None:
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:" + "A" * 5000}]}
    add(file, "a", [image] * 1200)
    with Store(url, payload_threshold=1000) as store:
        (report,) = interchange.adopt(store, f"sqlite:///{file}")
        assert report.messages == 1201
        assert store.conversation("a").messages()[-1].content == image["content"]
        assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


def test_data_that_is_not_adopted_is_named_once(url: str, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("ALTER TABLE agent_sessions ADD COLUMN label")
        connection.execute("ALTER TABLE agent_sessions ADD COLUMN unused")
        connection.execute("CREATE TABLE branch_reservations (session_id, branch_id)")
        connection.execute("INSERT INTO agent_sessions VALUES ('a', NULL, NULL, 'x', NULL), ('b', 0, 0, 'y', NULL)")
        connection.execute("INSERT INTO branch_reservations VALUES ('a', 'main')")
    words = ("adopt", f"sqlite:///{file}", "--to", url)
    reported = [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
    assert [(each["key"], each["state"]) for each in reported] == [
        ("a", "imported"),
        ("b", "imported"),
        ("openai-agents", "left out"),
    ]
    assert reported[-1]["notes"] == [
        "table agent_sessions, columns (and numbers of values) label (2): not adopted",
        "table branch_reservations, columns (and numbers of values) branch_id (1), session_id (1): not adopted",
    ]
    repeated = run(*words)
    assert (repeated.returncode, repeated.stderr.count("not adopted")) == (0, 2)


def test_session_without_items_is_adopted_and_continued(url: str, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO agent_sessions VALUES ('b', '2026-11-01 12:00:00', '2026-11-02 12:00:00')")
    with Store(url) as store:
        assert [each.state for each in interchange.adopt(store, f"sqlite:///{file}")] == ["imported"] * 2
        info = store.conversation("b").info()
        assert (info.message_count, str(info.created_at)[:10], str(info.updated_at)[:10]) == (
            0,
            "2026-11-01",
            "2026-11-02",
        )
        assert [each.state for each in interchange.adopt(store, f"sqlite:///{file}")] == ["already there"] * 2
        add(file, "b", [{"role": "user", "content": "Hello"}])
        assert [each.state for each in interchange.adopt(store, f"sqlite:///{file}")] == ["already there", "continued"]
        assert [each.content for each in store.conversation("b").messages()] == ["Hello"]


def test_adopted_sessions_are_sound_and_found(url: str, file: Path) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "x"}
    add(file, "a", [{"type": "reasoning", "summary": []}, call, {**call, "call_id": "2"}, output])
    with Store(url) as store:
        for _ in range(2):
            interchange.adopt(store, f"sqlite:///{file}")
        info = store.conversation("a").info()
        assert (info.message_count, info.record_count, info.last_seq) == (3, 1, 4)
        calls, answer = store.conversation("a").messages()[-2:]
        assert [each.id for each in calls.tool_calls] == ["1", "2"]
        assert answer.tool_calls[0].name == "f"
        assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
        store.append_message("a", Message.user("more"))
        add(file, "a", [{"role": "assistant", "content": "late"}])
        interchange.adopt(store, f"sqlite:///{file}")
        assert [each.content for each in store.conversation("a").messages()][-2:] == ["more", "late"]
