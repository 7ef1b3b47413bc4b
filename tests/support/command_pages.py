"""The page of all commands, which a test compares with the command line."""

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import typer
from support.paths import ROOT

from lango_store.cli import app

PAGE: Final = ROOT / "docs" / "reference" / "commands.md"

_INTRODUCTION: Final = """# Commands

`lango-store COMMAND --help` prints the options. `--url` selects the database, otherwise `$LANGO_STORE_URL`, then
`$DATABASE_URL`. `lango-store --install-completion` installs completion for bash, zsh, fish or PowerShell.

DURATION is a number with a unit: `45s`, `90m`, `12h`, `30d` or `2w`. TIME is a date or a time in ISO 8601, in UTC
unless it has an offset, `today`, `yesterday`, or an age such as `7d`.

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
    """Return the text of the page: a section for the plain commands, and one for each group."""
    sections: dict[str, list[tuple[str, Any]]] = {}
    for name, command in commands():
        group, *rest = name.removeprefix("lango-store ").split()
        grouped = rest or getattr(command, "commands", {})
        sections.setdefault(f"lango-store {group}" if grouped else "lango-store", []).append((name, command))
    return "\n".join([_INTRODUCTION, *(_section(title, each) for title, each in sections.items())])


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
    title, _, lines = (command.epilog or "").partition("\n\n")
    return lines.partition("\n")[0] if title == "Example:" else ""


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield name, command
    for each in inner:
        yield from _below(f"{name} {each}", inner[each])


def _section(title: str, described: list[tuple[str, Any]]) -> str:
    lines = [f"- `{_short_example(command)}`: {_summary(command)}" for _, command in described]
    return "\n".join([f"## {title}", "", *lines, ""])


def _short_example(command: Any) -> str:
    return re.sub(r" --url \S+$", "", example_of(command))


def _summary(command: Any) -> str:
    """Return the first paragraph of the help."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    PAGE.write_text(page(), encoding="utf-8")
