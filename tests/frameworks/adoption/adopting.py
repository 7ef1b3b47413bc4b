"""Adoptions that are killed and repeated, and random items."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from support.processes import Program

from lango_store import Store, interchange
from lango_store.interchange import Adopted

Item = dict[str, Any]

ADOPT = """
import sys
from lango_store import Store, interchange

with Store(sys.argv[1]) as store:
    interchange.adopt(store, sys.argv[2], on_rows=lambda rows: print(rows, flush=True))
"""


def kill_adoption(url: str, source: str, transactions: int) -> None:
    """Start an adoption, and kill it after this number of transactions."""
    program = Program(ADOPT, url, source)
    for _ in range(transactions):
        if not program.stdout.readline():
            break
    with suppress(ProcessLookupError):
        program.send_signal(9)
    program.wait()
    program.close()


def adopt(url: str, from_url: str, **options: Any) -> list[Adopted]:
    """Adopt sessions and shared values, and return their reports."""
    with Store(url) as store:
        return [each for each in interchange.adopt(store, from_url, **options) if each.state != "left out"]


def states(reports: list[Adopted]) -> Counter[str]:
    return Counter(each.state for each in reports)


def random_text(chance: random.Random) -> str:
    words = ["Oslo", "rain", "", "\n", "æøå", "雨", "🌧", "\x00", "\ud800", "%", "'", '"', "\\u0000", "x" * 3000]
    return " ".join(chance.choices(words, k=chance.randrange(6)))


def random_items(chance: random.Random) -> Iterator[list[Item]]:
    """Yield what runs of an agent add to a session: questions, reasoning, parallel calls, outputs, images, answers."""
    for turn in range(chance.randrange(1, 8)):
        question: Any = random_text(chance)
        if chance.random() < 0.3:
            image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 5000, "detail": "auto"}
            question = [{"type": "input_text", "text": question}, image]
        yield [{"role": "user", "content": question}]
        items: list[Item] = []
        if chance.random() < 0.4:
            items.append(
                {"id": f"rs_{turn}", "type": "reasoning", "summary": [], "encrypted_content": random_text(chance)}
            )
        calls = [f"call_{turn}_{number}" for number in range(chance.randrange(4))]
        kind, argument = chance.choice([("function_call", "arguments"), ("custom_tool_call", "input")])
        items += [{"type": kind, "call_id": id, "name": "weather", argument: '{"city": "Oslo"}'} for id in calls]
        outputs: list[Item] = [{"type": f"{kind}_output", "call_id": id, "output": random_text(chance)} for id in calls]
        if chance.random() < 0.2:
            outputs = []  # a crash
        text = {"type": "output_text", "text": random_text(chance), "annotations": [], "logprobs": []}
        answer = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        yield from ([*items, *outputs, answer],) if chance.random() < 0.5 else (items, [*outputs, answer])
