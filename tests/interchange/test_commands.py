"""`lango-store import` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from conftest import MakeDatabase

DATA = Path(__file__).parent.parent / "data"
CONVERSATION = DATA / "nanobot_g1" / "telegram_12345678.jsonl"


@pytest.fixture
def home(tmp_path: Path, make_sqlite: MakeDatabase) -> Any:
    """Run a command on a database, in a folder of its own."""
    folder, url = tmp_path / "home", make_sqlite()
    folder.mkdir()
    return lambda *words: run(*words, folder=folder, environment={"LANGO_STORE_URL": url})


def test_commands_bring_sessions_in_and_out_again(home: Any, tmp_path: Path) -> None:
    done = home("import", str(DATA / "nanobot_g1"))
    assert done.returncode == 0, done.stderr
    assert "telegram_12345678.jsonl: 1 sessions, 6 messages" in done.stdout
    assert "imported 8 sessions, 14 messages from 8 files" in done.stdout
    assert "golden.json: no format recognises it, left out" in done.stderr
    again = home("import", str(DATA / "nanobot_g1"))
    assert (again.returncode, "imported 0 sessions" in again.stdout) == (0, True)
    out = home("export", "--all", "--to", "out", "--format", "nanobot")
    assert out.returncode == 0, out.stderr
    for path in (tmp_path / "home" / "out").iterdir():
        assert path.read_bytes() == (DATA / "nanobot_g1" / path.name).read_bytes()


def test_a_backup_whose_sessions_are_there_is_told_of_in_a_line(home: Any) -> None:
    home("import", str(DATA / "nanobot_g1"))
    home("export", "--all", "--to", "out", "--format", "jsonl")
    again = home("import", "out")
    assert "lead:trail  and 7 more are there already\n" in again.stdout


def test_json_is_a_line_a_file(home: Any) -> None:
    done = home("import", str(DATA / "nanobot_g2" / "corrupt"), "--json", "--dry-run")
    told = {Path(each["path"]).stem: each for each in map(json.loads, done.stdout.splitlines())}
    assert len(told) == 7
    assert told["empty"] | {"path": ""} == {
        "path": "",
        "format": "nanobot",
        "keys": ["empty"],
        "sessions": 1,
        "messages": 0,
        "already_there": [],
        "collided": [],
        "skipped": [],
        "error": None,
        "dry_run": True,
    }
    assert told["truncated_last_line"]["skipped"][0]["line"] == 3
    assert done.returncode == 1


def test_exit_codes_of_import(home: Any, tmp_path: Path) -> None:
    assert home("import", str(CONVERSATION)).returncode == 0
    changed = tmp_path / "telegram_12345678.jsonl"
    changed.write_text(CONVERSATION.read_text().replace("weather?", "rain?"))
    collided = home("import", str(changed))
    assert (collided.returncode, "collides" in collided.stdout) == (0, True)
    bad = home("import", str(DATA / "nanobot_g2" / "corrupt" / "all_bad.jsonl"))
    assert (bad.returncode, "holds no line that can be read" in bad.stderr) == (1, True)
    assert home("import", "missing").returncode == 2
    assert home("import", str(CONVERSATION), "--format", "foo").returncode == 2
    assert home("import", str(CONVERSATION), "--url", "sqlite:////nowhere/a.db").returncode == 3


def test_exit_codes_of_export(home: Any) -> None:
    home("import", str(CONVERSATION))
    nanobot = ("--to", "out", "--format", "nanobot")
    assert home("export", "telegram:12345678", *nanobot).returncode == 0
    assert home("export", "missing", *nanobot).returncode == 1
    assert home("export", *nanobot).returncode == 2
    assert home("export", "--all", "--format", "nanobot").returncode == 2
    told = home("export", "--all", *nanobot, "--json")
    assert json.loads(told.stdout) == {
        "key": "telegram:12345678",
        "path": str(Path("out") / "telegram_12345678.jsonl"),
        "error": None,
    }
