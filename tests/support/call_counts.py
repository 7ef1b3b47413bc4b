"""The number of functions of the package and of libraries that a call runs."""

import inspect
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType

from support.paths import PACKAGE

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # are calls up to Python 3.11 only
_CHECKPOINTS = "Checkpoints."  # methods that run on releases of SQLite with the WAL-reset bug only

_LIBRARIES = ("/sqlalchemy/", "/psycopg/", "/pydantic/", "/sqlmodel/")


def count_calls(call: Callable[[], object]) -> tuple[int, int]:
    """Return how many functions of the package and of libraries a call runs, at least, after it was run before."""
    call()
    return min(_count(call) for _ in range(3))  # sometimes a call does more, such as a checkpoint


def count_moves(call: Callable[[], object]) -> int:
    """Return how often a call of the package goes on in another package, at least, after it was run before.

    Each room and each part of `_operations` is a package of its own.
    """
    call()
    return min(_moves(call) for _ in range(3))


def _moves(call: Callable[[], object]) -> int:
    visited: list[tuple[str, ...]] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in _COMPREHENSIONS and code.co_filename.startswith(str(PACKAGE)):
            parts = Path(code.co_filename).relative_to(PACKAGE).parts
            visited.append(parts[:2] if parts[0] in ("_operations", "_rooms") else parts[:1])

    _profiled(on_event, call)
    return sum(before != after for before, after in pairwise(visited))


def _profiled(on_event: Callable[[FrameType, str, object], None], call: Callable[[], object]) -> None:
    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(before)


def _count(call: Callable[[], object]) -> tuple[int, int]:
    own = library = 0
    generators: set[FrameType] = set()

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal own, library
        code = frame.f_code
        if event == "call" and code.co_name not in _COMPREHENSIONS and frame not in generators:
            # psycopg resumes its generators as often as it has to wait for the server.
            if "/psycopg/" in code.co_filename and code.co_flags & inspect.CO_GENERATOR:
                generators.add(frame)
            own += code.co_filename.startswith(str(PACKAGE)) and not code.co_qualname.startswith(_CHECKPOINTS)
            library += any(each in code.co_filename for each in _LIBRARIES)

    _profiled(on_event, call)
    return own, library
