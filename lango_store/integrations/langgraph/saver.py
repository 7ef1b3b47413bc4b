"""The checkpointer: threads of LangGraph as sessions of a store.

The path of a checkpoint

1. `LangoSaver.put` takes the parent from memory, or loads it: the `seq` of its record, of the record of each value, and
   of each message, with a hash of the message.
2. A new record refers to the values that have not changed, and to the messages at the start of the list that the parent
   has too. The other messages are appended in front of it.
3. After the append, in the same transaction, `_has_parent` checks that the log still has the parent. If a removal or an
   edit has changed the session's counters, it reads the records to which the new one refers. If one is missing, the
   transaction is rolled back, and the checkpoint is stored with all its values and messages.
4. `get_tuple` reads the record, then the values and messages to which it refers. If a part is missing, it reads again
   in a snapshot, because the thread may just have been deleted.
"""

import functools
import itertools
import json
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Concatenate, Final, Literal, NamedTuple, ParamSpec, TypeVar

import sqlalchemy as sa
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from lango_store import (
    AsyncStore,
    Conflict,
    Conversation,
    DamagedMessage,
    Message,
    MessageRole,
    SessionExpired,
    SessionInfo,
    SessionNotFound,
    Store,
)
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import level_id, level_key, turn_metadata
from lango_store.integrations.langgraph import records
from lango_store.integrations.langgraph.messages import (
    hash_of,
    hidden,
    is_json,
    message_of,
    originals_of,
    shown,
    usage_of,
)
from lango_store.integrations.langgraph.records import CHANNEL, NAME, Stored, pack, unpack
from lango_store.rows import mapping

P = ParamSpec("P")
R = TypeVar("R")

_CACHED: Final = 128
_BATCH: Final = 64
_ALL: Final = 4_096
_NO_ROWS: Final = MappingProxyType[int, Message]({})
_NO_SESSION: Final = (SessionNotFound, SessionExpired)

Listed = list[tuple[tuple[int, ...], int]]
"""Hashes and `seq` of each message of a checkpoint; a message that was redacted or edited has several hashes."""


class _Known(NamedTuple):
    """The facts about a checkpoint that its successor needs."""

    id: str
    seq: int
    versions: ChannelVersions
    holders: Mapping[str, int]
    listed: Listed
    is_shown: bool
    """If the session shows the messages of this checkpoint."""
    info: SessionInfo | None
    """The session when the log had the checkpoint."""


_Loaded = tuple[Stored, CheckpointTuple, Sequence[int]]
"""A checkpoint as it is stored and as it is loaded, with the seqs of its messages."""

_NO_PARENT: Final = _Known("", 0, {}, {}, [], is_shown=False, info=None)


class _ParentRemoved(Exception):
    """The log no longer has the parent of a checkpoint."""


def _in_thread(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Turn a method of the saver into a coroutine function that runs the method in a thread of the store."""

    @functools.wraps(method)
    async def call(self: "LangoSaver", /, *arguments: P.args, **options: P.kwargs) -> R:
        return await self._awaited.run_sync(lambda _: method(self, *arguments, **options))

    return call


class LangoSaver(Adapter, BaseCheckpointSaver[int]):
    """A checkpointer that stores each thread of LangGraph as a session.

    The messages of the channel `messages` of the root graph are messages of the session. Checkpoints and pending writes
    are records in the log.

    Args:
        store: A `Store`, an `AsyncStore`, or the URL of a database.
        serde: The serializer of values other than messages. By default LangGraph's, which creates only objects of its
            list of safe types, and with `LANGGRAPH_STRICT_MSGPACK=true` of the types that the graph's state names. For
            more types, pass `JsonPlusSerializer(allowed_msgpack_modules=[…])`. Messages are stored as messages only
            with a `JsonPlusSerializer`; with another serializer, such as one that encrypts, they are values like any
            others.
        fence: Refuse a checkpoint whose parent is not the last checkpoint of its namespace, with `Conflict`. Nothing is
            written then. False by default.
        prefix: A prefix of the session keys.
        **options: Options of `Store`; only with a URL.

    Raises:
        TypeError: `options` are given together with a store.

    Example:
        ```python
        graph = builder.compile(checkpointer=LangoSaver(store, fence=True))
        graph.invoke({"messages": [("user", "Hello")]}, {"configurable": {"thread_id": "42"}})
        ```
    """

    def __init__(
        self,
        store: Store | AsyncStore | str | sa.URL,
        *,
        serde: SerializerProtocol | None = None,
        fence: bool = False,
        prefix: str = "",
        **options: Any,
    ) -> None:
        Adapter.__init__(self, store, **options)
        BaseCheckpointSaver.__init__(self, serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        self._fence = fence
        self._prefix = prefix
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()  # by session key and namespace

    # Write

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. See `BaseCheckpointSaver.put`. A checkpoint that is stored already is not changed.

        Raises:
            Conflict: With `fence=True`, the parent is not the last checkpoint; nothing was written.
            LeaseLost: The turn of `in_turn` has lost its lease; nothing was written.
        """
        parent = self._parent(config)
        put = functools.partial(self._put, config, checkpoint, metadata, new_versions)
        if parent.info is not None:
            with suppress(Conflict):  # messages were changed or removed since, or one of the errors that follow again
                return put(parent, parent, intact_since=parent.info)
        try:
            return put(parent, parent)
        except _ParentRemoved:  # the thread was deleted, cleared or cut, or has expired and begun again
            return put(_NO_PARENT, parent)

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        parent: _Known,
        before: _Known,
        intact_since: SessionInfo | None = None,
    ) -> RunnableConfig:
        """Store a checkpoint that refers to values and messages of its parent.

        `before` is the checkpoint before it, even if the log no longer has that, and it cannot be the parent. The
        session at `intact_since` had the parent; without it, the transaction checks that the session still has it.
        """
        thread, namespace, parent_id = _where(config)
        versions, values = checkpoint["channel_versions"], dict(checkpoint["channel_values"])
        refs = {
            channel: seq
            for channel, seq in parent.holders.items()
            if channel in values and channel not in new_versions and parent.versions.get(channel) == versions[channel]
        }
        values = {channel: value for channel, value in values.items() if channel not in refs}
        facts: Any = json.loads(json.dumps(get_checkpoint_metadata(config, metadata)))
        content = {"parent": parent_id, "metadata": facts if is_json(facts) else pack(self.serde, facts)}
        is_root = not namespace and isinstance(self.serde, JsonPlusSerializer)
        kept, added, hashes = parent.listed if CHANNEL in refs else [], [], []
        if is_root and _is_messages(values.get(CHANNEL)):
            added = values.pop(CHANNEL)
            hashes = [hash_of(each, self.serde) for each in added]
            kept = _common_start(parent.listed, hashes)
            added, hashes = added[len(kept) :], hashes[len(kept) :]
            content[CHANNEL] = {"steps": records.steps_of([seq for _, seq in kept]), "new": len(added)}
        content |= {
            "checkpoint": pack(self.serde, {**checkpoint, "channel_values": {}}),
            "refs": refs,
            "values": {channel: pack(self.serde, value) for channel, value in values.items()},
        }
        record = records.checkpoint_record(namespace, checkpoint["id"], **content)
        ids = (f"{checkpoint['id']}:{number}" for number in range(len(added)))  # a repeated call stores nothing twice
        messages = [*(message_of(each, id, self.serde) for each, id in zip(added, ids, strict=True)), record]
        paid = {hashed for each, _ in before.listed for hashed in each}  # a message that is stored again was paid once
        spent = [each for each, hashed in zip(added, hashes, strict=True) if hashed not in paid]
        usage, models = usage_of(spent)
        remaining = {seq for _, seq in kept}
        shown_before = self._shown(thread, before, parent, checkpoint["id"]) if is_root else remaining
        is_unchecked = parent is not _NO_PARENT and intact_since is None
        is_atomic = is_unchecked or self._fence or shown_before != remaining

        def write(store: Store) -> tuple[Sequence[Message], SessionInfo | None]:
            conversation = store.conversation(self._key(thread))
            if usage:
                about = turn_metadata(models)
                turn = conversation.save_turn(messages, usage, metadata=about, create=True, intact_since=intact_since)
                written: Sequence[Message] = turn.messages
            else:
                written = conversation.append_messages(messages, create=True, intact_since=intact_since)
            if self._fence:
                _check_last(conversation, namespace, parent_id, checkpoint["id"])
            # The append has locked the session's row, so nothing is removed between the check and the commit.
            if is_unchecked and not written[-1].replayed and not _has_parent(conversation, namespace, parent, refs):
                raise _ParentRemoved
            conversation.edits.update_all(_changed_roles(conversation, shown_before, remaining))
            return written, _info(conversation) if is_atomic else intact_since

        written, info = self.store.transact(write) if is_atomic else write(self.store)
        listed = [*kept, *(((hashed,), each.seq) for hashed, each in zip(hashes, written, strict=False))]
        holders = Stored(written[-1], []).holders
        known = _Known(checkpoint["id"], written[-1].seq, dict(versions), holders, listed, is_root, info)
        self._remember(self._key(thread), namespace, known)
        return _config(thread, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the pending writes of a task. See `BaseCheckpointSaver.put_writes`.

        Raises:
            LeaseLost: The turn of `in_turn` has lost its lease; nothing was written.
        """
        thread, namespace, checkpoint_id = _where(config)
        packed = [(channel, pack(self.serde, value)) for channel, value in writes]
        new = records.writes_record(namespace, checkpoint_id or "", task_id, task_path, packed)
        self._conversation(thread).append_message(new, create=True)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version that follows: a number, or a text in threads that another saver has stored."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.{random.random():016}"
        return super().get_next_version(current, channel)

    # Read

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint, by default the last one of the namespace. See `BaseCheckpointSaver.get_tuple`.

        Raises:
            DamagedMessage: A message cannot be read, or a value was deleted or redacted.
        """
        thread, namespace, checkpoint_id = _where(config)
        found = self._loaded(thread, namespace, checkpoint_id)
        if found is None:
            return None
        stored, loaded, seqs = found
        known = self._known.get((self._key(thread), namespace))
        is_known = known is not None and known.id == stored.id
        # A run in progress still has a message from before its redaction.
        earlier = {seq: hashes for hashes, seq in known.listed} if known and is_known else {}
        messages = loaded.checkpoint["channel_values"][CHANNEL] if seqs else []
        hashed = [(hash_of(each, self.serde), seq) for each, seq in zip(messages, seqs, strict=True)]
        listed = [((new, *(old for old in earlier.get(seq, ()) if old != new)), seq) for new, seq in hashed]
        is_shown, info = (known.is_shown, known.info) if known and is_known else (checkpoint_id is None, None)
        versions = loaded.checkpoint["channel_versions"]
        new = _Known(stored.id, stored.record.seq, versions, stored.holders, listed, is_shown, info)
        self._remember(self._key(thread), namespace, new)
        return loaded

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the last one of each thread first. See `BaseCheckpointSaver.list`.

        Raises:
            DamagedMessage: A message cannot be read, or a value was deleted or redacted.
        """
        where = config["configurable"] if config else {}
        namespace, checkpoint_id = where.get("checkpoint_ns"), get_checkpoint_id(config) if config else None
        end = get_checkpoint_id(before) if before else None
        found = (
            (thread, each)
            for thread in ([str(where["thread_id"])] if config else self._threads())
            for each in self._checkpoints(self.store, thread, namespace, checkpoint_id)
            if (end is None or each.id < end) and (filter or {}).items() <= self._metadata(each).items()
        )
        for thread, batch in _batches(itertools.islice(found, limit)):
            rows = _rows_of(self._conversation(thread), batch)
            for each in batch:
                if (loaded := self._loaded(thread, each.content["ns"], each.id, each, rows)) is not None:
                    yield loaded[1]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes of channels since their last value. See `BaseCheckpointSaver.get_delta_channel_history`.

        Raises:
            DamagedMessage: A value, or an earlier checkpoint with writes, was deleted or redacted.
        """
        thread, namespace, wanted = _where(config)
        history: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        target = next(self._checkpoints(self.store, thread, namespace, wanted), None)
        if target is None or (wanted := target.content["parent"]) is None:
            return history
        remaining = set(channels)
        steps = self._metadata(target).get("counters_since_delta_snapshot", {})
        count = 8 + 2 * max((steps_since for _, steps_since in steps.values()), default=0)
        for each in _stored(self._conversation(thread), records.prefix_of(namespace), count):
            if each.id != wanted:
                continue
            for task, channel, packed in reversed(each.pending()):
                if channel in remaining:
                    history[channel]["writes"].insert(0, (task, channel, unpack(self.serde, packed)))
            if seeds := remaining & each.holders.keys():
                values = self._load(self.store, thread, each)[1].checkpoint["channel_values"]
                for channel in seeds:
                    history[channel]["seed"] = values[channel]
                remaining -= seeds
            wanted = each.content["parent"]
            if not (wanted and remaining):
                return history
        if missing := remaining & steps.keys():
            raise _missing(self._key(thread), target, min(missing), f"checkpoint {wanted}")
        return history

    def _checkpoints(
        self, store: Store, thread: str, namespace: str | None, checkpoint_id: str | None
    ) -> Iterator[Stored]:
        """Yield the checkpoints of a thread, or one of them, the last one first."""
        prefix = records.PREFIX if namespace is None else records.prefix_of(namespace) + (checkpoint_id or "")
        conversation = store.conversation(self._key(thread))
        found: Iterable[Stored] = _stored(conversation, prefix, _ALL if namespace is None else 4)
        if namespace is None:
            found = sorted(found, key=lambda each: each.id, reverse=True)
        yield from (each for each in found if checkpoint_id is None or each.id == checkpoint_id)

    def _loaded(
        self,
        thread: str,
        namespace: str,
        checkpoint_id: str | None,
        found: Stored | None = None,
        rows: Mapping[int, Message] = _NO_ROWS,
    ) -> _Loaded | None:
        """Find and load a checkpoint. Parts of one that was found before may have been deleted since."""
        try:
            found = found or next(self._checkpoints(self.store, thread, namespace, checkpoint_id), None)
            return None if found is None else self._load(self.store, thread, found, rows, all_messages=True)
        except DamagedMessage:
            with self.store.snapshot() as view:
                found = next(self._checkpoints(view, thread, namespace, checkpoint_id), None)
                return None if found is None else self._load(view, thread, found)

    def _load(
        self,
        store: Store,
        thread: str,
        found: Stored,
        read: Mapping[int, Message] = _NO_ROWS,
        *,
        all_messages: bool = False,
    ) -> _Loaded:
        """Load a checkpoint, of which some rows may have been read.

        With `all_messages`, raise `DamagedMessage` for a message that was deleted by hand.
        """
        conversation, content, holders = store.conversation(self._key(thread)), found.content, found.holders
        rows = {**read, found.record.seq: found.record}
        rows |= _rows(conversation, set(holders.values()) - rows.keys())
        values: dict[str, Any] = {}
        listed: list[Message] = []
        for channel, seq in holders.items():
            row = rows.get(seq)
            if row is None or not records.has_value(row, channel):
                raise _missing(conversation.key, found, channel, f"record {seq}")
            if (packed := row.content["values"].get(channel)) is not None:
                values[channel] = unpack(self.serde, packed)
                continue
            seqs = records.seqs_of(row)
            rows |= _rows(conversation, set(seqs) - rows.keys())
            listed = [rows[seq] for seq in seqs if seq in rows]
            if all_messages and len(listed) < len(seqs):
                raise _missing(conversation.key, found, channel, "a message")
            values[channel] = originals_of(conversation.key, listed, self.serde)
        namespace, parent = content["ns"], content["parent"]
        checkpoint: Checkpoint = unpack(self.serde, content["checkpoint"])
        loaded = CheckpointTuple(
            config=_config(thread, namespace, found.id),
            checkpoint={**checkpoint, "channel_values": values},
            metadata=self._metadata(found),
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=[(task, channel, unpack(self.serde, packed)) for task, channel, packed in found.pending()],
        )
        return found, loaded, [each.seq for each in listed]

    def _metadata(self, found: Stored) -> CheckpointMetadata:
        """Return the metadata of a checkpoint."""
        metadata: CheckpointMetadata = found.content["metadata"]
        return metadata if isinstance(metadata, dict) else unpack(self.serde, metadata)

    # Delete and copy

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its session with all messages. See `BaseCheckpointSaver.delete_thread`."""
        self.store.delete(self._key(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; another thread with the new id is replaced. See `BaseCheckpointSaver.copy_thread`."""

        def copy(tx: Store) -> None:
            tx.delete(self._key(target_thread_id))
            tx.conversation(self._key(source_thread_id)).fork(self._key(target_thread_id))

        self.store.transact(copy)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads. See `BaseCheckpointSaver.delete_for_runs`."""
        runs = set(run_ids)
        for thread in self._threads():
            self._keep(thread, lambda found: [e for e in found if self._metadata(e).get("run_id") not in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the last checkpoint of each namespace, or the threads. See `BaseCheckpointSaver.prune`.

        With `DeltaChannel`, the checkpoints that the last one needs are kept.
        """
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._keep(thread, self._last_ones)

    def _keep(self, thread: str, choose: Callable[[Sequence[Stored]], Sequence[Stored]]) -> None:
        """Delete checkpoints, and the messages that no other checkpoint has."""

        def keep(tx: Store) -> None:
            conversation = tx.conversation(self._key(thread))
            kept = choose([*records.stored(conversation, records.PREFIX)])
            log = {each.seq: each for each in conversation.all_messages()}
            messages = {seq for each in log.values() if each.author == NAME for seq in records.seqs_of(each)}
            whole = {row.seq for each in kept for row in (each.record, *each.writes)}
            holders = {seq for each in kept for seq in each.holders.values()}
            whole |= {seq for holder in holders for seq in records.seqs_of(log.get(holder))}
            shortened: list[Message] = []
            unused: list[int] = []
            for seq, each in log.items():
                if seq in whole or not (each.author == NAME or NAME in each.extra or seq in messages):
                    continue
                if seq in holders:
                    values = {
                        name: mapping(each.content)[name]
                        for name in ("values", CHANNEL)
                        if name in mapping(each.content)
                    }
                    changes = {"id": f"{NAME}-values:{seq}", "content": values}
                    shortened.append(each.model_copy(update=changes))
                else:
                    unused.append(seq)
            conversation.edits.update_all(shortened)
            conversation.edits.delete_all(unused)

        with suppress(*_NO_SESSION):
            self.store.transact(keep)

    def _last_ones(self, found: Sequence[Stored]) -> Sequence[Stored]:
        """Return the last checkpoint of each namespace, and those since the last values of its delta channels."""
        kept: list[Stored] = []
        wanted: dict[str, str | None] = {}
        missing: dict[str, set[str]] = {}
        for each in found:  # the last one of each namespace first
            namespace = each.content["ns"]
            if wanted.get(namespace, each.id) == each.id:
                kept.append(each)
                delta = missing.setdefault(
                    namespace, set(self._metadata(each).get("counters_since_delta_snapshot", ()))
                )
                delta -= each.holders.keys()
                wanted[namespace] = each.content["parent"] if delta else None
        return kept

    # Asynchronous versions

    aget_tuple = _in_thread(get_tuple)
    aget_delta_channel_history = _in_thread(get_delta_channel_history)
    aput = _in_thread(put)
    aput_writes = _in_thread(put_writes)
    adelete_thread = _in_thread(delete_thread)
    adelete_for_runs = _in_thread(delete_for_runs)
    acopy_thread = _in_thread(copy_thread)
    aprune = _in_thread(prune)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints; see `list`."""
        found = self.list(config, **options)
        while (each := await self._awaited.run_sync(lambda _: next(found, None))) is not None:
            yield each

    # Helpers

    def _key(self, thread: str) -> str:
        return level_key(str(thread), self._prefix)

    def _conversation(self, thread: str) -> Conversation:
        return self.store.conversation(self._key(thread))

    def _threads(self) -> Iterator[str]:
        for info in self.store.iter_sessions(key_prefix=self._prefix):
            if (thread := level_id(info.key, self._prefix)) is not None:
                yield thread

    def _shown(self, thread: str, before: _Known, parent: _Known, id: str) -> Set[int]:
        """Return the seqs of the messages that the session shows: those of the parent, or of the last checkpoint."""
        listed = {seq for _, seq in before.listed}
        if parent.is_shown:
            return listed
        conversation = self._conversation(thread)
        rest = {} if before is parent else _rows(conversation, listed)
        cut = {seq for seq, row in rest.items() if NAME in row.extra}  # a cut can leave messages without a checkpoint
        last = next((each for each in _stored(conversation, records.prefix_of("")) if each.id != id), None)
        holders = {last.holders[CHANNEL]} if last and CHANNEL in last.holders else set()
        return cut.union(*map(records.seqs_of, _rows(conversation, holders).values()))

    def _remember(self, key: str, namespace: str, known: _Known) -> None:
        self._known[key, namespace] = known
        self._known.move_to_end((key, namespace))
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)

    def _parent(self, config: RunnableConfig) -> _Known:
        """Return a parent from memory, or load it if this saver did not load or store it last."""
        thread, namespace, parent_id = _where(config)
        known = self._known.get((self._key(thread), namespace))
        if parent_id and (known is None or known.id != parent_id):
            with suppress(DamagedMessage):
                self.get_tuple(config)
            known = self._known.get((self._key(thread), namespace))
        return known if known is not None and known.id == parent_id else _NO_PARENT


def _where(config: RunnableConfig) -> tuple[str, str, str | None]:
    fields = config["configurable"]
    return str(fields["thread_id"]), fields.get("checkpoint_ns") or "", get_checkpoint_id(config)


def _config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _is_messages(value: Any) -> bool:
    return bool(value) and isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


def _stored(conversation: Conversation, prefix: str, count: int = 4) -> Iterator[Stored]:
    """Yield the checkpoints of `records.stored`, or none without a session."""
    with suppress(*_NO_SESSION):
        yield from records.stored(conversation, prefix, count)


def _rows(
    conversation: Conversation, seqs: Set[int], payloads: Literal["load", "reference"] = "load"
) -> dict[int, Message]:
    """Return the rows of a log that have these seqs and still exist."""
    with suppress(*_NO_SESSION):
        if seqs:
            return {each.seq: each for each in conversation.all_messages(seqs=sorted(seqs), payloads=payloads)}
    return {}


def _batches(found: Iterator[tuple[str, Stored]]) -> Iterator[tuple[str, list[Stored]]]:
    """Yield checkpoints with their thread in batches, the first ones small: many callers take only the first."""
    size = 1
    while batch := [*itertools.islice(found, size)]:
        for thread, group in itertools.groupby(batch, key=lambda each: each[0]):
            yield thread, [each for _, each in group]
        size = min(4 * size, _BATCH)


def _rows_of(conversation: Conversation, batch: Sequence[Stored]) -> dict[int, Message]:
    """Read the values and messages of checkpoints with two statements; none if a row is damaged."""
    rows = {each.record.seq: each.record for each in batch}
    with suppress(DamagedMessage):
        rows |= _rows(conversation, {seq for each in batch for seq in each.holders.values()} - rows.keys())
        listing = {each.holders[CHANNEL] for each in batch if CHANNEL in each.holders}
        seqs = {seq for holder in listing for seq in records.seqs_of(rows.get(holder))}
        return rows | _rows(conversation, seqs - rows.keys())
    return {}


def _common_start(listed: Listed, hashes: Sequence[int]) -> Listed:
    """Return the longest start of a new list that is stored in this order; messages may have been removed from it."""
    stored = iter(listed)
    found = (next((pair for pair in stored if each in pair[0]), None) for each in hashes)
    return [pair for pair in itertools.takewhile(bool, found) if pair]


def _missing(key: str, found: Stored, channel: str, part: str) -> DamagedMessage:
    reason = (
        f"{part}, which has the value of {channel!r}, was deleted or redacted: run the thread from another checkpoint"
    )
    return DamagedMessage(key, found.record.seq, "content", reason)


def _info(conversation: Conversation) -> SessionInfo | None:
    """Return a session, or None if it has expired."""
    with suppress(*_NO_SESSION):
        return conversation.info()
    return None


def _check_last(conversation: Conversation, namespace: str, parent_id: str | None, id: str) -> None:
    """Raise `Conflict` unless a stored checkpoint follows its parent. The session's row must be locked."""
    last = [each.id for each in itertools.islice(_stored(conversation, records.prefix_of(namespace)), 2)]
    if last != [each for each in (id, parent_id) if each]:
        message = f"session {conversation.key!r} has a later checkpoint than {parent_id}: load the thread again"
        raise Conflict(conversation.key, expected=0, last_seq=conversation.info().last_seq, message=message)


def _has_parent(conversation: Conversation, namespace: str, parent: _Known, refs: Mapping[str, int]) -> bool:
    """Return True if the log still has a parent and the values to which its successor refers."""
    rows = _rows(conversation, {parent.seq, *refs.values()}, "reference")
    is_stored = parent.seq in rows and rows[parent.seq].id == records.prefix_of(namespace) + parent.id
    return is_stored and all(records.has_value(rows.get(seq), channel) for channel, seq in refs.items())


def _changed_roles(conversation: Conversation, before: Set[int], remaining: Set[int]) -> Sequence[Message]:
    """Return the messages that the session has to show or to hide, with their new roles."""
    return [
        shown(each) if each.seq in remaining else hidden(each)
        for each in _rows(conversation, before ^ remaining).values()
        if (each.role is MessageRole.RECORD) == (each.seq in remaining)
    ]
