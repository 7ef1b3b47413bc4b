"""The number of calls of the package's own functions that a call makes."""

import sys
from collections.abc import Callable
from types import FrameType

from support.paths import PACKAGE

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # are calls up to Python 3.11 only


def count_own_calls(call: Callable[[], object]) -> int:
    """Return how many functions of the package a call runs, at least, after it was run before."""
    call()
    return min(_count(call) for _ in range(3))  # sometimes a call does more, such as a checkpoint


def _count(call: Callable[[], object]) -> int:
    count = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        code = frame.f_code
        is_own = code.co_filename.startswith(str(PACKAGE)) and code.co_name not in _COMPREHENSIONS
        count += is_own and event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count
