"""Threads in the databases of LangGraph's own savers, which an adoption stores with `LangoSaver`."""

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from lango_store import Conflict, SessionNotFound, Store
from lango_store.integrations.langgraph import records
from lango_store.integrations.langgraph.saver import LangoSaver

_BATCH: Final = 20
_SAFE: Final = JsonPlusSerializer(allowed_msgpack_modules=None)


def _as_stored(code: int, data: bytes) -> Any:
    """Return an object of LangGraph's list of safe types; another one stays as it is serialized, and is not created."""
    raw = ormsgpack.Ext(code, data)
    packed = _SAFE.dumps_typed(raw)
    try:
        value = _SAFE.loads_typed(packed)
        return value if _SAFE.dumps_typed(value) == packed else raw
    except Exception:  # any, since an object is created
        return raw


_serde: Final = JsonPlusSerializer(allowed_msgpack_modules=None, __unpack_ext_hook__=_as_stored)


class Thread(NamedTuple):
    """A thread in a source.

    `ids` are namespace and id of each checkpoint, the oldest first; `paths` are the paths of the tasks with writes.
    """

    id: str
    key: str
    saver: BaseCheckpointSaver[Any]
    ids: Sequence[tuple[str, str]]
    paths: Mapping[str, str]

    def load(self, ids: Iterable[tuple[str, str]], skipped: list[str]) -> Iterator[CheckpointTuple]:
        """Load checkpoints. One that cannot be read is added to `skipped`."""
        for namespace, id in ids:
            where = {"thread_id": self.id, "checkpoint_ns": namespace, "checkpoint_id": id}
            try:
                loaded = self.saver.get_tuple({"configurable": where})
                assert loaded is not None
                yield loaded
            except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
                skipped.append(f"checkpoint {id} cannot be read ({error}): left out")


def open_saver(connection: Any, *, has_paths: bool) -> BaseCheckpointSaver[Any]:
    """Open LangGraph's saver on a read-only connection."""
    try:
        if isinstance(connection, sqlite3.Connection):
            from langgraph.checkpoint.sqlite import SqliteSaver

            saver = SqliteSaver(connection, serde=_serde)
            saver.is_setup, saver._has_task_path = True, has_paths
            return saver
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver(connection, serde=_serde)
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed: install langgraph-checkpoint-sqlite or -postgres") from error


def adopt(
    thread: Thread, store: Store, *, dry_run: bool, on_rows: Callable[[int], None], skipped: list[str]
) -> tuple[Literal["imported", "continued", "already there", "failed"], int]:
    """Store the checkpoints and pending writes that are new. Return the state, and the number of checkpoints.

    Raises `Conflict` if the session was not adopted, or has changed in the store and in the source.
    """
    try:
        stored = {
            (each.content["ns"], each.id) for each in records.stored(store.conversation(thread.key), records.PREFIX)
        }
        adopted = [position for position, id in enumerate(thread.ids, 1) if id in stored]
        if not adopted:
            raise _conflict(thread, "exists, and was not adopted from this source")
    except SessionNotFound:
        stored, adopted = set(), [0]
    new, has_grown = thread.ids[adopted[-1] :], not stored <= set(thread.ids)
    if new and has_grown:
        raise _conflict(thread, "has changed in the store and in the source")
    grown = [] if has_grown else list(dict(thread.ids[: adopted[-1]]).items())  # the last checkpoint of each namespace
    writes = sum(_adopt_writes(thread, store, each, dry_run=dry_run) for each in thread.load(grown, skipped))
    count = 0
    for start in range(0, len(new), _BATCH):
        batch = [*thread.load(new[start : start + _BATCH], skipped)]
        count += len(batch)
        if batch and not dry_run:
            store.transact(partial(_put, thread=thread, batch=batch))
        on_rows(len(batch))
    if not stored:
        return "imported" if count else "failed", count
    return "continued" if count or writes else "already there", count


def _conflict(thread: Thread, fact: str) -> Conflict:
    message = f"session {thread.key!r} {fact}: it was not changed"
    return Conflict(thread.key, expected=0, last_seq=0, message=message)


def _put(tx: Store, thread: Thread, batch: Sequence[CheckpointTuple]) -> None:
    saver = LangoSaver(tx, serde=_serde)
    for each in batch:
        where = {"thread_id": thread.id, "checkpoint_ns": each.config["configurable"]["checkpoint_ns"]}
        saver.put(each.parent_config or {"configurable": where}, each.checkpoint, each.metadata, {})
        _put_writes(saver, thread, each, each.pending_writes or [])


def _put_writes(
    saver: LangoSaver, thread: Thread, checkpoint: CheckpointTuple, writes: Sequence[tuple[str, str, Any]]
) -> None:
    for task, group in itertools.groupby(writes, lambda write: write[0]):
        named = [(channel, value) for _, channel, value in group]
        saver.put_writes(checkpoint.config, named, task, thread.paths.get(task, ""))


def _adopt_writes(thread: Thread, store: Store, checkpoint: CheckpointTuple, *, dry_run: bool) -> int:
    """Store the pending writes that a checkpoint got after it was adopted, and return their number."""

    def write(tx: Store) -> int:
        saver = LangoSaver(tx, serde=_serde)
        stored = saver.get_tuple(checkpoint.config)
        known = [_packed(each) for each in (stored and stored.pending_writes) or []]
        new = [each for each in checkpoint.pending_writes or [] if _packed(each) not in known]
        if not dry_run:
            _put_writes(saver, thread, checkpoint, new)
        return len(new)

    return store.transact(write)


def _packed(write: tuple[str, str, Any]) -> tuple[Any, ...]:
    return (*write[:2], *_serde.dumps_typed(write[2]))
