"""Copies of the project, for tests that change its source files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

_COPIED = ("lango_store", "migrations", "tests", "benchmarks", "docs", ".ci", ".github")
_FILES = ("alembic.ini", "pyproject.toml", "mkdocs.yml", "Makefile", *(path.name for path in ROOT.glob("*.md")))
_IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")


def copy_project(folder: Path, *names: str) -> Path:
    """Copy folders and files of the project, by default all that tests and linters need; return the new folder."""
    for name in names or (*_COPIED, *_FILES):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=_IGNORED)
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def run_in_copy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy of the project, so that it imports the copied package."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(folder / "tests")])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
