"""Sessions of texts, and a loop to use them in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .responses import Item


def said(*texts: str) -> list[Item]:
    return [{"role": "user", "content": text} for text in texts]


def texts(items: list[Any]) -> list[str]:
    return [item["content"] for item in items]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def awaited() -> None:
        await main()

    asyncio.run(awaited())
