"""Adoption of one large session of openai-agents: time compared with reading its rows, and memory.

Run `python -m benchmarks.adoption [ITEMS]` with the package openai-agents installed, which writes the file.
"""

import asyncio
import gc
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from lango_store import Store, interchange

BATCH = 4_000


def items(turns: int) -> list[dict[str, Any]]:
    """Return turns of four items: a question, a call, its output and the answer."""
    text = {"type": "output_text", "text": "It rains in Oslo.", "annotations": [], "logprobs": []}
    answer = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    call = {"type": "function_call", "name": "weather", "arguments": '{"city": "Oslo"}', "status": "completed"}
    return [
        item
        for number in range(turns)
        for item in (
            {"role": "user", "content": f"Question {number}: how is the weather in Oslo?"},
            call | {"call_id": f"call_{number}"},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": "rain"},
            answer | {"id": f"msg_{number}"},
        )
    ]


async def write(path: Path, count: int) -> None:
    """Write a session of this number of items with the framework."""
    from agents import SQLiteSession

    session = SQLiteSession("large", path)
    for _ in range(0, count, BATCH):
        await session.add_items(items(BATCH // 4))
    session.close()


def read(path: Path) -> float:
    """Read the items with sqlite3 as the framework does, one by one; return the processor time."""
    started = time.process_time()
    with closing(sqlite3.connect(path)) as connection:
        for (text,) in connection.execute("SELECT message_data FROM agent_messages ORDER BY id"):
            json.loads(text)
    return time.process_time() - started


def adopt(path: Path, target: Path) -> float:
    """Adopt the session; return the processor time."""
    with Store(f"sqlite:///{target}", migrate=True) as store:
        store.count()
        gc.freeze()  # as the command does
        started = time.process_time()
        interchange.adopt(store, f"sqlite:///{path}")
        return time.process_time() - started


def main() -> None:
    """Write, read and adopt a session, and print the figures."""
    if sys.argv[1:2] == ["--adopt"]:
        took = adopt(Path(sys.argv[2]), Path(sys.argv[3]))
        print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    count = int(sys.argv[1]) if sys.argv[1:] else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "agents.db"), Path(folder, "store.db")
        asyncio.run(write(source, count))
        baseline = read(source)
        command = [sys.executable, "-m", "benchmarks.adoption", "--adopt", str(source), str(target)]
        took, memory = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    print(
        f"{count:,} items: read in {baseline:.1f} s, adopted in {took:.1f} s of processor time "
        f"({took / baseline:.1f} times, {took / count * 1e6:.0f} µs for each item), at most {memory:.0f} MiB"
    )


if __name__ == "__main__":
    main()
