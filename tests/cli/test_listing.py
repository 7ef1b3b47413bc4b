"""Output of `sessions list` and `show`: terminals of any width, pipes, and limited encodings."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.cells import cell_len
from sqlalchemy import make_url
from support.commands import run, run_on_terminal
from support.databases import MakeDatabase
from support.factories import message, messages

from lango_store import Store, create_engine

pytestmark = pytest.mark.one_database

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
AGENT = "an-agent-with-a-very-long-identifier-" * 4
UUID = "0193a1b2-7e5f-7abc-9def-0123456789ab"
KEYS = ["telegram:12345678", UUID, "漢字:🎉キー", "L" * 512, "tab\there\nand a line\\", "turned\u202eround"]


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    """The URL of a store with sessions with all kinds of keys; `KEYS` has the most recently updated first."""
    found = make_sqlite()
    time = [NOW]
    with Store(found, clock=lambda: time[0]) as store:
        for n, key in enumerate(KEYS):
            time[0] = NOW - timedelta(minutes=n)
            store.create(key, agent_id=AGENT, user_id="ann", title="A free Saturday\x1b[31m", messages=messages(2))
    return found


@pytest.mark.parametrize("columns", [80, 130])
def test_list_fits_the_width_of_the_terminal_and_shows_every_key(url: str, columns: int) -> None:
    shown, code = run_on_terminal("sessions", "list", "--url", url, columns=columns)
    assert code == 0, shown
    for key in ("telegram:12345678", UUID, "漢字:🎉キー", "tab␉here␊and a line\\", "turned\\u202eround"):
        assert key in shown
    assert shown.count("L") == 512
    assert max(map(cell_len, re.sub(r"\x1b\[\d*m", "", shown).splitlines())) <= columns


def test_list_on_narrow_terminal_leaves_out_wide_columns(url: str) -> None:
    narrow, _ = run_on_terminal("sessions", "list", "--url", url, columns=80)
    wide, _ = run_on_terminal("sessions", "list", "--url", url, columns=300)
    assert ("an-agent" in narrow, "expires" in narrow) == (False, False)
    assert ("an-agent" in wide, "expires" in wide) == (True, True)


def test_list_prints_tab_separated_lines_to_a_pipe(url: str) -> None:
    done = run("sessions", "list", "--url", url, environment={"COLUMNS": "40"})
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.split("\n")[:-1]]
    assert [line[0] for line in lines] == [*KEYS[:4], "tab\\there\\nand a line\\\\", "turned\\u202eround"]
    assert lines[0][1:] == [
        "A free Saturday\\u001b[31m",
        AGENT,
        "ann",
        "2",
        "0",
        "0",
        "2026-11-21T12:00:00+00:00",
        "never",
    ]


def test_expire_dry_run_shows_full_keys_in_pipe_and_on_terminal(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    with Store(url, clock=lambda: NOW - timedelta(days=400)) as store:
        store.create(UUID, agent_id=AGENT, ttl=timedelta(days=1))
    for out in (
        run("expire", "--dry-run", "--url", url).stdout,
        run_on_terminal("expire", "--dry-run", "--url", url)[0],
    ):
        assert UUID in out


def test_list_continues_at_the_cursor_that_it_printed(url: str) -> None:
    seen: list[str] = []
    more: list[str] = []
    for _ in range(3):
        done = run("sessions", "list", "--json", "--limit", "2", *more, "--url", url)
        seen += [json.loads(line)["key"] for line in done.stdout.splitlines()]
        more = done.stderr.split()[-2:]
    assert seen == KEYS
    assert (more, done.stderr) == ([], "")
    wrong = run("sessions", "list", "--cursor", "nonsense", "--url", url)
    assert wrong.returncode == 2
    assert "--cursor" in wrong.stderr


def test_list_filters_by_title_and_creation_time(make_sqlite: MakeDatabase) -> None:
    where = make_sqlite()
    for n, title in enumerate(["Oslo in winter", "Bergen", "OSLO in summer"]):
        made = NOW + timedelta(days=n)
        with Store(where, clock=lambda made=made: made) as store:  # type: ignore[misc]
            store.create(f"k{n}", title=title)
    with Store(where, clock=lambda: NOW + timedelta(days=9)) as store:
        store.append_message("k0", message())

    def listed(*options: str) -> list[str]:
        done = run("sessions", "list", "--json", *options, "--url", where)
        return [json.loads(line)["key"] for line in done.stdout.splitlines()]

    assert listed() == ["k0", "k2", "k1"]
    assert listed("--order", "created") == ["k2", "k1", "k0"]
    assert listed("--title", "oslo") == ["k0", "k2"]
    assert listed("--created-since", "2026-11-22T12:00") == ["k2", "k1"]
    assert listed("--created-before", "2026-11-23T12:00", "--order", "created") == ["k1", "k0"]


def test_time_options_accept_dates_and_ages(make_sqlite: MakeDatabase) -> None:
    where = make_sqlite()
    with Store(where) as store:
        store.create("new")
    for age, keys in (("2001-01-01", "new"), ("12h", "new"), ("12h ago", "new"), (" 2w ago ", "new"), ("0s ago", "")):
        done = run("sessions", "list", "--since", age, "--url", where)
        assert (done.returncode, done.stdout.partition("\t")[0]) == (0, keys), done
    for wrong in ("last week", "ago", "12 ago", "2026-13-01"):
        done = run("sessions", "list", "--since", wrong, "--url", where)
        assert (done.returncode, "2026-11-21" in done.stderr, "ago" in done.stderr) == (2, True, True), done


@pytest.fixture
def long(make_sqlite: MakeDatabase) -> str:
    url = make_sqlite()
    with Store(url) as store:
        store.create("long", messages=[message(f"message {n}.") for n in range(1, 121)])
    return url


@pytest.fixture
def pager(long: str, tmp_path: Path) -> dict[str, str]:
    """An environment whose pager first prints whether the database is open, which its WAL file shows."""
    file = tmp_path / "pager"
    file.write_text(
        f'#!/bin/sh\ntest -e "{make_url(long).database}-wal" && echo "still open"\necho "the pager:"\ncat\n'
    )
    file.chmod(0o755)
    return {"PAGER": str(file)}


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80])
def test_show_uses_pager_only_for_long_output(long: str, pager: dict[str, str], columns: int) -> None:
    shown, code = run_on_terminal("sessions", "show", "long", "--url", long, columns=columns, environment=pager)
    assert (shown.startswith("the pager:"), code) == (True, 0)
    for options in (("--last", "3"), ("--no-pager",)):
        shown, code = run_on_terminal(
            "sessions", "show", "long", *options, "--url", long, columns=columns, environment=pager
        )
        assert ("the pager:" in shown, "message 120." in shown, code) == (False, True, 0)


@pytest.mark.slow
def test_show_prints_only_the_last_50_messages_through_a_pager(long: str, pager: dict[str, str]) -> None:
    shown, code = run_on_terminal("sessions", "show", "long", "--url", long, environment=pager)
    assert (shown.startswith("the pager:"), code) == (True, 0)
    assert "\x1b" not in shown  # NO_COLOR is set
    assert "message 71." in shown
    assert "message 70." not in shown
    assert "70 earlier messages not shown: use --all" in shown
    everything, _ = run_on_terminal("sessions", "show", "long", "--all", "--url", long)
    assert "message 1." in everything
    assert "earlier messages" not in everything


def test_show_exits_0_if_the_pager_closes_the_pipe(long: str) -> None:
    shown, code = run_on_terminal(
        "sessions", "show", "long", "--all", "--full", "--url", long, environment={"PAGER": "head -n 3"}
    )
    assert (len(shown.splitlines()), code) == (3, 0)


def test_show_with_empty_pager_variable_prints_without_a_pager(long: str) -> None:
    shown, code = run_on_terminal("sessions", "show", "long", "--url", long, environment={"PAGER": ""})
    assert ("message 120." in shown, code) == (True, 0)


def test_show_prints_all_messages_to_a_pipe(long: str) -> None:
    out = run("sessions", "show", "long", "--url", long).stdout
    assert "message 1." in out
    assert "message 120." in out


def test_show_prints_the_total_usage_of_turns_and_the_total_tokens_of_messages(url: str) -> None:
    with Store(url) as store:
        for n in range(2):
            store.open("turns").save_turn([message(tokens=500)], {"input_tokens": 600, "cost": {"usd": n / 10}})
    out = run("sessions", "show", "turns", "--url", url).stdout
    assert "2 messages, 1,000 message tokens, 2 turns, last seq 2" in out
    assert "usage of turns: input_tokens 1,200, cost.usd 0.1" in out
    with create_engine(url).begin() as connection:
        connection.exec_driver_sql("UPDATE lango_turn SET usage = '{' WHERE turn_no = 1")
    damaged = run("sessions", "show", "turns", "--url", url)
    assert (damaged.returncode, "usage of turn 1" in damaged.stderr) == (1, True)
    assert "2 turns" in damaged.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_output_encoding_lacks_are_escaped(url: str, encoding: str) -> None:
    with Store(url) as store:
        store.create("snow", title="☃ Ä", messages=[message("☃ 漢字 🎉 Ä")])
    for words in (
        ("sessions", "list"),
        ("sessions", "show", "snow"),
        ("sessions", "show", "☃"),
        ("stats",),
        ("sessions", "list", "--help"),
    ):
        done = run(*words, "--url", url, encoding=encoding)
        assert done.returncode == (1 if "☃" in words else 0), done.stderr
    lines = run("sessions", "show", "snow", "--json", "--url", url, encoding=encoding).stdout.splitlines()
    assert json.loads(lines[1])["content"] == "☃ 漢字 🎉 Ä"
    shown = run("sessions", "show", "snow", "--url", url, encoding=encoding).stdout
    assert "\\u2603 \\u6f22\\u5b57 \\U0001f389" in shown


@pytest.mark.slow
def test_bidirectional_control_characters_are_made_visible(url: str) -> None:
    controls = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\x9b"
    with Store(url) as store:
        store.create("turned", title=controls, messages=[message(controls)])
    for words in (("sessions", "show", "turned"), ("sessions", "list"), ("sessions", "show", controls)):
        for out in (run(*words, "--url", url), run_on_terminal(*words, "--url", url, columns=200)):
            text = out[0] if isinstance(out, tuple) else out.stdout + out.stderr
            assert not set(controls) & set(text)
            assert "202e" in text


def test_show_with_json_escapes_terminal_control_characters(url: str) -> None:
    controls = "\x1b\x7f\x85\x9b\u061c\u200e\u2028\u202e\u2069"
    with Store(url) as store:
        store.create(controls, messages=[message(f"漢字{controls}")])
    out = run("sessions", "show", controls, "--json", "--url", url).stdout
    assert not set(controls) & set(out)
    assert "漢字" in out
    info, stored = map(json.loads, out.splitlines())
    assert (info["key"], stored["content"]) == (controls, f"漢字{controls}")


@pytest.fixture
def family_url(make_sqlite: MakeDatabase) -> str:
    """The URL of a store with two top-level sessions, and descendants of the older one."""
    where = make_sqlite()
    for n, key in enumerate(["k/b", "k/a!", "k", "k/a/x", "k/a", "other"]):
        made = NOW + timedelta(minutes=n)
        with Store(where, clock=lambda made=made: made) as store:  # type: ignore[misc]
            store.create(key, messages=[message(f"said in {key}")])
    return where


FAMILY = ["k", "k/a", "k/a/x", "k/a!", "k/b"]


def test_list_with_tree_puts_descendants_below_their_parent(family_url: str) -> None:
    piped = run("sessions", "list", "--tree", "--url", family_url).stdout
    assert [line.partition("\t")[0] for line in piped.splitlines()] == ["other", *FAMILY]
    shown, code = run_on_terminal("sessions", "list", "--tree", "--url", family_url)
    assert code == 0, shown
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in shown.splitlines()]
    starts = [re.match(r" *\S+", line) for line in lines[1:]]
    indented = ["other", "k", "  k/a", "    k/a/x", "  k/a!", "  k/b"]
    assert [start[0] for start in starts if start] == indented


def test_show_with_children_prints_descendants_after_their_parent(family_url: str, tmp_path: Path) -> None:
    options = ("--descendants", "--url", family_url)
    lines = [json.loads(line) for line in run("sessions", "show", "k", "--json", *options).stdout.splitlines()]
    assert [line["key"] for line in lines if "key" in line] == FAMILY
    assert [line["content"] for line in lines if "content" in line] == [f"said in {key}" for key in FAMILY]
    html = tmp_path / "k.html"
    assert run("sessions", "show", "k", "--html", str(html), *options).returncode == 0
    for text in (run("sessions", "show", "k", *options).stdout, html.read_text()):
        assert re.findall(r"said in (k[\w/!]*)", text) == FAMILY
    assert run("sessions", "show", "k", "--url", family_url).stdout.count("said in") == 1


def test_export_expire_and_delete_with_children_include_all_descendants(family_url: str, tmp_path: Path) -> None:
    done = run("export", "k/a", "k", "--descendants", "--to", str(tmp_path / "k.jsonl"), "--json", "--url", family_url)
    exported = ["k/a", "k/a/x", "k", "k/a!", "k/b"]
    assert [json.loads(line)["key"] for line in done.stdout.splitlines()] == exported
    done = run("expire", "--older-than", "0s", "--prefix", "k/a", "--descendants", "--json", "--url", family_url)
    assert json.loads(done.stdout)["sessions"] == 3
    done = run("sessions", "delete", "k", "--descendants", "--yes", "--url", family_url)
    assert (done.stdout, done.stderr.count("with all descendants")) == ("deleted 1 session with all descendants\n", 1)
    assert run("sessions", "list", "--url", family_url).stdout.partition("\t")[0] == "other"
    assert run("import", str(tmp_path / "k.jsonl"), "--url", family_url).returncode == 0
    with Store(family_url) as store:
        assert [info.key for info in store.iter_sessions()] == sorted([*FAMILY, "other"])
