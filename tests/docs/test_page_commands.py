"""What the pages tell people to type: every command, option and extra is there."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from typing import Any, Final

import pytest
from support import command_pages
from support.pages import PAGES, blocks_by_place, commands
from support.paths import ROOT

SCRIPTS = blocks_by_place("sh")
MAKEFILE = (ROOT / "Makefile").read_text().replace("$(BIN)/", "")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS, GROUPS = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
OURS = {name.removeprefix("lango-store "): command for name, command in command_pages.commands()}
# Kinds of code blocks, and where a test takes those up that are not the same everywhere.
READ: Final[dict[str, tuple[str, ...] | None]] = {
    "python": None,  # each runs: test_readme.py, and the tests of the frameworks' pages
    "sh": None,  # here
    "diff": ("docs/frameworks/",),
    "crontab": ("docs/production/operations.md",),
    "ini": ("docs/production/operations.md",),
    "sql": ("docs/production/postgresql.md", "docs/production/growing.md"),
    "yaml": ("docs/production/operations.md", "docs/frameworks/google-adk.md"),
    "text": (
        "docs/frameworks/",
        "docs/why/design.md",
        "docs/howto/testing.md",
        "docs/production/migrations.md",
        "docs/reference/formats.md",
    ),
}


# Other programs, which tests run: test_page_scripts.py, and those of ADK's page.
ELSEWHERE: Final = ("adk", "exec", "pg_dump", "pg_restore", "psql", "python3 -m venv", "set", "sqlite3")


def test_every_block_is_of_a_kind_that_a_test_reads() -> None:
    for page, text in PAGES.items():
        fences = re.findall(r"^([ >]*)```(\S*)", text, re.MULTILINE)
        assert all(not indent for indent, _ in fences), f"{page}: an indented block is found by no test"
        assert all(not end for _, end in fences[1::2]), page
        for _, kind in fences[::2]:
            places = READ.get(kind, ())
            assert places is None or page.startswith(places), f"{page}: {kind or 'no language'}"


@pytest.mark.parametrize("place", SCRIPTS)
def test_a_shell_block_is_shell_and_names_what_is_there(place: str) -> None:
    done = subprocess.run(["sh", "-n"], input=SCRIPTS[place], capture_output=True, text=True, timeout=10)
    assert (done.stderr, done.returncode) == ("", 0)
    for words in commands(SCRIPTS[place]):
        check(shlex.join(words))


def check(command: str) -> None:
    """Check that a program is known, and that it has these commands, options and extras."""
    program, *words = shlex.split(command)
    program = program.removeprefix(".venv/bin/")
    if program == "lango-store":
        parse(*words)
    elif program == "pip":
        assert words[0] == "install"
        for extra in re.findall(r"[\w-]+(?=[\],])", " ".join(words)):
            assert extra in EXTRAS
        assert all(words[place + 1] in GROUPS for place, word in enumerate(words) if word == "--group")
    elif program == "make":
        assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in words)
    elif (program, *words[:1]) == ("python", "-m") and words[1].startswith("benchmarks"):
        module = words[1].partition(".")[2] or "__main__"
        source = (ROOT / "benchmarks" / f"{module}.py").read_text()
        assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))
    else:
        said = " ".join((program, *words))
        assert said.startswith(ELSEWHERE) or f"\t{said}\n" in MAKEFILE, said


def parse(*words: str) -> Any:
    """Read a command as `lango-store` does, without running it."""
    if words[0] == "search" and f"search {words[1]}" not in OURS:
        words = ("search", "for", *words[1:])
    (name,) = named(words)
    return OURS[name].make_context(name, list(words[len(name.split()) :]))


def named(words: Sequence[str]) -> list[str]:
    """Return the command that these words begin with."""
    return [name for name in OURS if list(words[: len(name.split())]) == name.split()]


def test_every_command_in_a_sentence_is_there() -> None:
    for page, text in PAGES.items():
        for said in re.findall(r"`lango-store (?!--version`|--install-completion`|COMMAND --help`)([^`|]+)", text):
            group, *rest = words = said.split()
            meant = named(words) or [name for name in OURS if name.startswith(f"{group} ") and rest in ([], ["…"])]
            assert meant, (page, said)
            options = {option for name in meant for parameter in OURS[name].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options, (page, said)


def test_make_says_what_it_runs() -> None:
    pages = PAGES["README.md"] + PAGES["CONTRIBUTING.md"]
    for target in ("demo", "test", "long", "check", "lowest", "docs", "frameworks", "bench"):
        assert f"make {target}" in pages
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=10)
        assert done.returncode == 0, done.stderr
