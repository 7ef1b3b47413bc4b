"""Programs and commands of the README and the documentation run unchanged."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.pages import blocks, blocks_by_place, commands
from support.paths import DATA, ROOT
from support.processes import LANGO_STORE, PYTEST, Program, run_program

from lango_store import Message, Store, ToolCall

pytestmark = pytest.mark.slow

PROGRAMS = {
    place: program
    for place, program in blocks_by_place("python").items()
    if not place.startswith("docs/frameworks/")  # these run where the frameworks are
    and not program.startswith("# test_")  # these run with pytest
    and "import pandas" not in program  # tests/frameworks/test_page_of_usage.py
    and "interchange.adopt(" not in program  # tests/frameworks/adoption/test_page_of_adoption.py
}
SCRIPTS = blocks_by_place("sh")


OPENAI_AGENTS = """
CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP, updated_at TIMESTAMP);
CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT, message_data TEXT, created_at TIMESTAMP);
"""
"""The tables of `SQLiteSession`."""

RUN_ON = [  # by other tests: workers, and programs that import others of their page
    place for place, program in PROGRAMS.items() if "run(store.work(" in program or "from chat import" in program
]


@pytest.mark.parametrize("place", [place for place in PROGRAMS if place not in RUN_ON])
def test_program_on_a_page_runs(place: str, tmp_path: Path, make_postgres: MakeDatabase) -> None:
    program = PROGRAMS[place].replace("postgresql+psycopg://app@localhost/agents", make_postgres(migrated=False))
    done = run_program(program, folder=tmp_path, strict=True)
    assert done.returncode == 0, done.stderr


def test_first_programs_can_run_twice_in_one_folder(tmp_path: Path) -> None:
    first = [PROGRAMS[place] for place in PROGRAMS if place.startswith("README.md")]
    start = [PROGRAMS[place] for place in PROGRAMS if place.startswith("docs/start/first-conversation.md")]
    for program in [*first, *start, *first, start[-1]]:
        done = run_program(program, folder=tmp_path, strict=True)
        assert done.returncode == 0, done.stderr


def test_first_program_prints_the_output_on_the_page(tmp_path: Path) -> None:
    program, output = blocks("README.md", "python")[0], blocks("README.md", "text")[-1]
    for _ in range(2):  # the page says that a second run prints the same
        assert run_program(program, folder=tmp_path).stdout == output


def test_demo_of_a_killed_worker_finishes_the_answer(tmp_path: Path) -> None:
    done = run("demo", "--kill", folder=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")
    first, begun, partial, killed, *_, answer, last = [each.rstrip() for each in done.stdout.splitlines()]
    assert first.startswith("reader     user: ")
    assert re.match(r"worker \d   begins attempt 1", begun)
    assert "kill -9" in killed
    assert answer.replace("assistant: ", "").startswith(partial)
    assert last.startswith("2 messages, 1 turn, nothing lost")
    assert max(map(len, done.stdout.splitlines())) < 80


def test_sessions_of_a_framework_are_adopted_and_served(tmp_path: Path) -> None:
    item = {"role": "user", "content": "Weather in Oslo?"}
    with closing(sqlite3.connect(tmp_path / "agents.db")) as connection, connection:
        connection.executescript(OPENAI_AGENTS)
        connection.execute("INSERT INTO agent_messages VALUES (1, 'ann', ?, '2026-11-01')", [json.dumps(item)])
    adopt, serve = (
        words for script in blocks("README.md", "sh") for words in commands(script) if "new.db" in words[-1]
    )
    done = run(*adopt[1:], folder=tmp_path)
    assert (done.returncode, done.stdout.split(";")[0]) == (0, "adopted 1 session, continued 0, 1 message")
    with Program(LANGO_STORE, *serve[1:], "--port", "0", folder=tmp_path) as program:
        address = program.stdout.readline().strip()
        with urlopen(address) as response:
            assert "ann" in response.read().decode()
        program.send_signal(signal.SIGINT)


@pytest.mark.timeout(300)
def test_programs_on_the_pages_pass_mypy_without_the_pydantic_plugin(tmp_path: Path) -> None:
    for number, program in enumerate(PROGRAMS.values()):
        name = program.split()[1] if program.startswith(("# chat.py\n", "# service.py\n")) else f"program_{number}.py"
        (tmp_path / name).write_text(program)
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-nanobot.*]\nignore_missing_imports = True\n")
    strictly = [
        "--strict",
        "--follow-imports=silent",
        f"--cache-dir={ROOT / '.mypy_cache' / 'readme'}",
        "--config-file=mypy.ini",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *strictly, "."],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def lango_store_arguments(script: str) -> list[list[str]]:
    """Return the arguments of each `lango-store` command in a script."""
    return [words[1:] for words in commands(script) if words[0] == "lango-store"]


def run_lango_store_commands(script: str, folder: Path) -> None:
    """Run the `lango-store` commands of a script on agent.db in the folder."""
    for words in lango_store_arguments(script):
        done = run(*words, folder=folder, environment={"LANGO_STORE_URL": "sqlite:///agent.db"})
        assert done.returncode == 0, (words, done.stderr)


def test_migration_commands_on_the_pages_run(tmp_path: Path) -> None:
    (block,) = (script for script in SCRIPTS.values() if "lango-store db current" in script)
    run_lango_store_commands(block, tmp_path)


def test_commands_on_the_operations_page_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url, migrate=True, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC)) as store:
        for user in ("ann", "bob"):
            store.create(f"old:{user}", user_id=user, ttl=timedelta(days=1))
        old = [Message(role="user", content="Oslo weather?")]
        store.create("telegram:12345678", user_id="bob", ttl=timedelta(days=1), messages=old)
    with Store(url) as store:
        store.expire(archive=tmp_path / "cold.db")
        store.create("new", user_id="ann")
        conversation = store.open("telegram:87654321")
        call = ToolCall(id="c", name="mail", arguments={})
        asking = conversation.append_message(Message.assistant(tool_calls=[call]))
        with suppress(ConnectionError), conversation.turn("t0") as turn, turn.call(asking, 0):
            raise ConnectionError
        conversation.turn("t1").begin()
    run_lango_store_commands("".join(blocks("docs/production/operations.md", "sh")), tmp_path)
    with Store(url) as store:
        assert store.turns.list_in_progress().items == []
        assert store.conversation("telegram:87654321").messages()[-1].content == "Not sent."


def test_commands_on_the_pages_import_nanobot_sessions(tmp_path: Path) -> None:
    (block,) = (script for script in SCRIPTS.values() if "import workspace/sessions" in script)
    sessions = DATA / "nanobot_g2"
    shutil.copytree(sessions, tmp_path / "workspace" / "sessions", ignore=shutil.ignore_patterns("corrupt"))
    run_lango_store_commands(block, tmp_path)
    assert len(list((tmp_path / "back").iterdir())) == 5


def test_commands_on_the_pages_import_sessions_of_other_systems_and_plain_messages(tmp_path: Path) -> None:
    data = DATA
    shutil.copytree(data / "dive", tmp_path / ".myapp" / "sessions", ignore=shutil.ignore_patterns("golden.json"))
    shutil.copy(data / "shepherd" / ".shepherd_session.openai.json", tmp_path)
    (tmp_path / "chats.csv").write_text("role,content,session,time\nuser,Hello,csv:1,2026-11-21\n")
    (tmp_path / "train.jsonl").write_text('{"messages": [{"role": "user", "content": "Hello"}]}\n')
    for name in ("import ~/.myapp/sessions", "import .shepherd_session", "import chats.csv"):
        (block,) = (script for script in SCRIPTS.values() if name in script)
        run_lango_store_commands("lango-store db upgrade\n" + block.replace("~", str(tmp_path)), tmp_path)


def test_backup_commands_on_the_pages_run(tmp_path: Path) -> None:
    back_up, copy = (
        script for script in SCRIPTS.values() if "import backup\n" in script or "copy --from sqlite:" in script
    )
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        store.create("k", messages=[Message(role="user", content="hello")])
    shutil.copy(tmp_path / "agent.db", tmp_path / "copy.db")
    run_lango_store_commands(back_up + copy, tmp_path)
    assert (tmp_path / "backup" / "lango_store.jsonl").exists()


def test_commands_on_the_first_conversation_page_show_the_stored_sessions(tmp_path: Path) -> None:
    for place in PROGRAMS:
        if place.startswith("docs/start/first-conversation.md"):
            assert run_program(PROGRAMS[place], folder=tmp_path).returncode == 0
    (block,) = (script for script in SCRIPTS.values() if "sessions list --url sqlite:///agent.db" in script)
    listed, shown = (run(*words, folder=tmp_path) for words in lango_store_arguments(block))
    assert [line.partition("\t")[0] for line in listed.stdout.splitlines()] == ["telegram:77", "ann:42"]
    assert "Messages so far: 1." in shown.stdout


def test_search_and_html_commands_on_the_pages_run(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        store.create("telegram:42", user_id="ann", messages=[Message.user("Oslo weather?")])
    (searching,) = (script for script in SCRIPTS.values() if "lango-store search disable" in script)
    (writing,) = (script for script in SCRIPTS.values() if "--html out.html" in script)
    for words in lango_store_arguments(searching + writing):
        done = run(*words, folder=tmp_path, environment={"LANGO_STORE_URL": "sqlite:///agent.db"})
        assert done.returncode == 0, (words, done.stderr)
        assert "Oslo" in done.stdout or "oslo weather" not in words
    assert "Oslo weather?" in (tmp_path / "out.html").read_text()


def test_example_tests_on_the_testing_page_pass(tmp_path: Path) -> None:
    for number, tests in enumerate(blocks("docs/howto/testing.md", "python")):
        (tmp_path / f"test_{number}.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if name != "LANGO_STORE_TEST_POSTGRES"}
    words = ("-q", "-p", "no:cacheprovider")
    done = run_program(PYTEST, *words, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_example_backup_on_the_formats_page_has_the_fields_of_a_real_backup(tmp_path: Path) -> None:
    (shown,) = blocks("docs/reference/formats.md", "text")
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        conversation = store.open("k", settings={"thinking": "high"})
        conversation.save_turn([Message.user("hello")], {})
        exported = run("export", "--all", "--format", "backup", "--to", "-", "--url", f"sqlite:///{tmp_path}/agent.db")
    assert exported.returncode == 0, exported.stderr
    for line, real in zip(shown.splitlines(), exported.stdout.splitlines(), strict=True):
        example, written = json.loads(line.replace(",…", "")), json.loads(real)
        assert example.keys() == written.keys()
        ((kind, fields),) = list(example.items())[:1]
        if isinstance(fields, dict):
            assert fields.keys() <= written[kind].keys()
            assert "…" in line or fields.keys() == written[kind].keys()
