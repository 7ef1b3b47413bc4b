"""Eight processes answer requests that are sent twice, while processes that have a lease are paused.

LANGO_STORE_TURN_ROUNDS sets the number of rounds.
"""

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, dropwhile
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.counting_model import counting_model
from support.factories import contents, seqs
from support.paths import TESTS
from support.polling import until
from support.processes import Program
from support.turns import messages_of

from lango_store import Conversation, Store
from lango_store.tables import SessionRow

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_TURN_ROUNDS", "2"))
WORKERS: Final = 8
REQUESTS: Final = 8
SHORT_LEASE, LONG_LEASE = 0.3, 100.0
"""In seconds; requests that are paused have the short one."""


@dataclass(frozen=True)
class Request:
    """A request that is sent twice; `pause` is the point where its first attempt is paused."""

    key: str
    turn: str
    pause: str | None

    def line(self) -> str:
        lease = LONG_LEASE if self.pause is None else SHORT_LEASE
        return json.dumps({"key": self.key, "turn": self.turn, "pause": self.pause, "lease": lease}) + "\n"


Attempt = dict[str, Any]
Send = tuple[int, Request]


class Crew:
    """Eight processes that answer requests, see `support/turn_worker.py`, and the outcomes of their attempts.

    Attributes:
        attempts: The reports of all attempts since the last `clear`.
        taken_over: The tokens of paused attempts whose lease another attempt took before they were resumed.
        not_taken_over: The tokens of attempts that were resumed while they still had the lease.
    """

    def __init__(self, store: Store, programs: Sequence[Program]) -> None:
        self.store = store
        self.programs = programs
        self.clear()

    def clear(self) -> None:
        self.attempts: list[Attempt] = []
        self.taken_over: set[int] = set()
        self.not_taken_over: set[int] = set()

    def answer(self, sends: Sequence[Send], *, until_taken_over: bool, most_paused: int = 2) -> None:
        """Send the requests to the processes at the same time, and return when all are answered.

        Paused processes are resumed when another process has taken over, or already when their lease has ended. If
        more than two are paused until another takes over, they can wait for each other.
        """
        places = threading.BoundedSemaphore(most_paused)

        def work(worker: int) -> None:
            for request in [request for number, request in sends if number == worker]:
                self.attempts += self._answer(self.programs[worker], request, places, until_taken_over)

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(work, range(WORKERS)))

    def _answer(
        self, program: Program, request: Request, places: threading.Semaphore, until_taken_over: bool
    ) -> list[Attempt]:
        tell(program, request.line())
        while isinstance(said := reply(program), dict):
            line = "\n"
            if places.acquire(blocking=False):
                program.send_signal(signal.SIGSTOP)
                try:
                    self._wait(request.key, said["token"], until_taken_over)
                    line = "late\n" if said["token"] in self.taken_over else "\n"
                finally:
                    program.send_signal(signal.SIGCONT)
                    places.release()
            tell(program, line)
        return list(said)

    def _wait(self, key: str, token: int, until_taken_over: bool) -> None:
        conversation = self.store.conversation(key)

        def is_over() -> bool:
            if self._owner(key) != token:
                self.taken_over.add(token)
                return True
            return (
                not until_taken_over
                and (open_turn := conversation.turns.in_progress()) is not None
                and not open_turn.held
            )

        until(is_over)
        if token not in self.taken_over:
            self.not_taken_over.add(token)

    def _owner(self, key: str) -> Any:
        with self.store.engine.connect() as connection:
            query = sa.select(SessionRow.lease_token).where(SessionRow.key == key)  # type: ignore[call-overload]
            return connection.execute(query).scalar_one()


def tell(program: Program, line: str) -> None:
    program.stdin.write(line)
    program.stdin.flush()


def reply(program: Program) -> Any:
    line = program.stdout.readline()
    assert line, program.stderr.read()
    return json.loads(line)


@contextmanager
def crew_on(store: Store, model: str) -> Iterator[Crew]:
    source = (TESTS / "support" / "turn_worker.py").read_text()
    url = store.engine.url.render_as_string(hide_password=False)
    programs = [Program(source, url, model) for _ in range(WORKERS)]
    try:
        yield Crew(store, programs)
    except BaseException:
        for program in programs:
            if program.returncode is None:
                program.send_signal(signal.SIGKILL)
        raise
    assert [program.communicate() for program in programs] == [("", "")] * WORKERS


def requests_of(round: int, sessions: int, pauses: Sequence[str]) -> list[Request]:
    """Make the requests of a round, one with each of these pauses, others without; their sessions take turns."""
    points = [*pauses, *[None] * (REQUESTS - len(pauses))]
    return [Request(f"{round}-{n % sessions}", f"turn-{round}-{n}", point) for n, point in enumerate(points)]


def check_sessions(crew: Crew, requests: Sequence[Request], calls: Counter[str]) -> None:
    for key in {request.key for request in requests}:
        check_session(crew.store.conversation(key), [each for each in requests if each.key == key], crew.attempts)
    for request in requests:
        check_calls(request, crew, calls[request.turn])
    for attempt in crew.attempts:
        check_writes(attempt)


def check_session(conversation: Conversation, requests: Sequence[Request], attempts: Sequence[Attempt]) -> None:
    """Each turn is stored once, with one question and with the only answer whose append succeeded."""
    turns = {turn.id: turn for turn in conversation.turns.list()}
    assert sorted(str(turn.id) for turn in conversation.turns.list()) == sorted(request.turn for request in requests)
    for id, turn in turns.items():
        made = [each for each in attempts if each["turn"] == id]
        assert [each["writes"]["save"] for each in made].count("stored") == 1
        (answer,) = [each["answer"] for each in made if each["writes"].get("answer") == "stored"]
        assert contents(messages_of(conversation, turn)) == [f"question of {id}", answer]
    log = conversation.all_messages()
    assert seqs(log) == list(range(1, 2 * len(turns) + 1))
    assert all(message.turn_no is not None for message in log)
    assert conversation.drafts.list() == []
    assert conversation.turns.in_progress() is None


def check_calls(request: Request, crew: Crew, calls: int) -> None:
    """Each attempt without an answer called the model once; turns that were not paused had one such attempt."""
    made = [each for each in crew.attempts if each["turn"] == request.turn]
    assert calls == len([each for each in made if each["answer"] is not None])
    if request.pause is None:
        assert calls == 1
        assert sorted(each["writes"]["save"] for each in made) == ["replayed", "stored"]
        (turn,) = [each for each in crew.store.conversation(request.key).turns.list() if each.id == request.turn]
        assert turn.last_seq == turn.first_seq + 1


def check_writes(attempt: Attempt) -> None:
    """After the first conflict, nothing is stored."""
    after = list(dropwhile(lambda became: became != "conflict", attempt["writes"].values()))
    assert "stored" not in after, attempt


def paused(crew: Crew, tokens: set[int]) -> Iterator[tuple[Attempt, list[str]]]:
    """Yield the paused attempts with these tokens, and the outcomes of their writes after the pause."""
    for attempt in crew.attempts:
        if attempt["token"] in tokens:
            yield attempt, [became for name, became in attempt["writes"].items() if name not in attempt["before"]]


@pytest.mark.timeout(120 + 20 * ROUNDS)
@pytest.mark.parametrize("sessions", [1, 3])
def test_request_sent_to_two_processes_is_answered_once(url: str, sessions: int) -> None:
    """Processes are paused until another has taken over, and in other rounds only until their lease has ended."""
    outcomes: Counter[str] = Counter()
    with Store(url) as store, counting_model() as model, crew_on(store, model.url) as crew:
        for round in range(ROUNDS):
            choose = random.Random(round)
            requests = requests_of(round, sessions, choose.choices(["question", "model", "answer"], k=5))
            pairs = choose.sample(list(combinations(range(WORKERS), 2)), REQUESTS)
            sends = [(worker, request) for pair, request in zip(pairs, requests, strict=True) for worker in pair]
            choose.shuffle(sends)
            for key in {request.key for request in requests}:
                store.create(key)
            crew.clear()
            crew.answer(sends, until_taken_over=round % 2 == 0)
            check_sessions(crew, requests, model.calls)
            assert crew.taken_over or round % 2
            for attempt, writes in paused(crew, crew.taken_over):
                assert writes, attempt
                assert set(writes) <= {"conflict", "replayed"}, attempt
            outcomes["taken over"] += len(crew.taken_over)
            outcomes["lease ended"] += len(crew.not_taken_over)
            outcomes.update(f"then {writes[-1]}" for _, writes in paused(crew, crew.not_taken_over))
        print(url.split(":")[0], dict(outcomes))
        assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.timeout(120 + 20 * ROUNDS)
@pytest.mark.parametrize("sessions", [1, 3])
def test_paused_process_saves_its_turn_if_no_other_process_took_over(url: str, sessions: int) -> None:
    with Store(url) as store, counting_model() as model, crew_on(store, model.url) as crew:
        for round in range(ROUNDS):
            choose = random.Random(round)
            requests = requests_of(round, sessions, choose.choices(["question", "model", "answer"], k=sessions))
            for key in {request.key for request in requests}:
                store.create(key)
            crew.clear()
            crew.answer(list(enumerate(requests[:sessions])), until_taken_over=False, most_paused=sessions)
            assert not crew.taken_over
            assert len(crew.not_taken_over) == len(crew.attempts) == sessions
            for _, writes in paused(crew, crew.not_taken_over):
                assert set(writes) == {"stored"}
            sends = [((n + 3) % WORKERS, request) for n, request in enumerate(requests)]
            sends += [((n + 5) % WORKERS, request) for n, request in enumerate(requests) if n >= sessions]
            crew.answer(sends, until_taken_over=True)
            check_sessions(crew, requests, model.calls)
            assert all(model.calls[request.turn] == 1 for request in requests)
        assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
