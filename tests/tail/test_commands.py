"""`lango-store tail`: the end of a session, and what is added while the command runs."""

import json
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from support.commands import run, run_on_terminal
from support.factories import message, messages
from support.processes import LANGO_STORE, Program

from lango_store import Message, Store


@pytest.fixture
def filled(url: str) -> str:
    with Store(url) as store:
        conversation = store.open("k", messages=messages(30))
        conversation.truncate(after=28)
        conversation.append_message(message("the last one"))
    return url


def test_tail_prints_the_last_messages_and_changes(filled: str) -> None:
    done = run("tail", "k", "--url", filled)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("╰")]
    assert [line.split()[1:3] for line in lines if line.startswith("╭")] == [
        [str(seq), "user"] for seq in (*range(23, 29), 32)
    ]
    assert "31 truncate 28" in lines
    assert "the last one" in lines[-1]


def test_tail_prints_only_events_after_the_given_seq(filled: str) -> None:
    done = run("tail", "k", "--after", "31", "--url", filled)
    assert done.stdout.count("╭") == 1
    assert "the last one" in done.stdout


def test_tail_continues_at_the_cursor_of_a_printed_json_line(filled: str) -> None:
    events = [json.loads(line) for line in run("tail", "k", "--json", "--url", filled).stdout.splitlines()]
    assert [event["event"] for event in events] == ["appended", "changed", "appended"]
    assert (events[1]["kind"], events[1]["seq"], events[1]["after_seq"]) == ("truncate", 31, 28)
    assert events[2]["messages"][0]["content"] == "the last one"
    again = run("tail", "k", "--json", "--after", events[1]["cursor"], "--url", filled)
    assert [json.loads(line) for line in again.stdout.splitlines()] == events[2:]


def test_tail_of_missing_session_exits_1(url: str) -> None:
    done = run("tail", "missing", "--url", url)
    assert done.returncode == 1
    assert "sessions list" in done.stderr


def test_tail_after_invalid_cursor_exits_2(filled: str) -> None:
    done = run("tail", "k", "--after", "x", "--url", filled)
    assert done.returncode == 2
    assert "cursor" in done.stderr


def read_until(text: str, lines: Iterator[str]) -> None:
    """Read lines until one has a text."""
    assert any(text in line for line in lines)


@pytest.mark.slow
def test_followed_session_is_printed_while_it_is_being_written(url: str) -> None:
    with Store(url) as store:
        conversation = store.open("k", messages=[message("first")])
        with Program(LANGO_STORE, "tail", "k", "-f", "--url", url) as process:
            output = iter(process.stdout)
            read_until("╰", output)
            with conversation.turn("t", flush=timedelta(0)) as turn:
                turn.write("It is ")
                turn.write("sunny.\n")
                assert next(output) == "turn 't' began\n"
                assert next(output) == "It is sunny.\n"
                turn.append(Message.assistant("It is sunny."))
                turn.usage = {"output_tokens": 4}
            read_until("assistant", output)
            read_until('turn saved 1: {"output_tokens": 4}', output)
            conversation.append_message(message("second"))
            read_until("second", output)
            store.delete("k")
            assert process.wait() == 0
            assert process.stderr.read() == "session 'k' was deleted\n"


def test_followed_session_is_printed_as_json_lines(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        with Program(LANGO_STORE, "tail", "k", "-f", "--json", "--url", url) as process:
            for number in range(3):
                store.append_message("k", message(number))
                line = json.loads(process.stdout.readline())
                assert [each["content"] for each in line["messages"]] == [number]
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
            assert process.stderr.read() == ""


def test_tail_replaces_control_characters_in_a_draft(url: str) -> None:
    with Store(url) as store:
        store.open("k").turn("t").begin().write("a\x1b[2J\x07b")
    shown, code = run_on_terminal("tail", "k", "--url", url)
    assert code == 0
    assert "\x1b[2J" not in shown
    assert "a␛[2J␇b" in shown
