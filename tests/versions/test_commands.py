"""`lango-store sessions changes`, `sessions undo` and `sessions show --as-of`."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import run, run_on_terminal
from support.factories import contents, message, summary

from lango_store import Change, Message, SessionInfo, Store, Undone

pytestmark = pytest.mark.one_database

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def url_of_changed(url: str) -> str:
    """Return the URL of a store in which the last of three messages was removed, and the first one edited."""
    times = iter(NOW + timedelta(minutes=number) for number in range(20))
    with Store(url, clock=lambda: next(times), keep_removed=timedelta(days=36_500)) as store:
        conversation = store.open("k\t1", title="Oslo")
        for text in "abc":
            conversation.append_message(message(text))
        conversation.pop_message()
        conversation.edits.update(1, message("A"))
    return url


def shown(url: str) -> list[str]:
    with Store(url) as store:
        return contents(store.conversation("k\t1").messages())


def test_changes_are_written_to_a_pipe_as_tab_separated_lines(url_of_changed: str) -> None:
    done = run("sessions", "changes", "k\t1", "--url", url_of_changed)
    assert (done.returncode, done.stderr) == (0, "")
    fields = [line.split("\t") for line in done.stdout.splitlines()]
    assert [each[:3] for each in fields] == [["4", "pop", "3"], ["5", "update", "1"]]
    with Store(url_of_changed) as store:
        times = [[each.changed_at, each.undo_until] for each in store.conversation("k\t1").versions.changes()]
    assert [[datetime.fromisoformat(text) for text in each[3:]] for each in fields] == times


def test_changes_are_printed_as_json_lines(url_of_changed: str) -> None:
    done = run("sessions", "changes", "k\t1", "--json", "--url", url_of_changed)
    changes = [Change.model_validate_json(line) for line in done.stdout.splitlines()]
    assert [(each.seq, each.kind, each.after_seq) for each in changes] == [(4, "pop", 3), (5, "update", 1)]


def test_changes_are_shown_on_a_terminal_as_a_table(url_of_changed: str) -> None:
    text, code = run_on_terminal("sessions", "changes", "k\t1", "--url", url_of_changed, columns=120)
    header, *lines = text.splitlines()
    assert (code, header.split()[:4]) == (0, ["seq", "change", "of", "seq"])
    assert [line.split()[:3] for line in lines] == [["4", "pop", "3"], ["5", "update", "1"]]


def test_changes_command_reports_that_a_session_has_no_changes(url: str) -> None:
    with Store(url) as store:
        store.create("k")
    done = run("sessions", "changes", "k", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no changes\n")
    assert run("sessions", "changes", "unknown", "--url", url).returncode == 1


def test_undo_and_redo_commands_print_which_change_was_taken_back(url_of_changed: str) -> None:
    at = ("k\t1", "--url", url_of_changed)
    assert run("sessions", "undo", *at).stdout == "took back update (change 5): restored 1 message, removed 1 message\n"
    assert shown(url_of_changed) == ["a", "b"]
    assert run("sessions", "undo", *at).stdout == "took back pop (change 4): restored 1 message, removed 0 messages\n"
    assert shown(url_of_changed) == ["a", "b", "c"]
    done = run("sessions", "undo", *at)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "nothing to take back\n")
    redone = run("sessions", "undo", "--redo", "--json", *at)
    undone = Undone.model_validate_json(redone.stdout)
    assert (redone.returncode, undone.change.kind, undone.removed) == (0, "undo", 1)
    assert shown(url_of_changed) == ["a", "b"]


def test_undo_command_exits_1_if_the_removed_messages_were_not_kept(url: str) -> None:
    with Store(url) as store:
        store.open("k", messages=[message("a")]).pop_message()
    done = run("sessions", "undo", "k", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the messages that change 2 removed were not kept" in done.stderr


@pytest.mark.parametrize(
    ("as_of", "window"),
    [("0", []), ("2", ["a", "b"]), ("3", ["a", "b", "c"]), ("4", ["a", "b"]), ("9", ["A", "b"])],
)
def test_show_as_of_a_seq_prints_the_earlier_window(url_of_changed: str, as_of: str, window: list[str]) -> None:
    done = run("sessions", "show", "k\t1", "--as-of", as_of, "--json", "--url", url_of_changed)
    info, *lines = done.stdout.splitlines()
    assert contents(Message.model_validate_json(line) for line in lines) == window
    assert SessionInfo.model_validate_json(info).message_count == len(window)
    assert "messages" not in json.loads(info)


def test_show_as_of_a_time_prints_the_earlier_window(url_of_changed: str) -> None:
    with Store(url_of_changed) as store:
        changed_at = store.conversation("k\t1").versions.changes()[0].changed_at
    before = (changed_at - timedelta(seconds=1)).isoformat()
    done = run("sessions", "show", "k\t1", "--as-of", before, "--url", url_of_changed)
    assert (done.returncode, [word in done.stdout.split() for word in "abcA"]) == (0, [True, True, True, False])


def test_show_as_of_says_how_many_messages_of_the_earlier_window_are_omitted(url: str) -> None:
    with Store(url, keep_removed=timedelta(days=1)) as store:
        conversation = store.open("k", messages=[message(text) for text in "abcde"])
        conversation.compact(lambda _: summary())
        conversation.clear()
    done = run("sessions", "show", "k", "--as-of", "7", "--last", "1", "--url", url)
    assert "summary" in done.stdout
    assert "omitted" not in done.stdout
    assert "4 earlier" in run("sessions", "show", "k", "--as-of", "5", "--last", "1", "--url", url).stdout


def test_show_as_of_writes_the_earlier_window_as_html(url_of_changed: str, tmp_path: Path) -> None:
    file = tmp_path / "session.html"
    done = run("sessions", "show", "k\t1", "--as-of", "3", "--html", str(file), "--url", url_of_changed)
    assert (done.returncode, done.stdout) == (0, f"written: {file}\n")
    assert file.read_text().count("<article") == 3


def test_show_refuses_as_of_with_an_invalid_time_or_with_children(url_of_changed: str) -> None:
    at = ("sessions", "show", "k\t1", "--url", url_of_changed)
    done = run(*at, "--as-of", "last week")
    assert (done.returncode, "is not a time" in done.stderr) == (2, True)
    done = run(*at, "--as-of", "3", "--descendants")
    assert (done.returncode, "leave out --descendants" in done.stderr) == (2, True)
