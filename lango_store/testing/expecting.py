"""What a check expects, and says when it finds something else; unlike `assert`, under `python -O` too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Calls = dict[str, Callable[[], object]]
"""Calls by what they are called in a report."""


def same(found: Any, expected: Any, what: str) -> None:
    """Raise AssertionError unless two things are equal."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


def holds(fact: object, what: str) -> None:
    """Raise AssertionError unless a fact is true."""
    if not fact:
        raise AssertionError(what)


@contextmanager
def refused(error: type[Exception], what: str) -> Iterator[None]:
    """Raise AssertionError unless the block raises an error of this kind."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{what}: expected {error.__name__}, nothing was raised")


def contents(found: Iterable[Any]) -> list[Any]:
    """Return what messages say."""
    return [message.content for message in found]


def seqs(found: Iterable[Any]) -> list[int]:
    """Return the places of messages."""
    return [message.seq for message in found]
