"""The help texts of the commands."""

import shlex
from typing import Any

import pytest
from support import command_pages
from support.commands import run

from lango_store.cli.output import quantity

COMMANDS = dict(command_pages.commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_one_example_that_the_command_parses(name: str) -> None:
    example = command_pages.example_of(COMMANDS[name])
    assert example.startswith(f"{name} ")
    assert len(example) <= 76  # a line of a terminal with 80 columns
    words = shlex.split(example.removeprefix(name))
    assert COMMANDS[name].make_context(name, words).params


GROUPS = ["lango-store", *(f"lango-store {name}" for name in ("db", "search", "sessions", "turns"))]


@pytest.mark.parametrize("name", [*GROUPS, *COMMANDS])
def test_help_prints_the_example_on_one_line_and_explains_every_parameter(name: str) -> None:
    shown = run(*name.split()[1:], "--help", environment={"COLUMNS": "80"}).stdout
    _, _, example = shown.partition("Example:")
    assert example.strip().startswith("lango-store ")
    assert "\n" not in example.strip()
    assert "Any" not in shown
    if name in COMMANDS:
        assert all(meaning.endswith((".", "ago.")) for _, meaning in command_pages.options(COMMANDS[name]))
        for parameter in COMMANDS[name].params:
            takes_value = parameter.param_type_name == "option" and not parameter.is_flag
            assert parameter.metavar or not takes_value, parameter.name


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "turn", "0 turns"), (1, "turn", "1 turn"), (2_000, "turn", "2,000 turns"), (2, "batch", "2 batches")],
)
def test_quantity_has_a_singular_noun_only_if_the_count_is_1(count: int, noun: str, text: str) -> None:
    assert quantity(count, noun) == text


def test_help_names_the_option_that_installs_shell_completion() -> None:
    options: list[Any] = run("--help").stdout.split()
    assert "--install-completion" in options
