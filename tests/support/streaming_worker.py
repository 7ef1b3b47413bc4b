"""A worker process of test_stops.py, which streams its answers slowly, until SIGTERM."""

import asyncio
import logging
import sys
from datetime import timedelta
from typing import Final

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Conversation, Message, RunningTurn, Store

LEASE: Final = timedelta(seconds=1)
PAUSE: Final = timedelta(seconds=0.02)
WORDS: Final = 5


def asked(turn: RunningTurn | AsyncRunningTurn) -> str:
    return ", ".join(str(each.content) for each in turn.messages if each.role == "user")


def handle(conversation: Conversation, turn: RunningTurn) -> None:
    """Stream an answer to the questions of the turn, and notice a stop between two words."""
    for word in range(WORDS):
        turn.write(f"{word} ")
        turn.flush()
        if turn.stopped.wait(0.01):
            return
    turn.append(Message.assistant(f"answer to {asked(turn)}"))


async def handle_async(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    """Stream an answer to the questions of the turn; a stop cancels this."""
    for word in range(WORDS):
        await turn.write(f"{word} ")
        await turn.flush()
        await asyncio.sleep(0.01)
    await turn.append(Message.assistant(f"answer to {asked(turn)}"))


def main(url: str, kind: str) -> None:
    """Work until SIGTERM."""
    logging.disable()
    print("ready", flush=True)
    if kind == "sync":
        with Store(url) as store:
            store.work(handle, lease=LEASE, poll=PAUSE, backoff=PAUSE)
        return

    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.work(handle_async, lease=LEASE, poll=PAUSE, backoff=PAUSE)

    asyncio.run(work())


if __name__ == "__main__":
    main(*sys.argv[1:])
