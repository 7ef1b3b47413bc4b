"""Threads in the databases of LangGraph's own savers, which an adoption stores with `LangoSaver`."""

import itertools
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from lango_store import (
    Conflict,
    DatabaseUnavailable,
    InvalidValue,
    LangoStoreError,
    SessionExpired,
    SessionNotFound,
    Store,
)
from lango_store.errors import quoted
from lango_store.integrations.fields import level_key
from lango_store.integrations.langgraph import records
from lango_store.integrations.langgraph.saver import LangoSaver
from lango_store.interchange.adoption.source import legible, reason_of
from lango_store.interchange.fidelity import read_json
from lango_store.rows import mapping

_BATCH: Final = 20
_LEVELS: Final = 199  # of metadata, which is one level deeper in its record
_KINDS: Final = {"v": int, "ts": str, "id": str} | dict.fromkeys(
    ("channel_values", "channel_versions", "versions_seen"), dict
)
"""The types of the parts of a checkpoint."""
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
    prefix: str
    saver: BaseCheckpointSaver[Any]
    ids: Sequence[tuple[str, str]]
    paths: Mapping[str, str | None]

    @property
    def key(self) -> str:
        """The key of the session."""
        return level_key(self.id, self.prefix)

    def target(self, store: Store) -> LangoSaver:
        """Return a saver that writes to the store."""
        return LangoSaver(store, serde=_serde, prefix=self.prefix)

    def load(self, ids: Iterable[tuple[str, str]], skipped: list[str]) -> Iterator[CheckpointTuple]:
        """Load checkpoints. One that cannot be read is added to `skipped`."""
        for namespace, id in ids:
            where = {"thread_id": self.id, "checkpoint_ns": namespace, "checkpoint_id": id}
            try:
                loaded = _checked(self.saver.get_tuple({"configurable": where}))
            except sqlite3.Error:
                raise
            except Exception as error:  # a damaged value can make the parsers raise anything
                if type(error).__module__.partition(".")[0] == "psycopg":
                    raise DatabaseUnavailable(f"the source cannot be read: {error}") from error
                skipped.append(_left_out(id, "read", error))
            else:
                yield loaded


def _left_out(id: object, verb: str, error: Exception) -> str:
    return f"table checkpoints, checkpoint {legible(id)} cannot be {verb} ({reason_of(error)}): left out"


def _checked(loaded: CheckpointTuple | None) -> CheckpointTuple:
    """Return a checkpoint unchanged. Raises ValueError if its parts have wrong types."""
    if loaded is None or not isinstance(loaded.config["configurable"]["checkpoint_ns"], str):
        raise ValueError("its ids are not text")
    checkpoint, writes = loaded.checkpoint, loaded.pending_writes or []
    if not isinstance(checkpoint, dict) or not isinstance(loaded.metadata, dict):
        raise ValueError("the checkpoint or its metadata is not an object")
    read_json(json.dumps(loaded.metadata), levels=_LEVELS, strict=False)
    wrong = [name for name, kinds in _KINDS.items() if not isinstance(checkpoint.get(name), kinds)]
    if wrong or checkpoint["id"] != loaded.config["configurable"]["checkpoint_id"]:
        raise ValueError(f"wrong values: {', '.join(wrong or ['id'])}")
    if loaded.parent_config and not isinstance(loaded.parent_config["configurable"]["checkpoint_id"], str):
        raise ValueError("the id of its parent is not text")
    if not all(isinstance(task, str) and isinstance(channel, str) for task, channel, _ in writes):
        raise ValueError("the table of writes has a wrong task or channel")
    return loaded


def open_saver(connection: Any, *, has_paths: bool) -> BaseCheckpointSaver[Any]:
    """Open LangGraph's saver on a read-only connection."""
    try:
        if isinstance(connection, sqlite3.Connection):
            from langgraph.checkpoint.sqlite import SqliteSaver

            saver = SqliteSaver(connection, serde=_serde)
            saver.is_setup, saver._has_task_path = True, has_paths
            return saver
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.types.json import set_json_loads

        set_json_loads(json.loads, connection)
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
        contents = (
            mapping(each.record.content) for each in records.stored(store.conversation(thread.key), records.PREFIX)
        )
        stored = {(each["ns"], each["id"]) for each in contents if each}  # without those that were redacted
        adopted = [position for position, id in enumerate(thread.ids, 1) if id in stored]
        if not adopted:
            raise _conflict(thread, "exists, and has no checkpoint of this source", "adopt with another prefix")
    except SessionExpired:
        raise
    except SessionNotFound:
        stored, adopted = set(), [0]
    old, new = thread.ids[: adopted[-1]], thread.ids[adopted[-1] :]
    has_grown = any(id > old[-1][1] for _, id in stored.difference(old))
    if new and has_grown:
        fact = "has other new checkpoints in the store than in the source"
        raise _conflict(thread, fact, "delete it in the store to adopt it again, or adopt with another prefix")
    deque(thread.load((id for id in old if id not in stored), skipped), maxlen=0)  # reports those that were left out
    grown = [] if has_grown else list(dict(old).items())  # the last checkpoint of each namespace
    known = [id for id in grown if id in stored]
    writes = sum(_adopt_writes(thread, store, each, skipped, dry_run=dry_run) for each in thread.load(known, skipped))
    count = 0
    for start in range(0, len(new), _BATCH):
        batch = [*thread.load(new[start : start + _BATCH], skipped)]
        count += len(batch) if dry_run else _put(thread, store, batch, skipped)
        on_rows(len(batch))
    if not stored:
        return "imported" if count else "failed", count
    return "continued" if count or writes else "already there", count


def _conflict(thread: Thread, fact: str, remedy: str) -> Conflict:
    message = f"session {quoted(thread.key)} {fact}: it was not changed, {remedy}"
    return Conflict(thread.key, expected=0, last_seq=0, message=message)


def _put(thread: Thread, store: Store, batch: Sequence[CheckpointTuple], skipped: list[str]) -> int:
    """Store checkpoints in one transaction, or each in its own if one cannot be stored. Return their number."""

    def write(tx: Store) -> None:
        saver = thread.target(tx)
        for each in batch:
            where = {"thread_id": thread.id, "checkpoint_ns": each.config["configurable"]["checkpoint_ns"]}
            saver.put(each.parent_config or {"configurable": where}, each.checkpoint, each.metadata, {})
            _put_writes(saver, thread, each, each.pending_writes or [])

    try:
        if batch:
            store.transact(write)
        return len(batch)
    except Exception as error:  # the saver can raise anything for damaged values
        if isinstance(error, LangoStoreError) and not isinstance(error, InvalidValue):
            raise
        if len(batch) > 1:
            return sum(_put(thread, store, [each], skipped) for each in batch)
        skipped.append(_left_out(batch[0].checkpoint["id"], "stored", error))
        return 0


def _put_writes(
    saver: LangoSaver, thread: Thread, checkpoint: CheckpointTuple, writes: Sequence[tuple[str, str, Any]]
) -> None:
    for task, group in itertools.groupby(writes, lambda write: write[0]):
        named = [(channel, value) for _, channel, value in group]
        saver.put_writes(checkpoint.config, named, task, thread.paths.get(task) or "")


def _adopt_writes(
    thread: Thread, store: Store, checkpoint: CheckpointTuple, skipped: list[str], *, dry_run: bool
) -> int:
    """Store the pending writes that a checkpoint got after it was adopted, and return their number."""

    def write(tx: Store) -> int:
        saver = thread.target(tx)
        stored = saver.get_tuple(checkpoint.config)
        known = [_packed(each) for each in (stored and stored.pending_writes) or []]
        new = [each for each in checkpoint.pending_writes or [] if _packed(each) not in known]
        if not dry_run:
            _put_writes(saver, thread, checkpoint, new)
        return len(new)

    try:
        return store.transact(write)
    except InvalidValue as error:
        skipped.append(_left_out(checkpoint.checkpoint["id"], "given its new writes", error))
        return 0


def _packed(write: tuple[str, str, Any]) -> tuple[Any, ...]:
    return (*write[:2], *_serde.dumps_typed(write[2]))
