"""One process of test_turns_at_once: it answers requests with a model, and pauses where a request says so.

It reads a request from each line of stdin, and prints the attempts that the request took. The first attempt of a
request with `pause` pauses there: the process prints the token of its lease, and continues when it can read a line. If
the line is "late", another process has taken over, and the attempt tries all writes that a turn has.
"""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from urllib.request import urlopen

from lango_store import Conflict, Conversation, Message, Store
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn

WAIT: Final = timedelta(seconds=100)
TRIES: Final = 50


class Attempt:
    """One attempt at a turn, with the outcome of each of its writes: "stored", "replayed" or "conflict"."""

    def __init__(self, request: dict[str, Any], model: str) -> None:
        self.id: str = request["turn"]
        self.lease = timedelta(seconds=request["lease"])
        self.pause_at: str | None = request["pause"]
        self.model = model
        self.report: dict[str, Any] = {"turn": self.id, "token": None, "answer": None, "is_answered": False}
        self.writes: dict[str, str] = {}
        self.is_late = False

    def run(self, conversation: Conversation) -> dict[str, Any]:
        turn = conversation.turn(self.id, lease=self.lease, wait=WAIT, flush=timedelta(0))
        try:
            with turn:
                if not turn.replayed:
                    self.answer(turn)
            assert turn.stored is not None
            self.writes["save"] = "replayed" if turn.stored.replayed else "stored"
        except Conflict:
            self.writes["save"] = "conflict"
        return self.report | {"writes": self.writes, "replayed": turn.replayed}

    def answer(self, turn: RunningTurn) -> None:
        is_first = not turn.messages
        self.report["is_answered"] = any(message.role == "assistant" for message in turn.messages)
        self.write("question", lambda: turn.append(Message.user(f"question of {self.id}")))
        self.pause(turn, "question", is_first)
        if not self.report["is_answered"]:
            with urlopen(f"{self.model}/{self.id}") as response:
                answer = self.report["answer"] = response.read().decode()
            self.pause(turn, "model", is_first)
            self.write("draft", lambda: turn.write(answer[:8]))
            self.write("answer", lambda: turn.append(Message.assistant(answer)))
        self.pause(turn, "answer", is_first)
        if self.is_late:
            self.write("late piece", lambda: turn.write("late piece"))
            self.write("late messages", lambda: turn.append_messages([Message(role="record", content="late")] * 2))
            self.write("late inbox", turn.take_inbox)

    def write(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Conflict:
            self.writes[name] = "conflict"
            self.is_late = True
        else:
            self.writes[name] = "stored"

    def pause(self, turn: RunningTurn, point: str, is_first: bool) -> None:
        if point == self.pause_at and is_first and not self.is_late:
            assert turn.lease
            self.report |= {"token": turn.lease.token, "before": list(self.writes)}
            say({"token": turn.lease.token})
            self.is_late = sys.stdin.readline() == "late\n"


def answer(store: Store, request: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """Try until the turn is stored, as a client does that sends a request again after a conflict."""
    attempts: list[dict[str, Any]] = []
    for _ in range(TRIES):
        attempts.append(Attempt(request, model).run(store.conversation(request["key"])))
        if attempts[-1]["writes"]["save"] != "conflict":
            return attempts
    raise AssertionError(f"{request} was not stored")


def say(said: object) -> None:
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    url, model = sys.argv[1:]
    with Store(url) as store:
        for line in sys.stdin:
            say(answer(store, json.loads(line), model))
