"""A worker process of test_reminders_caps_and_waits.py: it answers questions with a model, some of them after a job.

It prints a line for each error that it raises. It runs one turn at a time, so that a kill costs one call of the model.
"""

import asyncio
import logging
import random
import sys
import time
from datetime import timedelta
from typing import Any, Final
from urllib.request import Request, urlopen

from support.budget_worker import ask_model, used_by
from support.shared_clock import SharedClock
from support.soak_worker import maybe_fail, needs_approval

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    Budget,
    CallUnknown,
    Conversation,
    Effect,
    Message,
    RunningTurn,
    Store,
    ToolCall,
)

LEASE: Final = timedelta(seconds=3)
LIMIT: Final = 200
RESERVE: Final = 100
SCOPES: Final = ("team-0", "team-1", "team-2")
ANSWER: Final = "answer to "
MODEL_SECONDS: Final = 0.4
"""How long the model takes at most, so that turns overlap and are killed while it answers."""
TIME: Final = timedelta(milliseconds=100)
OPTIONS: Final[dict[str, Any]] = {"concurrency": 1, "lease": LEASE, "poll": 2 * TIME, "backoff": TIME}


def scope_of(key: str) -> str:
    """Return the scope of a session with a key such as `k7`."""
    return SCOPES[int(key[1:]) % len(SCOPES)]


def is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def needs_job(question: str) -> bool:
    """Return whether the answer needs the result of a job."""
    return needs_approval(question)


class Log:
    """The log of a session: the questions since the last answer, and the calls that they need.

    Attributes:
        calls: The messages that contain a call for an open question.
        missing: The calls that such a question needs and that are not in the log.
    """

    def __init__(self, log: list[Message]) -> None:
        answered = max((each.seq for each in log if is_answer(each)), default=0)
        recent = [each for each in log if each.seq > answered]
        self.questions = [str(each.content) for each in recent if each.role == "user"]
        self.calls = [each for each in recent if each.tool_calls]
        asked = {each.tool_calls[0].id for each in self.calls}
        self.missing = [
            ToolCall(id=each, name="job", arguments={})
            for each in self.questions
            if needs_job(each) and each not in asked
        ]


def start_job(tool: str, effect: Effect) -> None:
    """Start the job of a call, which then waits for it."""
    if not effect.replayed:
        with urlopen(Request(f"{tool}/job", b"", {"Idempotency-Key": effect.key})) as response:
            response.read()
        maybe_fail()
        effect.wait({"job": effect.key}, until=timedelta(seconds=random.choice([0.3, 1, 60])))


class Worker:
    """What the workers of both kinds share.

    Attributes:
        began: The time of the clock before the budget admitted the turn.
    """

    def __init__(self, model: str, tool: str, clock: SharedClock) -> None:
        self.model, self.tool, self.clock = model, tool, clock
        self.began = clock()

    def budget(self, conversation: Conversation | AsyncConversation) -> Budget:
        self.began = self.clock()
        return Budget(scope_of(conversation.key), LIMIT, per="day", reserve=RESERVE)

    def pay(self, turn: RunningTurn | AsyncRunningTurn) -> None:
        """Ask the model, which costs tokens."""
        ask_model(self.model, turn.id)
        time.sleep(random.random() * MODEL_SECONDS)
        turn.usage = {"input_tokens": used_by(turn.id)}
        maybe_fail()

    def handle(self, conversation: Conversation, turn: RunningTurn) -> None:
        turn.metadata = {"began": self.began.isoformat(), "read": self.clock().isoformat()}
        log = Log(conversation.all_messages())
        if log.missing:
            self.pay(turn)
            log.calls += [turn.append(Message.assistant(tool_calls=[each])) for each in log.missing]
        for asking in log.calls:
            try:
                with turn.call(asking.seq, 0) as effect:
                    start_job(self.tool, effect)
            except CallUnknown as error:
                conversation.calls.resolve(error.seq, error.position, failed="lost")
            maybe_fail()
        if not log.questions or any(each.state == "waiting" for each in conversation.calls.list()):
            return
        if not log.missing:
            self.pay(turn)
        turn.append(Message.assistant(ANSWER + ", ".join(log.questions)))
        maybe_fail()

    async def handle_async(self, conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        turn.metadata = {"began": self.began.isoformat(), "read": self.clock().isoformat()}
        log = Log(await conversation.all_messages())
        if log.missing:
            await asyncio.to_thread(self.pay, turn)
            log.calls += [await turn.append(Message.assistant(tool_calls=[each])) for each in log.missing]
        for asking in log.calls:
            try:
                async with turn.call(asking.seq, 0) as effect:
                    await asyncio.to_thread(start_job, self.tool, effect)
            except CallUnknown as error:
                await conversation.calls.resolve(error.seq, error.position, failed="lost")
            maybe_fail()
        if not log.questions or any(each.state == "waiting" for each in await conversation.calls.list()):
            return
        if not log.missing:
            await asyncio.to_thread(self.pay, turn)
        await turn.append(Message.assistant(ANSWER + ", ".join(log.questions)))
        maybe_fail()


def main(url: str, model: str, tool: str, days: str, kind: str) -> None:
    """Work until SIGTERM."""
    logging.disable()
    clock = SharedClock(days)
    worker = Worker(model, tool, clock)
    print("ready", flush=True)
    if kind == "sync":
        with Store(url, clock=clock) as store:
            store.work(worker.handle, budget=worker.budget, **OPTIONS)
        return

    async def work() -> None:
        async with AsyncStore(url, clock=clock) as store:
            await store.work(worker.handle_async, budget=worker.budget, **OPTIONS)

    asyncio.run(work())


if __name__ == "__main__":
    main(*sys.argv[1:])
