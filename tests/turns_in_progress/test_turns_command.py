"""`lango-store turns`, and what `sessions show` prints about turns in progress."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.commands import run, run_on_terminal
from support.factories import message

from lango_store import Conflict, RunningTurn, Store, create_engine

pytestmark = pytest.mark.one_database

HOUR = timedelta(hours=1)


def begin(store: Store, key: str, turn_id: str) -> RunningTurn:
    """Begin a turn that does not end, as in a process that is killed."""
    turn = store.open(key).turn(turn_id)
    turn.begin()
    return turn


@pytest.fixture
def open_turns(url: str) -> tuple[str, datetime, datetime]:
    """The URL of a store with a running turn and an ended one, and the times at which their leases end."""
    with Store(url, clock=lambda: datetime.now(UTC) - HOUR) as store:
        begin(store, "tab\tkey", "dead")
    with Store(url) as store:
        begin(store, "k", "alive")
        ended, running = store.turns.list_in_progress().items
    return url, running.until, ended.until


def test_open_turns_are_written_to_a_pipe_as_tab_separated_lines(open_turns: tuple[str, datetime, datetime]) -> None:
    url, running, ended = open_turns
    done = run("turns", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"tab\\tkey\tdead\t{ended.isoformat()}\tended",
        f"k\talive\t{running.isoformat()}\trunning",
    ]
    assert ended.utcoffset() == timedelta(0)


def test_open_turns_are_printed_as_json_lines(open_turns: tuple[str, datetime, datetime]) -> None:
    url, running, _ = open_turns
    done = run("turns", "--json", "--url", url)
    ended_turn, running_turn = map(json.loads, done.stdout.splitlines())
    assert (ended_turn["key"], ended_turn["held"]) == ("tab\tkey", False)
    assert (running_turn["key"], running_turn["id"], running_turn["held"]) == ("k", "alive", True)
    assert datetime.fromisoformat(running_turn["until"]) == running


def test_open_turns_are_shown_on_a_terminal_as_a_table(open_turns: tuple[str, datetime, datetime]) -> None:
    url, running, ended = open_turns
    shown, code = run_on_terminal("turns", "--url", url)
    assert code == 0, shown
    header, *lines = shown.splitlines()
    assert all(name in header for name in ("key", "turn", "lease ends (UTC)", "state"))
    assert [line.split() for line in lines] == [
        ["tab␉key", "dead", *f"{ended:%Y-%m-%d %H:%M}".split(), "ended"],
        ["k", "alive", *f"{running:%Y-%m-%d %H:%M}".split(), "running"],
    ]


def test_turns_command_prints_to_stderr_that_no_turn_is_open(url: str) -> None:
    done = run("turns", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no turn is open\n")
    assert run("turns", "--json", "--url", url).stderr == ""


@pytest.mark.slow
def test_turns_command_refuses_options_before_a_subcommand(open_turns: tuple[str, datetime, datetime]) -> None:
    url, *_ = open_turns
    for options in (("--url", url), ("--user", "ann"), ("--json",)):
        done = run("turns", *options, "release", "k", "--yes", environment={"LANGO_STORE_URL": url})
        assert done.returncode == 2
        assert "write options after `release`" in done.stderr
    with Store(url) as store:
        assert store.conversation("k").turns.in_progress() is not None


@pytest.mark.slow
def test_release_command_requires_confirmation(open_turns: tuple[str, datetime, datetime]) -> None:
    url, *_ = open_turns
    command = ("turns", "release", "k", "--url", url)
    refused = run(*command)
    assert refused.returncode == 2
    assert "releasing the lease of turn 'alive' (running, until " in " ".join(refused.stderr.replace("│", " ").split())
    asked, code = run_on_terminal(*command, answer="n\n", columns=300)
    assert (code, "turn 'alive'" in asked, "Continue?" in asked) == (1, True, True)
    with Store(url) as store:
        assert len(store.turns.list_in_progress().items) == 2
        assert run_on_terminal(*command, answer="y\n", columns=300)[1] == 0
        assert [turn.id for turn in store.turns.list_in_progress().items] == ["dead"]


def test_release_command_lets_another_turn_begin(store: Store, url: str) -> None:
    turn = begin(store, "k", "t1")
    done = run("turns", "release", "k", "--yes", "--url", url)
    assert (done.returncode, done.stdout) == (0, "released the lease of turn 't1'\n")
    with store.conversation("k").turn("t2"), pytest.raises(Conflict):
        turn.append(message())


def test_release_command_needs_no_confirmation_if_no_turn_is_open(store: Store, url: str) -> None:
    store.create("k")
    done = run("turns", "release", "k", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no turn is open\n", "")


def test_release_command_for_an_unknown_session_exits_1(url: str) -> None:
    done = run("turns", "release", "k", "--yes", "--url", url)
    assert (done.returncode, "no session 'k'" in done.stderr) == (1, True)


def test_stop_command_saves_the_turn_as_interrupted(store: Store, url: str) -> None:
    begin(store, "k", "t1")
    refused = run("turns", "stop", "k", "--url", url)
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    done = run("turns", "stop", "k", "--by", "ann", "--reason", "too long", "--yes", "--url", url)
    assert (done.returncode, done.stdout) == (0, "stopped turn 't1'\n")
    (turn,) = store.conversation("k").turns.list()
    assert turn.metadata == {"stopped": {"by": "ann", "reason": "too long"}}
    again = run("turns", "stop", "k", "--yes", "--url", url)
    assert (again.returncode, again.stdout) == (0, "no turn is open\n")


def test_show_describes_the_open_turn_the_drafts_and_the_inbox(url: str) -> None:
    with Store(url) as store:
        for turn_id in ("t1", "t2\n"):
            turn = begin(store, "k", turn_id)
            turn.write("a" * 600)
            turn.flush()
            until = store.turns.list_in_progress().items[0].until
            if turn_id == "t1":
                turn.abandon()
        for _ in range(2):
            store.conversation("k").inbox.put(message())
    out = run("sessions", "show", "k", "--url", url).stdout
    assert f"turn t2␊ in progress, lease ends {until:%Y-%m-%d %H:%M:%S} UTC" in out
    assert "2 drafts with 1,200 characters" in out
    assert "2 messages in the inbox" in out
    printed = run("sessions", "show", "k", "--json", "--url", url).stdout.splitlines()
    assert [json.loads(line)["key"] for line in printed] == ["k"]


def test_show_prints_an_open_turn_whose_lease_has_ended(open_turns: tuple[str, datetime, datetime]) -> None:
    url, _, ended = open_turns
    out = run("sessions", "show", "tab\tkey", "--url", url).stdout
    assert f"turn dead in progress, lease ended {ended:%Y-%m-%d %H:%M:%S} UTC" in out


def test_show_prints_no_lines_about_turn_drafts_and_inbox_if_there_are_none(url: str) -> None:
    with Store(url) as store, store.open("k").turn("t1") as turn:
        turn.write("answer")
        turn.flush()
    lines = run("sessions", "show", "k", "--url", url).stdout.splitlines()
    assert len(lines) == 5, lines


def test_show_of_an_expired_session_omits_the_open_turn_and_drafts(url: str) -> None:
    with Store(url, clock=lambda: datetime.now(UTC) - 2 * HOUR) as store:
        store.create("k", ttl=HOUR, messages=[message("the question")])
        turn = begin(store, "k", "t1")
        turn.write("answer")
        turn.flush()
    done = run("sessions", "show", "k", "--expired", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the question" in done.stdout
    assert "in progress" not in done.stdout


@pytest.mark.parametrize("damage", ["UPDATE lango_draft SET piece = '5'", "UPDATE lango_inbox SET message = '5'"])
def test_show_prints_the_session_despite_a_damaged_draft_or_inbox(url: str, damage: str) -> None:
    with Store(url) as store:
        turn = begin(store, "k", "t1")
        turn.append(message("the question"))
        turn.write("answer")
        turn.flush()
        store.conversation("k").inbox.put(message())
    with create_engine(url).begin() as connection:
        connection.exec_driver_sql(damage)
    done = run("sessions", "show", "k", "--url", url)
    assert (done.returncode, "cannot be read" in done.stderr) == (1, True), done
    assert "turn t1 in progress" in done.stdout
    assert "the question" in done.stdout
    is_draft = "lango_draft" in damage
    assert ("1 draft" in done.stdout, "1 message in the inbox" in done.stdout) == (not is_draft, is_draft)
