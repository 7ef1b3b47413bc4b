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

Every command and every option. `PYTHONPATH=tests python tests/support/command_pages.py` writes this page.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the answer is no: no such session, nothing found, schema out of date, damage, or a failure |
| 2 | wrong usage, no such file, or the role of the URL may not do that: a person has to change it |
| 3 | the database cannot be reached, opened or written, or is busy: a retry may succeed |
| 130 | interrupted |
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Return each command by its full name, in the order of the help."""
    return _below("lango-store", typer.main.get_command(app))


def page() -> str:
    """Write the page."""
    return "\n".join([_INTRODUCTION, *(_section(name, command) for name, command in commands())])


def options(command: Any) -> Iterator[tuple[str, str]]:
    """Return a command's arguments and options by how they are written, with what they are for."""
    for each in command.params:
        if each.param_type_name == "argument":
            yield (each.metavar or each.name.upper()), each.help or ""
        elif not each.hidden:
            yield ", ".join([*each.opts, *each.secondary_opts]), each.help or ""


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for each in inner:
        yield from _below(f"{name} {each}", inner[each])


def _section(name: str, command: Any) -> str:
    rows = [f"| `{written}` | {_cell(meaning)} |" for written, meaning in options(command)]
    table = ["| argument or option | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {name}", "", inspect.cleandoc(command.help or ""), "", *table])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    PAGE.write_text(page(), encoding="utf-8")
