"""Eight processes replace the answer to a question and switch, and some are killed: no branch is lost or doubled."""

import os
import random
import signal
import time
from collections import Counter
from typing import Final

import pytest
from support.paths import TESTS
from support.processes import Program
from support.session_checks import assert_sound

from lango_store import Message, Store

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("LANGO_STORE_WORK_SECONDS", "4"))
SOURCE: Final = (TESTS / "support" / "switcher.py").read_text()
PROCESSES: Final = 8


class Killed:
    """The processes, and the answers that they have tried to store and have stored."""

    def __init__(self, url: str) -> None:
        self.url, self.tried, self.done = url, set[str](), set[str]()
        self.first = [0] * PROCESSES
        self.programs = [self.start(number) for number in range(PROCESSES)]

    def start(self, number: int) -> Program:
        return Program(SOURCE, self.url, number, self.first[number])

    def kill(self, number: int, lines: int) -> None:
        """Kill a process after it has printed some lines."""
        program = self.programs[number]
        printed = [program.stdout.readline() for _ in range(lines)]
        program.send_signal(signal.SIGKILL)
        rest, errors = program.communicate()
        assert errors == ""
        printed += rest.splitlines(keepends=True)
        for line in printed:
            if line.endswith("\n") and line != "ready\n":
                word, _, n = line.strip().partition(" ")
                (self.done if word == "done" else self.tried).add(f"{number}-{n}")
                self.first[number] = int(n)


def test_killed_processes_lose_and_double_no_branch(url: str) -> None:
    choose = random.Random(7)
    with Store(url) as store:
        conversation = store.open("k")
        conversation.append_messages([Message.user("q", id="q"), Message.assistant("answer", id="a")])
        conversation.append_messages([Message.assistant("answer", id="b")], replace_after=1, keep=True)
        killed, kills, end = Killed(url), 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            number = choose.randrange(PROCESSES)
            killed.kill(number, choose.randrange(2, 9))
            killed.programs[number] = killed.start(number)
            kills += 1
        for number in range(PROCESSES):
            killed.kill(number, 2)
        stored = [str(each.id) for each in conversation.all_messages()]
        branches = [each for each in conversation.alternatives() if not each.is_shown]
        for each in branches:
            question, *answers = conversation.get(alternative=each.id).messages
            assert question.id == "q"
            stored += [str(answer.id) for answer in answers]
        assert_sound(store)
        assert Counter(stored).most_common(1)[0][1] == 1
        assert killed.done | {"q", "a", "b"} <= {*stored} <= killed.tried | {"q", "a", "b"}
        (usage,) = store.usage()
        in_turns = {each for each in killed.done if int(each.split("-")[1]) % 2}
        assert len(in_turns) <= usage.turns <= len([each for each in killed.tried if int(each.split("-")[1]) % 2])
        assert conversation.total_usage() == {"tokens": usage.turns}
        assert kills
        assert len(branches) > PROCESSES
