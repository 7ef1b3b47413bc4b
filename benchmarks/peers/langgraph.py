"""langgraph: a delta channel through the savers, with their own methods.

A delta channel stores what each step wrote, and not the whole list again. An append is `put_writes` at the head and a
new head by `put`; a load is `get_delta_channel_history`. A graph with `DeltaChannel` does the same and more: its
`update_state` reads the whole list for each append. No snapshot is written, and a batch is one value.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from benchmarks.peers.contender import own_file

CHANNEL = "messages"


class Saver:
    """Threads whose heads the caller knows, as a graph does while it runs."""

    def __init__(self, saver: Any, resources: ExitStack) -> None:
        self.saver = saver
        self._resources = resources
        self._heads: dict[str, Any] = {}

    def create(self, key: str) -> None:
        self._put(key, {"configurable": {"thread_id": key, "checkpoint_ns": ""}})

    def _put(self, key: str, parent: Any) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        self._heads[key] = self.saver.put(parent, empty_checkpoint(), {"source": "update"}, {})

    def append(self, key: str, message: dict[str, Any]) -> None:
        self.append_many(key, [message])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> None:
        head = self._heads[key]
        self.saver.put_writes(head, [(CHANNEL, messages)], str(uuid4()))
        self._put(key, head)

    def load(self, key: str) -> list[Any]:
        thread = {"configurable": {"thread_id": key, "checkpoint_ns": ""}}
        history = self.saver.get_delta_channel_history(config=thread, channels=[CHANNEL])
        return [message for _, _, written in history[CHANNEL]["writes"] for message in written]

    def last(self, key: str, n: int) -> list[Any]:
        return self.load(key)[-n:]

    def close(self) -> None:
        self._resources.close()


def sqlite_saver(url: str) -> Saver:
    """Make a `SqliteSaver`: WAL, and SQLite's own default of an fsync for each commit."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    resources = ExitStack()
    return Saver(resources.enter_context(SqliteSaver.from_conn_string(own_file(url, "langgraph"))), resources)


def postgres_saver(url: str) -> Saver:
    """Make a `PostgresSaver` with its tables."""
    from langgraph.checkpoint.postgres import PostgresSaver

    text = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    resources = ExitStack()
    saver = resources.enter_context(PostgresSaver.from_conn_string(text))
    saver.setup()
    return Saver(saver, resources)
