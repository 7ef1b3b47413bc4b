"""Handlers of `work` for tests that run on both kinds of stores."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from support.awaiting import Awaiting, AwaitingTurn

from lango_store import AsyncConversation, AsyncRunningTurn, Conversation, Message, RunningTurn, Store

Handler = Callable[[Conversation, RunningTurn], object]
MEANTIME: Final = "in the meantime"


def work(store: Store, handle: Handler, **options: Any) -> int:
    """Call `work(once=True)` of either kind of store with a function as the handler."""
    if not isinstance(store, Awaiting):
        return store.work(handle, once=True, **options)

    async def run(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        loop = asyncio.get_running_loop()
        own: Any = Awaiting(conversation, loop), AwaitingTurn(turn, loop)
        await asyncio.to_thread(handle, *own)

    done: int = store.work(run, once=True, **options)  # type: ignore[arg-type]
    return done


def answer(conversation: Conversation, turn: RunningTurn) -> None:
    """Answer all questions since the last answer, unless an earlier attempt has done so."""
    log = conversation.all_messages()
    answered = max((each.seq for each in log if each.role == "assistant"), default=0)
    if questions := [str(each.content) for each in log if each.seq > answered]:
        turn.append(Message.assistant(f"answer to {', '.join(questions)}"))


def fail(conversation: Conversation, turn: RunningTurn) -> None:
    """Fail as a handler whose model times out."""
    raise TimeoutError(f"no answer in {conversation.key}")
