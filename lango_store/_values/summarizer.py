"""Call the caller's summarizer, a plain or an async function, for a compaction."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from lango_store._values.model import Message

Summary = Message | Sequence[Message]
Summarizer = Callable[[list[Message]], Summary | Awaitable[Summary]]
"""A function, plain or async, that takes the messages of a window and returns one or more messages as a summary."""


def summarize(summarizer: Summarizer, window: list[Message]) -> Summary:
    """Return the summary of a window. If the summarizer returns an awaitable, run it in a new event loop."""
    summary = summarizer(window)
    return _run(summary) if inspect.isawaitable(summary) else summary


async def summarize_async(summarizer: Summarizer, window: list[Message]) -> Summary:
    """Return the summary of a window. A coroutine function is awaited; any other function runs in a thread."""
    if inspect.iscoroutinefunction(summarizer):
        summary: Summary = await summarizer(window)
        return summary
    written = await asyncio.to_thread(summarizer, window)
    return await written if inspect.isawaitable(written) else written


def _run(awaitable: Awaitable[Summary]) -> Summary:
    async def wait() -> Summary:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    if isinstance(awaitable, Coroutine):
        awaitable.close()
    raise TypeError("an event loop is running in this thread: open the session with AsyncStore and await compact()")
