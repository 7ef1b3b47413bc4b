"""`python -m benchmarks.front_ends [--readers 200] [--turns 50] [--rounds 5]`: what readers of running turns cost.

Writes of turns in progress (a piece of a draft in a separate transaction, or an answer) are counted without readers,
and with readers in another process: of `tail`, and of the streams of front ends.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.turns import databases
from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, TurnEnded
from lango_store.ui import agui, aisdk

SECONDS = 3.0


async def tail(conversation: AsyncConversation, turn_id: str) -> AsyncGenerator[Any, None]:
    async for event in conversation.tail():
        yield event.data
        if isinstance(event, TurnEnded):
            break


STREAMS: dict[str, Callable[..., AsyncGenerator[Any, None]]] = {"tail": tail, "aisdk": aisdk, "agui": agui}


def follow(url: str, name: str, prefix: str, readers: int, turns: int) -> None:
    """Read turns in this process; print a line when all readers have joined, and the processor time since then."""

    async def work() -> None:
        joined = 0
        all_joined = asyncio.Event()

        async def read(number: int) -> None:
            nonlocal joined
            has_joined = False
            async for _ in STREAMS[name](store.conversation(f"{prefix}{number % turns}"), "t"):
                if not has_joined:
                    has_joined, joined = True, joined + 1
                    if joined == readers:
                        all_joined.set()

        async with AsyncStore(url) as store:
            tasks = [asyncio.create_task(read(number)) for number in range(readers)]
            await all_joined.wait()
            started = time.process_time()
            print("joined", flush=True)
            await asyncio.gather(*tasks)
            print(time.process_time() - started, flush=True)

    asyncio.run(work())


def start_readers(url: str, name: str, prefix: str, readers: int, turns: int) -> subprocess.Popen[str]:
    """Start readers in another process, and wait until all have joined."""
    command = [sys.executable, "-m", "benchmarks.front_ends", "--follow", url, name, prefix]
    counts = ["--readers", str(readers), "--turns", str(turns)]
    process = subprocess.Popen([*command, *counts], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


async def write(url: str, name: str | None, prefix: str, readers: int, turns: int) -> tuple[float, float]:
    """Return the writes per second of turns in progress, and the processor time of the readers."""
    process = None
    async with AsyncStore(url) as store, AsyncExitStack() as stack:
        blocks = []
        for number in range(turns):
            conversation = await store.open(f"{prefix}{number}")
            blocks.append(await stack.enter_async_context(conversation.turn("t", flush=timedelta(0))))
            await blocks[-1].append(Message.assistant("begun"))
        if name is not None:
            process = await asyncio.to_thread(start_readers, url, name, prefix, readers, turns)
        started = time.perf_counter()

        async def run(turn: AsyncRunningTurn) -> int:
            count = 0
            while time.perf_counter() - started < SECONDS:
                for _ in range(5):
                    await turn.write("some words ")
                await turn.append(Message.assistant(turn.draft_text))
                count += 6
            return count

        counts = await asyncio.gather(*(run(turn) for turn in blocks))
        rate = sum(counts) / (time.perf_counter() - started)
    if process is None:
        return rate, 0.0
    output, _ = await asyncio.to_thread(process.communicate)
    return rate, float(output)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--follow", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        url, name, prefix = options.follow
        follow(url, name, prefix, options.readers, options.turns)
        return
    table = Table(title=f"{options.readers} readers of {options.turns} running turns")
    for column in ("database", "readers", "writes/s", "share of those without readers", "readers' processor time"):
        table.add_column(column)
    with databases({"sqlite", "postgresql"}) as urls:
        for database, url in urls.items():
            rates: dict[str | None, list[float]] = {}
            times: dict[str | None, list[float]] = {}
            for number in range(options.rounds):
                for name in (None, *STREAMS):
                    prefix = f"{number}:{name}:"
                    rate, used = asyncio.run(write(url, name, prefix, options.readers, options.turns))
                    rates.setdefault(name, []).append(rate)
                    times.setdefault(name, []).append(used)
            for name in (None, *STREAMS):
                share = median(with_ / alone for with_, alone in zip(rates[name], rates[None], strict=True))
                shown = f"{median(times[name]):.1f} s" if name else ""
                table.add_row(database, name or "none", f"{median(rates[name]):,.0f}", f"{share:.2f}", shown)
    Console().print(table)


if __name__ == "__main__":
    main()
