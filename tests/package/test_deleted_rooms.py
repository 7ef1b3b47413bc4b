"""The core works without a room: it is deleted from a copy, and the core's tests run there, with the linters if they
are installed.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support import rooms
from support.copies_of_project import copy_project, run_in_copy
from support.deleted_rooms import delete

from lango_store._rooms.composition import ROOMS

TESTS = [
    *(f"store/test_{name}.py" for name in ("append_or_create", "cuts", "lists", "message_ids", "messages", "sessions")),
    *(f"store/test_{name}.py" for name in ("named_values", "paging", "sound_rows", "transactions", "using")),
    *("conversation/test_turns.py", "store/test_ttl.py"),
]
"""Tests of the core that call no method of a room."""
ALONE = ROOMS if "LANGO_STORE_EACH_ROOM" in os.environ else ("turns_in_progress",)
GROUPS = [[room] for room in ALONE] + [[room for room in ROOMS if room != "turns_in_progress"]]
"""The rooms to delete, each with those that need it: the one that most others need, and all others. For each group, the
core is checked without a cache, which takes a minute; LANGO_STORE_EACH_ROOM deletes each room alone, too.
"""
CHECKED = ["__init__.py", *(part for part in rooms.CORE if "/" not in part)]
MYPY = "-m mypy --config-file pyproject.toml --cache-dir"
PYTEST = "-m pytest -p no:cacheprovider -m"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("named", GROUPS, ids="+".join)
def test_core_works_without_the_rooms(named: list[str], tmp_path: Path) -> None:
    copy = copy_project(tmp_path / "project")
    assert {*named} <= {*delete(copy, *named)}
    ruff = shutil.which("ruff", path=Path(sys.executable).parent)
    tidy = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    checked = [f"lango_store/{part}" for part in CHECKED]
    linters = [
        ["-c", tidy, str(ruff), "check", "--quiet", "--fix", "--select", "F401,I,UP039", "lango_store"],
        ["-c", tidy, str(ruff), "check", "--quiet", "lango_store"],
        [*MYPY.split(), str(tmp_path / "mypy"), *checked],
    ]
    for command in (
        *(linters if ruff else []),
        [*PYTEST.split(), "not slow and not postgresql", *(f"tests/{name}" for name in TESTS)],
    ):
        done = run_in_copy(copy, *command)
        assert done.returncode == 0, done.stdout + done.stderr
