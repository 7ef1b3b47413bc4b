"""The messages of all benchmarks: user texts, tool calls, tool outputs and answers."""

from __future__ import annotations

import json
import random
import string
from typing import Any

WORDS = ["".join(random.Random(n).choices(string.ascii_lowercase, k=2 + n % 9)) for n in range(500)]


def text(source: random.Random, characters: int) -> str:
    """Make a text of words with about that many characters."""
    words: list[str] = []
    length = 0
    while length < characters:
        words.append(source.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)


def output(source: random.Random, most: int = 42) -> dict[str, Any]:
    """Make a tool's output of 5 to `most` rows of 0.2 kB."""
    rows = [
        {
            "id": source.randrange(10**6),
            "score": source.random(),
            "ok": source.random() < 0.5,
            "text": text(source, 120),
        }
        for _ in range(source.randint(5, most))
    ]
    return {"rows": rows, "next": None}


def message(number: int) -> dict[str, Any]:
    """Make the message with this number: in turn a question, tool calls, a tool output, and an answer."""
    source = random.Random(number)
    match number % 4:
        case 0:
            return {"role": "user", "content": text(source, source.randint(200, 2000))}
        case 1:
            calls = [
                {"id": f"call_{number}_{n}", "name": "search", "arguments": {"query": text(source, 60), "limit": 20}}
                for n in range(source.randint(1, 2))
            ]
            return {"role": "assistant", "content": text(source, 100), "author": "planner", "tool_calls": calls}
        case 2:
            return {"role": "tool", "content": output(source), "name": "search", "tool_call_id": f"call_{number - 1}_0"}
        case _:
            return {"role": "assistant", "content": text(source, source.randint(200, 800)), "author": "planner"}


def messages(number: int, start: int = 0) -> list[dict[str, Any]]:
    """Make that many messages."""
    return [message(n) for n in range(start, start + number)]


def texts(number: int, start: int = 0) -> list[dict[str, Any]]:
    """Make that many messages of text, 2.3 kB on average; the text of a tool's output is JSON of 1 to 14 kB."""
    made = messages(number, start)
    for place, each in enumerate(made, start):
        if each["role"] == "tool":
            each["content"] = json.dumps(output(random.Random(place), most=73))
    return made


def short(number: int, start: int = 0) -> list[dict[str, Any]]:
    """Make that many messages of a few characters."""
    return [{"role": "user", "content": f"message {n}"} for n in range(start, start + number)]
