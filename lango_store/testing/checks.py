"""A check: a promise of the store, and a function that finds out whether a store keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from lango_store.store import Store
from lango_store.testing.awaiting import Awaiting
from lango_store.testing.clock import Clock

MakeStore = Callable[..., Any]
"""Makes a store on an empty database: called with options of `Store`, always with a `clock`, once for each check."""

MakeAsyncStore = Callable[..., Any]
"""The same for a store with the verbs of `AsyncStore`."""


@dataclass(frozen=True)
class Check:
    """A promise of the store, with a name such as `messages.an_id_is_stored_once`."""

    name: str
    promise: str
    """What a store promises, in a sentence."""

    _find_out: Callable[[Store, Clock], None]
    _options: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """What the check is about: the part of its name before the dot."""
        return self.name.partition(".")[0]

    def __str__(self) -> str:
        return self.name

    def run(self, make_store: MakeStore) -> None:
        """Make a store, check it, and close it; AssertionError, or the store's own error, if it breaks the promise."""
        clock = Clock()
        store = make_store(clock=clock, **self._options)
        try:
            self._find_out(store, clock)
        except Exception as error:
            error.add_note(self._note)
            raise
        finally:
            store.close()

    async def run_async(self, make_store: MakeAsyncStore) -> None:
        """Check a store with the verbs of `AsyncStore`, from a thread beside the running event loop."""
        clock = Clock()
        store = make_store(clock=clock, **self._options)
        try:
            facade = cast(Store, Awaiting(store, asyncio.get_running_loop()))
            await asyncio.to_thread(self._find_out, facade, clock)
        except Exception as error:
            error.add_note(self._note)
            raise
        finally:
            await store.close()

    @property
    def _note(self) -> str:
        return f"{self.name}: {self.promise}"


_all: Final[list[Check]] = []


def check(**options: Any) -> Callable[[Callable[[Store, Clock], None]], Callable[[Store, Clock], None]]:
    """Make a check of a function, whose docstring is the promise, of a store with these options."""

    def add(find_out: Callable[[Store, Clock], None]) -> Callable[[Store, Clock], None]:
        subject = find_out.__module__.rpartition(".")[2]
        promise = " ".join((find_out.__doc__ or "").split())
        _all.append(Check(f"{subject}.{find_out.__name__}", promise, find_out, options))
        return find_out

    return add


def checks(*only: str) -> list[Check]:
    """List the checks, or those with these names or subjects: `checks("values", "messages.an_id_is_stored_once")`."""
    known = {each.name for each in _all} | {each.subject for each in _all}
    if unknown := sorted(set(only) - known):
        raise ValueError(f"no check or subject is called {', '.join(map(repr, unknown))}: checks() lists them")
    return [each for each in _all if not only or {each.name, each.subject} & set(only)]


def run_store_checks(make_store: MakeStore, *only: str) -> list[str]:
    """Run all checks, or those with these names or subjects, and return the names of those that were run.

    `make_store(clock=…, …)` makes a store on an empty database, with the options of `Store` that it is called with; it
    is called once for each check. ExceptionGroup of every check that fails, each error with the promise as a note.
    """
    failed: list[Exception] = []
    chosen = checks(*only)
    for each in chosen:
        try:
            each.run(make_store)
        except Exception as error:
            failed.append(error)
    _raise(failed, chosen)
    return [each.name for each in chosen]


async def run_async_store_checks(make_store: MakeAsyncStore, *only: str) -> list[str]:
    """Run checks as `run_store_checks` does, of a store with the verbs of `AsyncStore`, on the running event loop."""
    failed: list[Exception] = []
    chosen = checks(*only)
    for each in chosen:
        try:
            await each.run_async(make_store)
        except Exception as error:
            failed.append(error)
    _raise(failed, chosen)
    return [each.name for each in chosen]


def _raise(failed: list[Exception], chosen: list[Check]) -> None:
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(chosen)} checks failed", failed)
