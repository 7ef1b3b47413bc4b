"""LangGraph's conformance kit for checkpointers, at its highest level, synchronous and asynchronous."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from lango_store import Store
from lango_store.integrations.langgraph import LangoSaver

NAMES = ("get_tuple", "list", "put", "put_writes", "delete_thread", "delete_for_runs", "copy_thread", "prune")


class Synchronous(LangoSaver):
    """Answers the kit, which calls only coroutines, with the synchronous methods."""

    async def alist(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        for each in self.list(*arguments, **options):
            yield each


def _coroutine(name: str) -> Any:
    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self, name)(*arguments, **options)

    return call


for _name in NAMES:
    if _name != "list":
        setattr(Synchronous, f"a{_name}", _coroutine(_name))


@pytest.mark.parametrize("kind", [LangoSaver, Synchronous])
def test_saver_has_highest_level_of_conformance_kit(store: Store, kind: type[LangoSaver]) -> None:
    @checkpointer_test(name=f"{kind.__name__} {store.engine.dialect.name}")
    async def saver() -> AsyncIterator[LangoSaver]:
        for info in [*store.iter_sessions()]:
            store.delete(info.key)
        yield kind(store)

    report = asyncio.run(validate(saver))
    assert {name: each.failures for name, each in report.results.items() if each.failures} == {}
    assert report.conformance_level() == "FULL"
    assert sum(each.tests_passed for each in report.results.values()) >= 81
