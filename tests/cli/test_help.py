"""The help texts of the commands."""

import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from support import command_pages, help_examples
from support.commands import run, run_on_terminal

from lango_store.cli.example_outputs import OUTPUTS
from lango_store.cli.output import quantity
from lango_store.cli.root import JOBS

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
    first, *output = [line.strip() for line in example.strip().splitlines()]
    assert first.startswith("lango-store ")
    if name in COMMANDS:
        assert first == command_pages.example_of(COMMANDS[name])
        known = [each for start, each in OUTPUTS.items() if first.startswith(f"lango-store {start} ")]
        assert " ".join(output).split() == " ".join(known).split()
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


def test_help_lists_all_commands_by_job() -> None:
    jobs = dict(JOBS)
    names = [name for group in jobs.values() for name in group]
    assert sorted(names) == sorted({name.split()[1] for name in COMMANDS})
    shown = run("--help", environment={"COLUMNS": "80"}).stdout
    assert re.findall(r"^╭─ (\w+) ─", shown, re.MULTILINE) == ["Options", *jobs]
    assert re.findall(r"^│ ([a-z]+) {2,}", shown.partition("─ Look ─")[2], re.MULTILINE) == names


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the databases and the backup of the examples."""
    folder = tmp_path_factory.mktemp("examples")
    help_examples.prepare(folder)
    return folder


def comparable(text: str) -> list[str]:
    """Return the lines without digits, random keys, control sequences and the width of columns."""
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", text)
    plain = re.sub(r"[0-9a-f]{8,}…|\d[\d.,]*", "0", plain)
    return [" ".join(line.replace("█", "").split()) for line in plain.splitlines()]


@pytest.mark.one_database
@pytest.mark.parametrize("start", OUTPUTS)
def test_example_prints_the_output_in_its_help(prepared: Path, tmp_path: Path, start: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(prepared, folder)
    if start == "export":
        shutil.rmtree(folder / "backup")
    examples = map(command_pages.example_of, COMMANDS.values())
    (example,) = (each for each in examples if each.startswith(f"lango-store {start} "))
    words = shlex.split(example)[1:]
    environment = {"PAGER": ""}
    with chdir(folder):
        printed = run_on_terminal(*words, columns=76, environment=environment)[0]
    assert all(OUTPUTS.values())
    for line in comparable(OUTPUTS[start]):
        assert any(each.endswith(line) for each in comparable(printed)), printed
