"""A worker process of test_killed_workers.py: it answers questions with a model, and fails or asks for an approval.

It prints a line for each error that it raises. It runs one turn at a time, so that a kill costs one call of the model.
"""

import asyncio
import hashlib
import logging
import random
import sys
from datetime import timedelta
from typing import Final
from urllib.request import urlopen

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Conversation, Message, RunningTurn, Store

LEASE: Final = timedelta(seconds=3)
FAILING: Final = 0.05
BACKOFF: Final = timedelta(milliseconds=100)


def needs_approval(text: str) -> bool:
    """Return whether the handler asks a person before it answers."""
    return hashlib.sha256(text.encode()).digest()[0] < 40


def ask_model(model: str, turn_id: str, prompt: str) -> str:
    """Return the model's answer, which repeats the questions."""
    with urlopen(f"{model}/{turn_id}") as response:
        response.read()
    return f"answer to {prompt}"


def open_questions(log: list[Message]) -> list[str]:
    """Return the questions since the last answer."""
    answered = max((each.seq for each in log if each.role == "assistant"), default=0)
    return [str(each.content) for each in log if each.seq > answered and each.role == "user"]


def handle(conversation: Conversation, turn: RunningTurn, model: str) -> None:
    questions = open_questions(conversation.all_messages())
    suspensions = conversation.suspensions.list()
    if not questions:
        return
    if needs_approval(questions[-1]) and not any(each.reason == questions[-1] for each in suspensions):
        conversation.suspensions.create(reason=questions[-1])
        return
    if any(each.reason == questions[-1] and each.answered_at is None for each in suspensions):
        return
    answer = ask_model(model, turn.id, ", ".join(questions))
    for word in answer.split():
        turn.write(f"{word} ")
    maybe_fail()
    turn.append(Message.assistant(answer))
    maybe_fail()


async def handle_async(conversation: AsyncConversation, turn: AsyncRunningTurn, model: str) -> None:
    questions = open_questions(await conversation.all_messages())
    suspensions = await conversation.suspensions.list()
    if not questions:
        return
    if needs_approval(questions[-1]) and not any(each.reason == questions[-1] for each in suspensions):
        await conversation.suspensions.create(reason=questions[-1])
        return
    if any(each.reason == questions[-1] and each.answered_at is None for each in suspensions):
        return
    answer = await asyncio.to_thread(ask_model, model, turn.id, ", ".join(questions))
    for word in answer.split():
        await turn.write(f"{word} ")
    maybe_fail()
    await turn.append(Message.assistant(answer))
    maybe_fail()


def maybe_fail() -> None:
    if random.random() < FAILING:
        print("failed", flush=True)
        raise RuntimeError("the handler fails")


def main(url: str, model: str, kind: str) -> None:
    """Work until SIGTERM."""
    logging.disable()
    options = {"concurrency": 1, "lease": LEASE, "poll": timedelta(seconds=0.2), "backoff": BACKOFF}
    print("ready", flush=True)
    if kind == "sync":
        with Store(url) as store:
            store.work(lambda conversation, turn: handle(conversation, turn, model), **options)  # type: ignore[arg-type]
        return

    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.work(lambda conversation, turn: handle_async(conversation, turn, model), **options)  # type: ignore[arg-type]

    asyncio.run(work())


if __name__ == "__main__":
    main(*sys.argv[1:])
