"""`lango-store search`, from a shell."""

import json

import pytest
from support.commands import run, run_on_terminal
from support.databases import not_on_a_cluster
from support.factories import message

from lango_store import SearchHit, Store

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


@pytest.fixture
def filled(url: str) -> str:
    """The URL of a store with three messages and no index."""
    with Store(url) as store:
        store.create("ann:1", user_id="ann", title="Travels", messages=[message("Weather in Oslo?")])
        store.create("bob:1", user_id="bob", messages=[message("oslo\tin a tab"), message("bergen", role="assistant")])
    return url


def test_an_index_is_made_used_made_anew_and_dropped(filled: str) -> None:
    def command(*words: str) -> tuple[int, str]:
        done = run("search", *words, "--url", filled)
        return done.returncode, done.stdout + done.stderr

    assert command("oslo") == (1, "error: the store has no search index: run `lango-store search enable`\n")
    assert command("status")[0] == 1
    code, told = command("enable")
    assert (code, told) == (0, "3 messages indexed\n")
    assert command("status") == (0, told)
    assert command("oslo", "weather")[1].split("\t")[:3] == ["ann:1", "1", "user"]
    assert command("rebuild")[0] == 0
    assert command("disable")[0] == 2
    assert command("disable", "--yes")[1].startswith("the search index is dropped\n")
    assert json.loads(command("status", "--json")[1])["state"] == "disabled"


def test_what_is_found_is_lines_of_fields_or_json(filled: str) -> None:
    run("search", "enable", "--url", filled)
    lines = run("search", "oslo", "--url", filled).stdout.splitlines()
    assert {line.partition("\t")[0] for line in lines} == {"ann:1", "bob:1"}
    assert any(line.endswith("\toslo\\tin a tab") for line in lines)
    found = run("search", "oslo weather", "--user", "ann", "--since", "30d", "--json", "--url", filled).stdout
    hit = SearchHit.model_validate_json(found)
    assert (hit.key, hit.title, [hit.snippet[at:end] for at, end in hit.places]) == (
        "ann:1",
        "Travels",
        ["Weather", "Oslo"],
    )
    for words in (("oslo", "--until", "30d ago"), ("bergen", "--role", "user", "--json")):
        nothing = run("search", *words, "--url", filled)
        assert (nothing.stdout, nothing.stderr, nothing.returncode) == ("", "nothing found\n", 1)
    assert run("search", "--user", "bob", "oslo", "--url", filled).stdout.startswith("bob:1\t")


def test_more_than_a_page_says_how_to_go_on(filled: str) -> None:
    run("search", "enable", "--url", filled)
    first = run("search", "oslo", "--limit", "1", "--url", filled)
    offset = first.stderr.split()[-1]
    second = run("search", "oslo", "--limit", "1", "--offset", offset, "--url", filled)
    assert len(first.stdout.splitlines()) == len(second.stdout.splitlines()) == 1
    assert first.stdout != second.stdout
    assert second.stderr == ""


def test_words_that_are_commands_are_searched_with_for(filled: str) -> None:
    with Store(filled) as store:
        store.append_message("ann:1", message("how do I enable it?"))
    run("search", "enable", "--url", filled)
    assert run("search", "for", "enable", "--url", filled).stdout.endswith("how do I enable it?\n")


def test_a_terminal_sees_a_bar_and_what_was_found_on_lines_of_their_own(filled: str) -> None:
    with Store(filled) as store:
        store.append_messages("ann:1", [message(f"oslo \x1b[31m {number}") for number in range(500)])
    shown, code = run_on_terminal("search", "enable", "--url", filled)
    assert (code, "lango_search" in shown, "503 messages indexed" in shown) == (0, True, True)
    shown, code = run_on_terminal("search", "weather", "--url", filled)
    assert (code, "ann:1" in shown, " in Oslo?" in shown) == (0, True, True)
    shown, _ = run_on_terminal("search", "oslo", "499", "--url", filled)
    assert "\x1b[31m" not in shown
