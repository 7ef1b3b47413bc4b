"""Calls of a store awaited under the event loop that the SDK runs under: asyncio's, or trio's."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from lango_store.aio import AsyncStore
from lango_store.cancellation import Cancellation
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
    """Call a function with the synchronous store in a thread.

    A cancelled read leaves at once. A cancelled write waits until it is known whether it landed.
    """
    if is_asyncio():
        return await awaited.run_sync(call)
    cancellation, ended = Cancellation(), threading.Event()
    errors: list[BaseException] = []

    def run() -> R:
        try:
            return cancellation.run(functools.partial(call, awaited.store))
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    try:
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class() as cancelled:
        if not cancellation.cancel():
            raise
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(ended.wait)
        raise cancelled from (errors[0] if errors else None)


async def shut_down(awaited: AsyncStore) -> None:
    """Close what an adapter made, where no event loop of asyncio's is running."""
    awaited._closed = True
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(awaited._shut_down)
