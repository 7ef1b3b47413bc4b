"""Calls of a store awaited under the event loop that the SDK runs under: asyncio's, or trio's."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from lango_store.aio import AsyncStore
from lango_store.cancellation import Cancelled
from lango_store.store import Store

R = TypeVar("R")


def is_asyncio() -> bool:
    """Return whether asyncio's event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def in_thread(awaited: AsyncStore, call: Callable[[Store], R]) -> R:
    """Call a function with the synchronous store in a thread of the asynchronous one.

    A cancelled read leaves at once. A cancelled write waits until it is known whether it landed.
    """
    if is_asyncio():
        return await awaited.run_sync(call)
    work, cancellation = awaited.threads.submit(functools.partial(call, awaited.store))
    try:
        return await anyio.to_thread.run_sync(work.result, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class() as cancelled:
        if work.cancel() or not cancellation.cancel():
            raise
        with anyio.CancelScope(shield=True):
            error = await anyio.to_thread.run_sync(work.exception)
        raise cancelled from (None if isinstance(error, Cancelled) else error)


async def close(awaited: AsyncStore) -> None:
    """Close a store as `AsyncStore.close` does."""
    if is_asyncio():
        await awaited.close()
        return
    awaited.threads.close()
    await anyio.to_thread.run_sync(awaited.threads.wait, abandon_on_cancel=True)
