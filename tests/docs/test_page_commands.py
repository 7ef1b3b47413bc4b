"""Commands, options, extras and make targets on the pages exist."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from typing import Any, Final

import pytest
from support import command_pages
from support.pages import PAGES, blocks, commands
from support.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text().replace("$(BIN)/", "").replace('"', "")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS, GROUPS = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
CLI_COMMANDS = {name.removeprefix("lango-store "): command for name, command in command_pages.commands()}
# Pages that may have code blocks of a language, because a test checks them there; None: any page.
TESTED_BLOCKS: Final[dict[str, tuple[str, ...] | None]] = {
    "js": ("docs/howto/front-ends.md",),
    "jsx": ("docs/howto/chat.md",),
    "ts": ("docs/howto/typescript.md",),
    "html": ("docs/howto/chat.md",),
    "python": None,  # run by test_readme.py and tests/frameworks
    "sh": None,  # checked in this file
    "diff": ("docs/index.md", "docs/frameworks/"),
    "crontab": ("docs/production/operations.md",),
    "ini": ("docs/howto/chat.md",),
    "sql": (
        "UPGRADING.md",
        "docs/howto/queries.md",
        "docs/production/postgresql.md",
        "docs/production/growing.md",
        "docs/howto/queries.md",
        "docs/howto/usage.md",
        "docs/howto/users.md",
        "docs/reference/tables.md",
    ),
    "toml": ("docs/howto/expiry.md",),
    "yaml": ("docs/frameworks/google-adk.md",),
    "text": (
        "README.md",
        "docs/frameworks/",
        "docs/why/design.md",
        "docs/why/proof.md",
        "docs/howto/queries.md",
        "docs/howto/subagents.md",
        "docs/howto/usage.md",
        "docs/howto/users.md",
        "docs/howto/fine-tuning.md",
        "docs/production/migrations.md",
        "docs/production/telemetry.md",
        "docs/reference/formats.md",
    ),
}

# Other programs on the pages: test_page_scripts.py and the tests of the pages run them.
OTHER_PROGRAMS: Final = (
    "adk",
    "exec",
    "export",
    "grep",
    "pg_dump",
    "pg_restore",
    "psql",
    "python3 -m venv",
    "set",
    "sqlite3",
    "uvicorn chat:app",
)
# Programs that set up a machine as root, on docs/howto/chat.md. No test runs them.
SETUP_PROGRAMS: Final = ("apt-get install", "chmod", "curl", "echo", "install", "mv", "systemctl", "useradd")


def test_code_blocks_have_only_languages_that_a_test_checks() -> None:
    for page, text in PAGES.items():
        fences = re.findall(r"^([ >]*)```(\S*)", text, re.MULTILINE)
        assert all(not indent for indent, _ in fences), f"{page}: no test finds an indented block"
        assert all(not end for _, end in fences[1::2]), page
        for _, kind in fences[::2]:
            places = TESTED_BLOCKS.get(kind, ())
            assert places is None or page.startswith(places), f"{page}: {kind or 'no language'}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")])
def test_shell_blocks_are_valid_and_name_existing_commands(page: str) -> None:
    scripts = ["{\n:\n" + block + "}\n" for block in blocks(page, "sh")]  # so that each is complete
    done = subprocess.run(["sh", "-n"], input="".join(scripts), capture_output=True, text=True, timeout=10)
    assert (done.stderr, done.returncode) == ("", 0)
    for script in blocks(page, "sh"):
        for words in commands(script):
            check(shlex.join(words))


def check(command: str) -> None:
    """Check that a program exists and has these commands, options and extras."""
    program, *words = shlex.split(command)
    program = program.removeprefix(".venv/bin/").removeprefix("/opt/chat/bin/")
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
        path = ROOT / "benchmarks" / module
        source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))
    else:
        line = " ".join((program, *words))
        assert line.startswith(OTHER_PROGRAMS + SETUP_PROGRAMS) or f"\t{line}\n" in MAKEFILE, line


def parse(*words: str) -> Any:
    """Parse a command as `lango-store` does, without running it."""
    if words[0] == "search" and f"search {words[1]}" not in CLI_COMMANDS:
        words = ("search", "for", *words[1:])
    name = max(command_names(words), key=len)  # `turns release`, not `turns`
    return CLI_COMMANDS[name].make_context(name, list(words[len(name.split()) :]))


def command_names(words: Sequence[str]) -> list[str]:
    """Return the names of commands that are a prefix of these words."""
    return [name for name in CLI_COMMANDS if list(words[: len(name.split())]) == name.split()]


def test_commands_and_options_named_in_prose_exist() -> None:
    for page, text in PAGES.items():
        for command in re.findall(r"`lango-store (?!--version`|--install-completion`|COMMAND --help`)([^`|]+)", text):
            group, *rest = words = command.split()
            names = command_names(words) or [
                name for name in CLI_COMMANDS if name.startswith(f"{group} ") and rest in ([], ["…"])
            ]
            assert names, (page, command)
            options = {option for name in names for parameter in CLI_COMMANDS[name].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options, (page, command)


def test_make_targets_on_the_pages_exist() -> None:
    pages = PAGES["README.md"] + PAGES["CONTRIBUTING.md"]
    for target in ("demo", "test", "long", "check", "lowest", "docs", "frameworks", "bench", "proof"):
        assert f"make {target}" in pages
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=10)
        assert done.returncode == 0, done.stderr
