"""The command `lango-store search` and its subcommands."""

import json

import pytest
from support.commands import run, run_on_terminal
from support.databases import not_on_a_cluster
from support.factories import message

from lango_store import SearchHit, Store

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


@pytest.fixture
def filled(url: str) -> str:
    """Return the URL of a store with three messages and no search index."""
    with Store(url) as store:
        store.create("ann:1", user_id="ann", title="Travels", messages=[message("Weather in Oslo?")])
        store.create("bob:1", user_id="bob", messages=[message("oslo\tin a tab"), message("bergen", role="assistant")])
    return url


def test_search_commands_enable_show_rebuild_and_disable_the_index(filled: str) -> None:
    def command(*words: str) -> tuple[int, str]:
        completed = run("search", *words, "--url", filled)
        return completed.returncode, completed.stdout + completed.stderr

    assert command("oslo") == (1, "error: the store has no search index: run `lango-store search enable`\n")
    assert command("status")[0] == 1
    code, output = command("enable")
    assert (code, output) == (0, "3 messages indexed\n")
    assert command("status") == (0, output)
    assert command("oslo", "weather")[1].split("\t")[:3] == ["ann:1", "1", "user"]
    assert command("rebuild")[0] == 0
    assert command("disable")[0] == 2
    assert command("disable", "--yes")[1].startswith("the search index is dropped\n")
    assert json.loads(command("status", "--json")[1])["state"] == "disabled"


def test_search_prints_hits_as_tab_separated_lines_or_json(filled: str) -> None:
    run("search", "enable", "--url", filled)
    lines = run("search", "oslo", "--url", filled).stdout.splitlines()
    assert {line.partition("\t")[0] for line in lines} == {"ann:1", "bob:1"}
    assert any(line.endswith("\toslo\\tin a tab") for line in lines)
    output = run("search", "oslo weather", "--user", "ann", "--since", "30d", "--json", "--url", filled).stdout
    hit = SearchHit.model_validate_json(output)
    assert (hit.key, hit.title, [hit.snippet[at:end] for at, end in hit.places]) == (
        "ann:1",
        "Travels",
        ["Weather", "Oslo"],
    )
    for words in (("oslo", "--until", "30d ago"), ("bergen", "--role", "user", "--json")):
        completed = run("search", *words, "--url", filled)
        assert (completed.stdout, completed.stderr, completed.returncode) == ("", "nothing found\n", 1)
    assert run("search", "--user", "bob", "oslo", "--url", filled).stdout.startswith("bob:1\t")


def test_search_prints_the_cursor_of_the_next_page(filled: str) -> None:
    run("search", "enable", "--url", filled)
    first = run("search", "oslo", "--limit", "1", "--url", filled)
    cursor = first.stderr.split()[-1]
    second = run("search", "oslo", "--limit", "1", "--cursor", cursor, "--url", filled)
    assert len(first.stdout.splitlines()) == len(second.stdout.splitlines()) == 1
    assert first.stdout != second.stdout
    assert second.stderr == ""
    refused = run("search", "oslo", "--cursor", "x", "--url", filled)
    assert (refused.returncode, "'x' is not a cursor" in refused.stderr) == (2, True)


def test_search_for_command_finds_words_that_are_also_subcommands(filled: str) -> None:
    with Store(filled) as store:
        store.append_message("ann:1", message("how do I enable it?"))
    run("search", "enable", "--url", filled)
    assert run("search", "for", "enable", "--url", filled).stdout.endswith("how do I enable it?\n")


def test_search_on_a_terminal_shows_progress_and_escaped_hits(filled: str) -> None:
    with Store(filled) as store:
        store.conversation("ann:1").append_messages([message(f"oslo \x1b[31m {number}") for number in range(500)])
    output, code = run_on_terminal("search", "enable", "--url", filled)
    assert (code, "lango_search" in output, "503 messages indexed" in output) == (0, True, True)
    output, code = run_on_terminal("search", "weather", "--url", filled)
    assert (code, "ann:1" in output, " in Oslo?" in output) == (0, True, True)
    output, _ = run_on_terminal("search", "oslo", "499", "--url", filled)
    assert "\x1b[31m" not in output
