"""Reports of jobs for which calls wait outside."""

import random
import threading
import time
from collections import Counter
from typing import Final

from support.counting_tool import CountingTool

from lango_store import Store, SuspensionExpired, SuspensionNotFound

REPORTERS: Final = 3
PAUSE: Final = 0.05


class Jobs:
    """Reports the ends of the jobs that the workers have started, in several threads, each job in each thread.

    Of some jobs, the part `unreported`, nothing is reported. A job is reported again after pauses that grow.
    """

    def __init__(self, store: Store, tool: CountingTool, *, unreported: float = 0) -> None:
        self.store, self.tool, self.unreported = store, tool, unreported
        self.stored, self.repeated, self.late = Counter[str](), Counter[str](), Counter[str]()
        self.faults: list[BaseException] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=[number]) for number in range(REPORTERS)]
        for each in self._threads:
            each.start()

    def end(self) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()
        assert self.faults == []

    def _run(self, number: int) -> None:
        chosen, due, pauses = random.Random(number), dict[str, float](), Counter[str]()
        try:
            while not self._ended.wait(PAUSE):
                for key in [*self.tool.runs]:
                    if int(key[:4], 16) < self.unreported * 16**4:
                        continue
                    now = time.monotonic()
                    # The first reporter decides when, so that others report at the same moment.
                    moment = due.setdefault(key, now + random.Random(key).random() * 1.5)
                    if now >= moment:
                        self._report(key)
                        pauses[key] += 1
                        due[key] = now + chosen.random() * 2.5 * 2 ** pauses[key]
        except BaseException as error:
            self.faults.append(error)

    def _report(self, key: str) -> None:
        try:
            result = self.store.calls.finish({"job": key}, f"done {key}")
        except SuspensionExpired:
            outcome = self.late
        except SuspensionNotFound:  # the process that has started the job died, or has not stored the wait yet
            return
        else:
            assert result.content == f"done {key}"
            outcome = self.repeated if result.replayed else self.stored
        with self._lock:
            outcome[key] += 1
