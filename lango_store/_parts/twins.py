"""Asynchronous twins: objects whose calls run in threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from lango_store._connections.threads import Threads
from lango_store._parts.groups import SessionPart

P = ParamSpec("P")


R = TypeVar("R")


S = TypeVar("S")


S_co = TypeVar("S_co", covariant=True)


Part = TypeVar("Part", bound=SessionPart)


class Twin(Protocol[S_co]):
    """An asynchronous object, with the synchronous object that does its work."""

    @property
    def _twin(self) -> S_co: ...

    @property
    def _threads(self) -> Threads: ...


def awaited(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[Twin[S], P], Coroutine[Any, Any, R]]:
    """Turn a method of a synchronous object into a coroutine function with the same arguments and result."""

    @functools.wraps(method)
    async def call(self: Twin[S], /, *arguments: P.args, **options: P.kwargs) -> R:
        twin = getattr(self._twin, method.__name__)  # by name, because the twin may be of a subclass
        return await self._threads.run(functools.partial(twin, *arguments, **options))

    return call


@contextmanager
def steps(twin: Part, name: str) -> Iterator[Part]:
    """Open one span for several calls of an object; yield a copy of it whose own calls have no spans."""
    with twin._context.telemetry.span(name, twin.key):
        yield getattr(twin, "_untraced", type(twin))(twin._context, twin.key)


def group(name: str, kind: Callable[[Threads, Any], R]) -> R:
    """Create a property that returns the asynchronous twin of a group of methods."""
    return cast(R, property(lambda part: kind(part._threads, getattr(part._twin, name))))


def attribute(name: str) -> Any:
    """Create an attribute that is read from and written to the synchronous twin."""
    return property(lambda turn: getattr(turn._twin, name), lambda turn, value: setattr(turn._twin, name, value))


class AsyncPart(Generic[S]):
    """An asynchronous object whose calls run in threads."""

    def __init__(self, threads: Threads, twin: S) -> None:
        self._twin = twin  # first, so that pickle refuses it with the advice of `Context`
        self._threads = threads

    def __repr__(self) -> str:
        return f"Async{self._twin!r}"

    key: str = attribute("key")
