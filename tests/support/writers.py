"""Concurrent writers during server failures."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from support.factories import message

from lango_store import DatabaseBusy, DatabaseUnavailable, Store

WRITERS: Final = 8


class Writers:
    """Eight threads that append to sessions until they are stopped, and record acknowledged messages."""

    def __init__(self, store: Store, *keys: str) -> None:
        self._store = store
        self._keys = keys
        self._stopped = threading.Event()
        self._more = [threading.Event() for _ in range(WRITERS)]
        self.acknowledged: list[str] = []
        self.errors: list[BaseException] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ThreadPoolExecutor(WRITERS) as pool:
            try:
                running = [pool.submit(self._write, number) for number in range(WRITERS)]
                yield
            finally:
                self._stopped.set()
        for each in running:
            each.result()

    def go_on(self) -> None:
        """Wait until each thread has written again."""
        for each in self._more:
            each.clear()
        for each in self._more:
            assert each.wait(120), "a writer stands still"

    def _write(self, writer: int) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            content = f"{writer}:{number}"
            try:
                self._store.append_message(self._keys[writer % len(self._keys)], message(content))
            except (DatabaseUnavailable, DatabaseBusy) as error:
                self.errors.append(error)
            else:
                self.acknowledged.append(content)
                self._more[writer].set()
