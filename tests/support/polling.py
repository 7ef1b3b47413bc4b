"""Waiting for a condition by polling."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Return when the condition is true; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds} seconds"
        time.sleep(0.005)  # so that the processes that are waited for get the processor
