"""What the README and the documentation show, runs, and what is public stands in them."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from commands import run
from conftest import MakeDatabase
from processes import run_program

from lango_store import Message, Store

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "frameworks" not in path.parts  # their programs run where the frameworks are
}


def blocks(kind: str) -> dict[str, str]:
    """Give the code blocks of a kind by page and place."""
    found = {}
    for page, text in PAGES.items():
        for number, block in enumerate(re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
            found[f"{page}-{number}"] = block
    return found


PROGRAMS = blocks("python")
SCRIPTS = blocks("sh")


@pytest.mark.parametrize("place", PROGRAMS)
def test_programs_run(place: str, tmp_path: Path, make_postgres: MakeDatabase) -> None:
    program = PROGRAMS[place].replace("postgresql+psycopg://app@localhost/agents", make_postgres(migrated=False))
    done = run_program(program, folder=tmp_path, strict=True)
    assert done.returncode == 0, done.stderr


def test_the_first_programs_run_one_after_the_other_and_again(tmp_path: Path) -> None:
    first = [PROGRAMS[place] for place in PROGRAMS if place.startswith(("README.md", "docs/index.md"))]
    start = [PROGRAMS[place] for place in PROGRAMS if place.startswith("docs/start/first-conversation.md")]
    for program in [*first, *start, *first, start[-1]]:
        done = run_program(program, folder=tmp_path, strict=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
def test_programs_pass_mypy_without_pydantics_plugin(tmp_path: Path) -> None:
    for number, program in enumerate(PROGRAMS.values()):
        (tmp_path / f"program_{number}.py").write_text(program)
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


@pytest.mark.parametrize("place", SCRIPTS)
def test_shell_blocks_are_shell(place: str) -> None:
    done = subprocess.run(["sh", "-n"], input=SCRIPTS[place], capture_output=True, text=True, timeout=10)
    assert (done.stderr, done.returncode) == ("", 0)


def commands(block: str) -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words[1:] for words in lines if words and words[0] == "lango-store"]


def test_commands_of_migrations_run(tmp_path: Path) -> None:
    (block,) = (script for script in SCRIPTS.values() if "lango-store db current" in script)
    for words in commands(block):
        done = run(*words, folder=tmp_path, environment={"LANGO_STORE_URL": "sqlite:///agent.db"})
        assert done.returncode == 0, (words, done.stderr)


def test_commands_of_operators_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    (block,) = (script for script in SCRIPTS.values() if "lango-store doctor" in script)
    with Store(url, migrate=True, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC)) as store:
        for user in ("ann", "bob"):
            store.create(f"old:{user}", user_id=user, ttl=timedelta(days=1))
        old = [Message(role="user", content="Oslo weather?")]
        store.create("telegram:12345678", user_id="bob", ttl=timedelta(days=1), messages=old)
    with Store(url) as store:
        store.expire(archive=tmp_path / "cold.db")
        store.create("telegram:12345678", messages=old)
        store.create("new", user_id="ann")
    for words in commands(block):
        done = run(*words, folder=tmp_path, environment={"LANGO_STORE_URL": url})
        assert done.returncode == 0, (words, done.stderr)


def test_commands_of_nanobots_people_run(tmp_path: Path) -> None:
    (block,) = (script for script in SCRIPTS.values() if "import workspace/sessions" in script)
    sessions = Path(__file__).parent / "data" / "nanobot_g2"
    shutil.copytree(sessions, tmp_path / "workspace" / "sessions", ignore=shutil.ignore_patterns("corrupt"))
    for words in commands(block):
        done = run(*words, folder=tmp_path, environment={"LANGO_STORE_URL": "sqlite:///agent.db"})
        assert done.returncode == 0, (words, done.stderr)
    assert len(list((tmp_path / "everything").iterdir())) == 5


def test_commands_of_other_systems_people_run(tmp_path: Path) -> None:
    data = Path(__file__).parent / "data"
    shutil.copytree(data / "dive", tmp_path / ".myapp" / "sessions", ignore=shutil.ignore_patterns("golden.json"))
    shutil.copy(data / "shepherd" / ".shepherd_session.openai.json", tmp_path)
    shutil.copy(data / "lango" / "lango.db", tmp_path)
    for name in ("import ~/.myapp/sessions", "import .shepherd_session", "import lango.db"):
        (block,) = (script for script in SCRIPTS.values() if name in script)
        for words in [["db", "upgrade"], *commands(block.replace("~", str(tmp_path)))]:
            done = run(*words, folder=tmp_path, environment={"LANGO_STORE_URL": "sqlite:///agent.db"})
            assert done.returncode == 0, (words, done.stderr)


def test_commands_of_backups_run(tmp_path: Path) -> None:
    (block,) = (script for script in SCRIPTS.values() if "lango-store copy" in script)
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        store.create("k", messages=[Message(role="user", content="hello")])
    shutil.copy(tmp_path / "agent.db", tmp_path / "copy.db")
    for words in commands(block):
        done = run(*words, folder=tmp_path, environment={"LANGO_STORE_URL": "sqlite:///agent.db"})
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "backup" / "lango_store.jsonl").exists()


def test_schedules_are_what_their_readers_read() -> None:
    (crontab,) = blocks("crontab").values()
    variable, job = crontab.strip().splitlines()
    assert re.fullmatch(r"\w+=\S+", variable)
    assert re.match(r"[\d*]+ [\d*]+ [\d*]+ [\d*]+ [\d*]+ /\S+/lango-store expire ", job)
    assert_known(job.split(" >> ")[0])

    (units,) = blocks("ini").values()
    service, timer = (text for text in re.split(r"^# /etc/systemd/\S+$", units, flags=re.MULTILINE) if text.strip())
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(service)
    assert unit["Service"]["Type"] == "oneshot"
    assert_known(unit["Service"]["ExecStart"])
    schedule = configparser.ConfigParser(interpolation=None)
    schedule.read_string(timer)
    assert schedule["Timer"]["OnCalendar"] == "*-*-* 03:15:00"
    assert schedule["Install"]["WantedBy"] == "timers.target"

    (manifest,) = blocks("yaml").values()
    job_ = yaml.safe_load(manifest)
    assert (job_["apiVersion"], job_["kind"]) == ("batch/v1", "CronJob")
    (container,) = job_["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["env"][0]["name"] == "LANGO_STORE_URL"
    assert_known(" ".join(container["command"]))


def assert_known(command: str) -> None:
    """Check that a command's options exist."""
    options = re.findall(r"(--[\w-]+)", command)
    known = run("expire", "--help").stdout
    assert "lango-store expire" in command
    assert all(option in known for option in options), options


def test_make_says_what_it_runs() -> None:
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    for target in ("demo", "test", "long", "check", "lowest", "docs", "frameworks", "bench"):
        assert f"make {target}" in pages
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=10)
        assert done.returncode == 0, done.stderr
