"""Processes that are killed while they write payloads: each stored message is whole, and no payload is orphaned.

LANGO_STORE_TURN_ROUNDS sets the number of rounds.
"""

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from support.polling import until
from support.processes import Program

from lango_store import Maintenance, Message, Store
from lango_store._rooms.examination import checks

pytestmark = pytest.mark.slow

ROUNDS: Final = int(os.environ.get("LANGO_STORE_TURN_ROUNDS", "10"))

MAKE: Final = """
from lango_store import Message, ToolCall

def text(n):
    return f"{n % 7} ".ljust(500 + 700 * (n % 7), "x")

def make(n):
    call = ToolCall(id="c", name="f", arguments={"a": text(n + 2)}, output=[text(n), text(n + 3)])
    return Message.assistant([text(n), {"b": text(n + 1)}], tool_calls=[call], extra={"n": n, "raw": text(5 * n)})
"""
"""Makes message n. Its strings are long or short, and other messages have them too."""

APPENDER: Final = f"""{MAKE}
import random, sys
from itertools import count
from lango_store import Store

url, key, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
choose, numbers = random.Random(seed), count()
with Store(url, payload_threshold=1_000) as store:
    conversation = store.open(key)
    while True:
        new = [next(numbers) for _ in range(choose.choice((1, 1, 2, 5)))]
        if len(new) == 1:
            conversation.append_message(make(new[0]))
        elif choose.random() < 0.5:
            conversation.append_messages([make(n) for n in new])
        else:
            conversation.save_turn([make(n) for n in new])
        print(new, flush=True)
"""
"""Appends messages 0, 1, 2 and so on, in all ways; prints the numbers of the stored ones."""

EDITOR: Final = f"""{MAKE}
import random, sys
from lango_store import Store

url, key, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
choose = random.Random(seed)
with Store(url, payload_threshold=1_000) as store:
    conversation = store.open(key)
    for n in range(1_000_000):
        conversation.append_messages([make(n), make(n + 1)])
        print([n], flush=True)
        log = conversation.all_messages()
        seq = choose.choice(log).seq
        match choose.randrange(8):
            case 0: conversation.edits.delete(seq)
            case 1: conversation.edits.update(seq, make(3 * n))
            case 2: conversation.append_messages([make(2 * n)], replace_after=seq)
            case 3: conversation.truncate(after=log[-1].seq - 2)
            case 4: conversation.pop_message()
            case 5: conversation.compact(lambda _: make(n), discard=True)
            case 6: conversation.fork(upto=seq)
            case 7: store.maintenance.move_payloads(threshold=choose.choice((None, 700, 1_000)))
"""
"""Appends and edits messages, without an end."""


def message_maker() -> Callable[[int], Message]:
    names: dict[str, Any] = {}
    exec(MAKE, names)
    maker: Callable[[int], Message] = names["make"]
    return maker


make = message_maker()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


def is_idle(store: Store) -> bool:
    """Return False while the server runs the last statement of a killed process."""
    if store.engine.dialect.name == "sqlite":
        return True
    busy = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with store.engine.connect() as connection:
        return connection.exec_driver_sql(f"{busy} AND state <> 'idle'").first() is None


def killed(program: str, store: Store, url: str, round: int) -> list[int]:
    """Kill a process at a random moment after its first lines; return the numbers that it printed."""
    choose = random.Random(round)
    with Program(program, url, f"k{round}", choose.getrandbits(32)) as process:
        lines = [process.stdout.readline() for _ in range(choose.randrange(1, 12))]
        for _ in range(choose.randrange(100_000)):
            """The process continues with its next write."""
        process.send_signal(signal.SIGKILL)
        lines += list(process.stdout)
        assert "" not in lines, process.stderr.read()
    until(lambda: is_idle(store))
    return [number for line in lines for number in json.loads(line)]


def whole_messages(store: Store, key: str) -> list[int]:
    """Return the numbers of the stored messages, after comparing each with the message that was sent."""
    log = store.conversation(key).all_messages()
    for stored in log:
        sent = make(stored.extra["n"])
        assert (stored.content, stored.tool_calls, stored.extra) == (sent.content, sent.tool_calls, sent.extra)
    return [stored.extra["n"] for stored in log]


def assert_consistent(store: Store) -> None:
    with store._context.snapshot() as connection:
        for check in (*checks.CHECKS, *Maintenance._checks):
            if check.name in ("missing payload", "unused payload", "wrong counters", "orphans"):
                assert checks.find(connection, check) == []


@pytest.mark.timeout(120 + 5 * ROUNDS)
def test_process_killed_during_appends_leaves_whole_messages(url: str, store: Store) -> None:
    for round in range(ROUNDS):
        acknowledged = killed(APPENDER, store, url, round)
        stored = whole_messages(store, f"k{round}")
        assert stored == list(range(len(stored)))
        assert stored[: len(acknowledged)] == acknowledged
        assert_consistent(store)
        store.append_message(f"k{round}", make(5))
        assert store.delete(f"k{round}")
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.timeout(120 + 5 * ROUNDS)
def test_process_killed_during_edits_leaves_whole_messages(url: str, store: Store) -> None:
    for round in range(ROUNDS):
        killed(EDITOR, store, url, round)
        for info in list(store.iter_sessions()):
            whole_messages(store, info.key)
        assert_consistent(store)
        for info in list(store.iter_sessions()):
            store.delete(info.key)
        with store._context.snapshot() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM lango_payload").scalar() == 0
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
