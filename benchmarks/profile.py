"""`python -m benchmarks.profile`: processor time of the measurements of `--peers`, step by step."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import payload
from benchmarks.strict import StrictPostgres, StrictSqlite, strict_floor
from benchmarks.turns import databases
from lango_store import Message, Store
from lango_store._dialect import dialect_of
from lango_store._operations.log import appends, messages
from lango_store._operations.log.appends import Batch
from lango_store._operations.session import sessions

Steps = dict[str, Callable[[], object]]
"""The steps of a measurement by name. Each step does the same as the previous one and one thing more."""

BY_HAND = "the strict floor"
POOLED = "+ a connection from the pool, and back"


class Connection:
    """A permanent connection for the operations of a store, without the pool and without an observer."""

    def __init__(self, store: Store) -> None:
        self.connection, self.dialect = store.engine.raw_connection(), store.engine.dialect
        self._driver = self.connection.dbapi_connection
        self._dialect = dialect_of(store.engine)

    def get_execution_options(self) -> dict[str, Any]:
        """Return no options: statements have no observer."""
        return {}

    def writing(self, write: Callable[[Any], list[Message]]) -> list[Message]:
        """Write in a transaction, as the store does."""
        started = self._dialect.start(self._driver, writes=True)
        written = write(self)
        self._dialect.finish(self._driver, started, failed=False)
        return written

    def close(self) -> None:
        """Return the connection to the pool."""
        self.connection.close()


class Works:
    """The measurements of `--peers` in steps, on sessions that the floor and our store have filled equally."""

    def __init__(self, floor: StrictSqlite | StrictPostgres, store: Store) -> None:
        self._floor = floor
        self._store = store
        self._context = store._context
        self._connection = Connection(store)
        self.close = self._connection.close
        for key, size in (("grown", 1_000), ("batches", 0), ("1000", 1_000), ("10000", 10_000)):
            floor.create(key)
            store.open(key)
            for start in range(0, size, 1_000):
                given = payload.texts(1_000, start)
                floor.append_many(key, given)
                store.conversation(key).append_messages(_values(given))

    def append(self) -> Steps:
        """Append one message at a time to a session of 1,000."""
        given = payload.texts(100)
        made = _values(given)
        ready = [Batch([each]) for each in made]
        return {
            BY_HAND: lambda: [self._floor.append("grown", each) for each in given],
            "the store's statements alone, without checks": lambda: [self._append("grown", each) for each in ready],
            "+ values checked and encoded": lambda: [self._append("grown", Batch([each])) for each in made],
            POOLED: lambda: [self._append_pooled("grown", [each]) for each in made],
            "+ `Message` created from dicts, and the method itself": lambda: [
                self._store.append_message("grown", Message.model_validate(each)) for each in given
            ],
        }

    def append_thousand(self) -> Steps:
        """Append 1,000 messages in one call."""
        given = payload.texts(1_000)
        made = _values(given)
        ready = Batch(made)
        return {
            BY_HAND: lambda: self._floor.append_many("batches", given),
            "the store's statements alone, without checks": lambda: self._append("batches", ready),
            "+ values checked and encoded": lambda: self._append("batches", Batch(made)),
            POOLED: lambda: self._append_pooled("batches", made),
            "+ `Message` created from dicts, and the method itself": lambda: self._store.conversation(
                "batches"
            ).append_messages(_values(given)),
        }

    def load(self, key: str) -> Steps:
        """Load a session."""
        return {
            BY_HAND: lambda: self._floor.load(key),
            "the store's statements alone, without checks": lambda: self._rows(key),
            "+ rows turned into `Message`": lambda: messages.load(
                self._connection, self._context.moment(self._connection), key
            ),
            POOLED + ", and the method itself": lambda: self._store.get(key),
        }

    def last_fifty(self, key: str) -> Steps:
        """Load the last 50 messages, twenty times."""
        tail, values = messages._last[False], {"key": key, "now": None, "limit": 50}
        return {
            BY_HAND: lambda: [self._floor.last(key, 50) for _ in range(20)],
            "the store's statements alone, without checks": lambda: [
                tail.run(self._connection, values) for _ in range(20)
            ],
            "+ rows turned into `Message`": lambda: [
                messages.read_last(self._connection, self._context.moment(self._connection), key, 50) for _ in range(20)
            ],
            POOLED + ", and the method itself": lambda: [
                self._store.conversation(key).messages(last=50) for _ in range(20)
            ],
        }

    def _append(self, key: str, new: Batch) -> list[Message]:
        moment = self._context.moment(self._connection)
        return self._connection.writing(lambda connection: appends.append(connection, moment, key, new))

    def _append_pooled(self, key: str, made: list[Message]) -> list[Message]:
        new = Batch(made)
        with self._context.single_write() as connection:
            return appends.append(connection, self._context.moment(connection), key, new)

    def _rows(self, key: str) -> list[Any]:
        moment = self._context.moment(self._connection)
        incarnation, info = sessions.info_with_incarnation(self._connection, moment, key)
        removed = info.last_seq - info.message_count - info.record_count
        return messages._window[False].run(
            self._connection, vars(info) | {"incarnation": incarnation, "removed": removed}
        )


def _values(given: Sequence[dict[str, Any]]) -> list[Message]:
    return [Message.model_validate(each) for each in given]


@dataclass(frozen=True)
class Line:
    """A line of the table: its title, its steps, the units of a step, and the number of runs."""

    title: str
    steps: Callable[[Works], Steps]
    units: int
    share: float = 1.0


LINES = (
    Line("an append", Works.append, 100),
    Line("a message of 1,000 appended in one call", Works.append_thousand, 1_000, 0.4),
    Line("a message of a load of 1,000", lambda works: works.load("1000"), 1_000),
    Line("a message of a load of 10,000", lambda works: works.load("10000"), 10_000, 0.2),
    Line("the last 50 of 10,000", lambda works: works.last_fifty("10000"), 20),
)


def least(steps: Steps, rounds: int) -> dict[str, float]:
    """Run steps in turns, and return the shortest time of each, because interruptions only add time."""
    found = dict.fromkeys(steps, float("inf"))
    for number in range(rounds):
        turn = number % len(steps)  # otherwise, SQLite's checkpoints would always fall into the same step
        for what in [*list(steps)[turn:], *list(steps)[:turn]]:
            start = time.thread_time()
            steps[what]()
            found[what] = min(found[what], time.thread_time() - start)
    return found


def main() -> None:
    """Run the lines, and print their steps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with databases(["sqlite", "postgresql"]) as urls:
        for name, url in urls.items():
            with Store(url) as store:
                works = Works(strict_floor(url), store)
                print(f"{name}: microseconds of this thread's processor time, the least of {options.rounds} rounds")
                for line in LINES:
                    print(f"\n  {line.title}")
                    found = least(line.steps(works), max(int(options.rounds * line.share), 3))
                    for what, taken in found.items():
                        print(f"  {taken / line.units * 1e6:8.1f}  {what}")
                works.close()
                print()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
