"""A program with an approval and a payment, killed at each step of them."""

import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest
from support.paths import ROOT
from support.processes import Program, run_program
from support.turns import messages_of

from lango_store import Store

pytestmark = pytest.mark.slow

PROGRAM: Final = (ROOT / "tests" / "support" / "payments.py").read_text()

RUN: Final = """
import sys
from datetime import timedelta
sys.path.insert(0, ".")
import payments

payments.LEASE = timedelta(seconds=1)  # of a killed process
payments.main(*sys.argv[1:])
"""

HOLD: Final = """
def hold(*arguments, **options):
    if {after}:
        original(*arguments, **options)
    print("held", flush=True)
    sys.stdin.read()

original, payments.{function} = vars(payments).get("{function}"), hold
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    """Write the program to the folder of the test."""
    (tmp_path / "payments.py").write_text(PROGRAM)


class Payments:
    """Runs of the program in one folder, on one database."""

    def __init__(self, url: str, folder: Path) -> None:
        self._options: dict[str, Any] = {
            "folder": folder,
            "environment": os.environ | {"LANGO_STORE_URL": url, "PYTHONPATH": str(ROOT)},
        }
        self._file = folder / "payments.jsonl"

    def run(self, *words: str) -> str:
        """Run a command to its end; return what it prints."""
        done = run_program(RUN, *words, **self._options)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def kill(self, *words: str, when: str, after: bool = False) -> None:
        """Run a command, and kill its process when it calls a function, or after the function has returned."""
        source = RUN.replace("\npayments.LEASE", HOLD.format(function=when, after=after) + "\npayments.LEASE")
        with Program(source, *words, **self._options) as process:
            assert "held\n" in iter(process.stdout.readline, "")
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of the payments."""
        return [json.loads(line)["key"] for line in self._file.read_text().splitlines()] if self._file.exists() else []


@pytest.fixture
def payments(url: str, tmp_path: Path) -> Payments:
    return Payments(url, tmp_path)


ASK: Final = ("ask", "telegram:1", "update-1", "Pay 40 euros?")


def texts(store: Store) -> list[object]:
    return [message.content for message in store.conversation("telegram:1").messages()]


PAID: Final = ["Pay 40 euros?", None, "paid", "Result of the payment: paid"]


def test_payment_is_made_after_the_approval(payments: Payments, store: Store) -> None:
    token = payments.run(*ASK)
    assert payments.keys == []
    assert payments.run("answer", token, "yes") == PAID[-1]
    assert texts(store) == PAID
    assert len(payments.keys) == 1


def test_payment_is_not_made_without_an_approval(payments: Payments, store: Store) -> None:
    token = payments.run(*ASK)
    for decision in ("no", "yes"):  # the first answer counts
        assert payments.run("answer", token, decision) == "Result of the payment: not approved"
    assert store.conversation("telegram:1").messages()[2].extra == {"failed": True}
    assert payments.keys == []


@pytest.mark.parametrize("step", ["complete", "notify"])
def test_question_is_asked_again_after_the_asking_process_is_killed(
    payments: Payments, store: Store, step: str
) -> None:
    payments.kill(*ASK, when=step)
    token = payments.run(*ASK)
    assert payments.run("answer", token, "yes") == PAID[-1]
    assert texts(store) == PAID
    assert len(payments.keys) == 1


def test_stored_approval_is_used_after_the_answering_process_is_killed(payments: Payments, store: Store) -> None:
    token = payments.run(*ASK)
    payments.kill("answer", token, "yes", when="proceed")
    assert payments.keys == []
    assert payments.run("answer", token, "no") == PAID[-1]  # the first answer is stored
    assert texts(store) == PAID
    assert len(payments.keys) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_payment_is_made_once_if_the_process_is_killed_before_storing_the_result(
    payments: Payments, store: Store, after: bool
) -> None:
    token = payments.run(*ASK)
    payments.kill("answer", token, "yes", when="pay", after=after)
    assert len(payments.keys) == after
    (call,) = store.conversation("telegram:1").calls.list()
    assert call.state in ("running", "unknown")
    assert payments.run("answer", token, "yes") == PAID[-1]
    assert texts(store) == PAID
    assert payments.keys == [call.effect_key]


@pytest.mark.parametrize("step", ["complete", "print"])  # before and after the model reports the payment
def test_payment_is_not_repeated_if_the_process_is_killed_after_storing_the_result(
    payments: Payments, store: Store, step: str
) -> None:
    token = payments.run(*ASK)
    payments.kill("answer", token, "yes", when=step)
    assert payments.run("answer", token, "yes") == PAID[-1]
    assert texts(store) == PAID
    assert len(payments.keys) == 1
    conversation = store.conversation("telegram:1")
    assert [[each.content for each in messages_of(conversation, turn)] for turn in conversation.turns.list()] == [
        PAID[:2],
        PAID[2:],
    ]
