"""What the README shows, runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeDatabase

from lango_store.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


PROGRAMS = blocks("python")
SCRIPTS = blocks("sh")


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_run(number: int, tmp_path: Path, make_postgres: MakeDatabase) -> None:
    program = PROGRAMS[number].replace("postgresql+psycopg://app@localhost/agents", make_postgres(migrated=False))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_shell_blocks_are_shell(number: int) -> None:
    done = subprocess.run(["sh", "-n"], input=SCRIPTS[number], capture_output=True, text=True, timeout=10)
    assert (done.stderr, done.returncode) == ("", 0)


def test_commands_run(tmp_path: Path) -> None:
    commands = [line.split("#")[0].split() for block in SCRIPTS for line in block.splitlines()]
    ours = [words for words in commands if words and words[0] == "lango-store"]
    assert len(ours) >= 6
    for words in ours:
        done = subprocess.run(
            [sys.executable, "-m", "lango_store.cli", *words[1:]],
            cwd=tmp_path,
            env=os.environ | {"LANGO_STORE_URL": "sqlite:///agent.db"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, (words, done.stderr)


def test_every_command_stands_in_the_readme() -> None:
    missing = []
    for group in [app, *(each.typer_instance for each in app.registered_groups)]:
        assert group is not None
        for command in group.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__
            prefix = "" if group is app else f"{_name(group)} "
            if f"lango-store {prefix}{name}" not in README:
                missing.append(f"{prefix}{name}")
    assert missing == []


def _name(group: object) -> str | None:
    return next(each.name for each in app.registered_groups if each.typer_instance is group)


def test_make_says_what_it_runs() -> None:
    for target in ("demo", "test", "check"):
        assert f"make {target}" in README
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=10)
        assert done.returncode == 0, done.stderr
