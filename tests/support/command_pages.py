"""The page of all commands and their options, which a test compares with the command line."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

import typer
from support.paths import ROOT

from lango_store.cli import app

PAGE: Final = ROOT / "docs" / "reference" / "commands.md"

_INTRODUCTION: Final = """# Commands

This page lists every command with its arguments and options. It is generated from the command line itself, with
`PYTHONPATH=tests python tests/support/command_pages.py`. `lango-store COMMAND --help` prints the same text.

`lango-store --install-completion` installs completion of commands and options for your shell: bash, zsh, fish or
PowerShell. Completion works in shells that you start afterwards.

DURATION is a number with a unit: `45s`, `90m`, `12h`, `30d` or `2w`. TIME is a date or a time in ISO 8601, in UTC
unless it has an offset, or an age such as `12h ago`.

## Exit codes

| exit code | meaning |
|---|---|
| 0 | success, also if the reader of a pipe ends early |
| 1 | a named session or item does not exist, a check failed, a purge kept some sessions, or another failure |
| 2 | wrong usage, a missing database file, or missing permissions |
| 3 | the database is busy (try again), or cannot be used; or standard output cannot be written |
| 130 | interrupted |
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its full name, in the order of the help."""
    return _below("lango-store", typer.main.get_command(app))


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_INTRODUCTION, *(_section(name, command) for name, command in commands())])


def options(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the arguments and options of a command, each with its help text."""
    for each in command.params:
        if each.param_type_name == "argument":
            yield (each.metavar or each.name.upper()), _meaning(each)
        elif not each.hidden:
            names = ", ".join([*each.opts, *each.secondary_opts])
            yield f"{names} {each.metavar}" if each.metavar else names, _meaning(each)


def _meaning(parameter: Any) -> str:
    text = parameter.help or ""
    has_default = isinstance(parameter.default, str | int | float) and parameter.default is not False
    return f"{text} Default: {parameter.default}." if has_default and "Default:" not in text else text


def example_of(command: Any) -> str:
    """Return the example at the end of a command's help, "" if it has none."""
    title, _, line = (command.epilog or "").partition("\n\n")
    return line if title == "Example:" else ""


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield name, command
    for each in inner:
        yield from _below(f"{name} {each}", inner[each])


def _section(name: str, command: Any) -> str:
    rows = [f"| `{_cell(written)}` | {_cell(meaning)} |" for written, meaning in options(command)]
    table = ["| argument or option | meaning |", "|---|---|", *rows, ""] if rows else []
    block = ["```sh", example_of(command), "```", ""]
    return "\n".join([f"## {name}", "", inspect.cleandoc(command.help or ""), "", *block, *table])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    PAGE.write_text(page(), encoding="utf-8")
