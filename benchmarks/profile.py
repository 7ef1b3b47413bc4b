"""`python -m benchmarks.profile`: where the processor's time of an append goes, step by step, next to the floor's."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import payload
from benchmarks.floors import PostgresFloor, SqliteFloor
from benchmarks.turns import databases
from lango_store import Message, Store
from lango_store.dialect import dialect_of
from lango_store.operations import appends
from lango_store.operations.batches import Batch, batch

FLOORS: dict[str, type[SqliteFloor | PostgresFloor]] = {"SQLite": SqliteFloor, "PostgreSQL": PostgresFloor}
APPENDS = 100


class Steps:
    """An append taken apart: from the second on, each step does what the one before it does and one thing more."""

    def __init__(self, floor: SqliteFloor | PostgresFloor, store: Store) -> None:
        self._floor = floor
        self._store = store
        self._access = store._access
        self._given = payload.messages(APPENDS)
        self._messages = [Message.model_validate(each) for each in self._given]
        self._batches = [batch([message]) for message in self._messages]
        self._proxy = store.engine.raw_connection()
        self.connection, self.dialect = self._proxy, store.engine.dialect

    def all(self) -> dict[str, Callable[[], None]]:
        """Return the steps by what they do."""
        return {
            "the loop written by hand": self.by_hand,
            "ours: statement and transaction, connection and rows at hand": self.statement,
            "+ values checked and made rows": self.encoded,
            "+ connection from the pool and back": self.connection_alone,
            "+ Message made, and the verb": self.verb,
        }

    def get_execution_options(self) -> dict[str, Any]:
        """Stand in for a borrowed connection that nobody observes."""
        return {}

    def by_hand(self) -> None:
        """Append as the floor does."""
        for message in self._given:
            self._floor.append("floor", message)

    def statement(self) -> None:
        """Append rows on one connection."""
        for each in self._batches:
            self._append(each)

    def encoded(self) -> None:
        """Append messages on one connection."""
        for message in self._messages:
            self._append(batch([message]))

    def connection_alone(self) -> None:
        """Append messages, each on a connection of the pool."""
        for message in self._messages:
            new = batch([message])
            with self._access.single_write() as connection:
                appends.append(connection, self._access.moment(connection), "ours", new)

    def verb(self) -> None:
        """Append as anybody would."""
        for each in self._given:
            self._store.append_message("ours", Message.model_validate(each))

    def _append(self, new: Batch) -> None:
        dialect, driver = dialect_of(self._store.engine), self._proxy.dbapi_connection
        started = dialect.start(driver, writes=True)
        appends.append(self, self._access.moment(self), "ours", new)
        dialect.finish(driver, started, failed=False)


def main() -> None:
    """Run the steps in turns, and print the least that each took: what disturbs a processor only adds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    with databases(list(map(str.lower, FLOORS))) as urls:
        for name, url in urls.items():
            with Store(url) as store:
                for key in ("floor", "ours"):
                    store.open(key)
                steps = Steps(FLOORS[name](url), store).all()
                least = dict.fromkeys(steps, float("inf"))
                for number in range(options.rounds):
                    turn = number % len(steps)  # else SQLite's checkpoints would always meet the same one
                    for what in [*list(steps)[turn:], *list(steps)[:turn]]:
                        start = time.thread_time()
                        steps[what]()
                        least[what] = min(least[what], (time.thread_time() - start) / APPENDS * 1e6)
                print(
                    f"{name}, microseconds of this thread's processor time an append, least of {options.rounds} rounds:"
                )
                for what, taken in least.items():
                    print(f"  {taken:6.1f}  {what}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
