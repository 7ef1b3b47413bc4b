"""A worker process of test_budgets_at_once.py: it answers with a model, and uses a part of its reservation."""

import asyncio
import hashlib
import logging
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.request import urlopen

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    Budget,
    Conversation,
    Message,
    RunningTurn,
    Store,
)

LIMIT: Final = 1_000
RESERVE: Final = 100
BUDGET: Final = Budget("team", LIMIT, reserve=RESERVE)
LEASE: Final = timedelta(seconds=1)
BEGAN: Final[dict[str, str]] = {}
"""When the budget was last asked to admit a turn, by session."""


def budget(conversation: Conversation | AsyncConversation) -> Budget:
    BEGAN[conversation.key] = datetime.now(UTC).isoformat()
    return BUDGET


OPTIONS: Final[dict[str, Any]] = {
    "concurrency": 2,
    "lease": LEASE,
    "poll": timedelta(seconds=0.1),
    "backoff": timedelta(seconds=0.1),
    "budget": budget,
}


def used_by(turn_id: str) -> int:
    """Return the tokens of a turn."""
    return 1 + hashlib.sha256(turn_id.encode()).digest()[0] % RESERVE


def ask_model(model: str, turn_id: str) -> None:
    with urlopen(f"{model}/{turn_id}") as response:
        response.read()


def handle(conversation: Conversation, turn: RunningTurn, model: str) -> None:
    turn.metadata = {"began": BEGAN[conversation.key]}
    ask_model(model, turn.id)
    turn.append(Message.assistant("answer"))
    turn.usage = {"input_tokens": used_by(turn.id)}


async def handle_async(conversation: AsyncConversation, turn: AsyncRunningTurn, model: str) -> None:
    turn.metadata = {"began": BEGAN[conversation.key]}
    await asyncio.to_thread(ask_model, model, turn.id)
    await turn.append(Message.assistant("answer"))
    turn.usage = {"input_tokens": used_by(turn.id)}


def main(url: str, model: str, kind: str) -> None:
    """Work until SIGTERM."""
    logging.disable()
    print("ready", flush=True)
    if kind == "sync":
        with Store(url) as store:
            store.work(lambda conversation, turn: handle(conversation, turn, model), **OPTIONS)
        return

    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.work(lambda conversation, turn: handle_async(conversation, turn, model), **OPTIONS)

    asyncio.run(work())


if __name__ == "__main__":
    main(*sys.argv[1:])
