"""`python -m benchmarks.sizes`: bytes on disk per message and session, with indexes."""

from __future__ import annotations

import random
from typing import Final

from benchmarks.turns import databases
from lango_store import Message, Store

SESSIONS: Final = 100
MESSAGES: Final = 100
LENGTHS: Final = (100, 1_000, 4_000)
_WORDS: Final = [f"word{number}" for number in range(5_000)]


def text(length: int, of: random.Random) -> str:
    """Make a text of that many characters, in which some words repeat."""
    return " ".join(of.choice(_WORDS) for _ in range(length // 5))[:length]


def main() -> None:
    """Fill stores, and print what each row takes."""
    names = ["sqlite", "postgresql"]
    for length in LENGTHS:
        with databases(names) as urls:
            for name, url in urls.items():
                with Store(url, durability="normal") as store:
                    empty, of = store.stats().bytes, random.Random(length)
                    for number in range(SESSIONS):
                        key = store.create(f"session:{number}", user_id=f"user{number}", agent_id="a").key
                        store.conversation(key).append_messages(
                            [Message.user(text(length, of)) for _ in range(MESSAGES)]
                        )
                    each = (store.stats().bytes - empty) / (SESSIONS * MESSAGES)
                    print(f"{name}: a message of {length:,} characters takes {each:,.0f} bytes")
    with databases(names) as urls:
        for name, url in urls.items():
            with Store(url, durability="normal") as store:
                empty, count = store.stats().bytes, 10_000
                with store.engine.begin() as connection:
                    within = store.using(connection)
                    for number in range(count):
                        within.create(f"session:{number}", user_id=f"user{number}", agent_id="a", title="A title " * 4)
                each = (store.stats().bytes - empty) / count
                print(f"{name}: a session without messages takes {each:,.0f} bytes")


if __name__ == "__main__":
    main()
