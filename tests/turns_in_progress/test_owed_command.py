"""`lango-store owed` and `lango-store turns retry`."""

import json

import pytest
from support.commands import run
from support.factories import message
from support.working import fail

from lango_store import Store


@pytest.fixture
def failed(url: str) -> str:
    """Return the URL of a store with a turn that was given up, and a message that waits."""
    with Store(url) as store:
        store.open("bad").inbox.put(message())
        store.work(fail, once=True, attempts=1)
        store.open("good", user_id="ann").inbox.put(message())
    return url


def test_owed_turns_are_written_to_a_pipe_as_tab_separated_lines(failed: str) -> None:
    with Store(failed) as store:
        waiting, given_up = store.owed().items
    assert waiting.due_at is not None
    done = run("owed", "--url", failed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"good\tinbox\t\t{waiting.due_at.isoformat()}\t0\t\towed",
        f"bad\tinterrupted\t{given_up.turn_id}\t\t1\tTimeoutError\tgiven up",
    ]


def test_owed_turns_of_a_user_are_printed_as_json_lines(failed: str) -> None:
    (line,) = run("owed", "--user", "ann", "--json", "--url", failed).stdout.splitlines()
    assert (json.loads(line)["key"], json.loads(line)["reason"]) == ("good", "inbox")


def test_turn_that_was_given_up_is_made_due_by_turns_retry(failed: str) -> None:
    done = run("turns", "retry", "bad", "--url", failed)
    assert (done.returncode, done.stdout) == (0, "the turn of session 'bad' is due\n")
    with Store(failed) as store:
        assert [(each.key, each.given_up) for each in store.owed().items] == [("good", False), ("bad", False)]
        store.create("idle")
    done = run("turns", "retry", "idle", "--url", failed)
    assert (done.returncode, done.stderr) == (1, "session 'idle' is owed no turn\n")
