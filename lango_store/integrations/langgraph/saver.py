"""The checkpointer: threads of LangGraph as sessions of a store."""

import functools
import itertools
import json
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

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

from lango_store import AsyncStore, Conflict, Conversation, Message, MessageRole, SessionExpired, SessionNotFound, Store
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import level_id, level_key, turn_metadata
from lango_store.integrations.langgraph import records
from lango_store.integrations.langgraph.messages import hash_of, message_of, originals_of, usage_of
from lango_store.integrations.langgraph.records import CHANNEL, NAME, Stored, pack, unpack
from lango_store.interchange.langchain_messages import role_of

P = ParamSpec("P")
R = TypeVar("R")

_CACHED: Final = 128
_NO_SESSION: Final = (SessionNotFound, SessionExpired)

Listed = list[tuple[int, int]]
"""Hash and `seq` of each message of a checkpoint."""


class _Known(NamedTuple):
    """The facts about a checkpoint that its successor needs."""

    id: str
    versions: ChannelVersions
    holders: Mapping[str, int]
    listed: Listed
    is_shown: bool
    """If the session shows the messages of this checkpoint."""


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
        thread, namespace, parent_id = _where(config)
        conversation = self._conversation(thread)
        parent = self._parent(config)
        versions, values = checkpoint["channel_versions"], dict(checkpoint["channel_values"])
        refs = {
            channel: seq
            for channel, seq in parent.holders.items()
            if channel in values and channel not in new_versions and parent.versions.get(channel) == versions[channel]
        }
        values = {channel: value for channel, value in values.items() if channel not in refs}
        content = {"parent": parent_id, "metadata": json.loads(json.dumps(get_checkpoint_metadata(config, metadata)))}
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
        repeated = {hashed for hashed, _ in parent.listed}  # a message that is stored again was paid once
        usage, models = usage_of([each for each, hashed in zip(added, hashes, strict=True) if hashed not in repeated])
        remaining = {seq for _, seq in kept}
        shown = self._shown(conversation, parent) if is_root else remaining

        def write(store: Store) -> Sequence[Message]:
            conversation = store.conversation(self._key(thread))
            if usage:
                metadata = turn_metadata(models)
                turn = conversation.save_turn(messages, usage, metadata=metadata, create=True)
                written: Sequence[Message] = turn.messages
            else:
                written = conversation.append_messages(messages, create=True)
            if changed := (shown ^ remaining) - {each.seq for each in written}:
                for each in conversation.all_messages(seqs=sorted(changed)):
                    role = MessageRole.RECORD if each.seq in shown else role_of(each.extra[NAME]["type"])
                    conversation.edits.update(each.seq, each.model_copy(update={"role": role}))
            if self._fence:
                self._check_parent(conversation, namespace, parent_id, checkpoint["id"])
            return written

        written = self.store.transact(write) if self._fence or shown != remaining else write(self.store)
        listed = [*kept, *zip(hashes, (each.seq for each in written), strict=False)]
        holders = Stored(written[-1], []).holders
        self._remember(conversation, namespace, _Known(checkpoint["id"], dict(versions), holders, listed, is_root))
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
            DamagedMessage: A message cannot be read.
        """
        thread, namespace, checkpoint_id = _where(config)
        conversation = self._conversation(thread)
        found = next(self._checkpoints(thread, namespace, checkpoint_id), None)
        if found is None:
            return None
        loaded, seqs = self._load(thread, found)
        known = self._known.get((conversation.key, namespace))
        if known is None or known.id != found.id:
            messages = loaded.checkpoint["channel_values"][CHANNEL] if seqs else []
            listed = [(hash_of(each, self.serde), seq) for each, seq in zip(messages, seqs, strict=True)]
            versions = loaded.checkpoint["channel_versions"]
            known = _Known(found.id, versions, found.holders, listed, is_shown=checkpoint_id is None)
            self._remember(conversation, namespace, known)
        return loaded

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the last one of each thread first. See `BaseCheckpointSaver.list`."""
        where = config["configurable"] if config else {}
        namespace, checkpoint_id = where.get("checkpoint_ns"), get_checkpoint_id(config) if config else None
        end = get_checkpoint_id(before) if before else None
        found = (
            (thread, each)
            for thread in ([str(where["thread_id"])] if config else self._threads())
            for each in self._checkpoints(thread, namespace, checkpoint_id)
            if (end is None or each.id < end) and (filter or {}).items() <= each.content["metadata"].items()
        )
        for thread, each in itertools.islice(found, limit):
            yield self._load(thread, each)[0]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes of channels since their last value. See `BaseCheckpointSaver.get_delta_channel_history`."""
        thread, namespace, wanted = _where(config)
        history: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        remaining = set(channels)
        target = next(self._checkpoints(thread, namespace, wanted), None)
        if target is None or (wanted := target.content["parent"]) is None:
            return history
        steps = target.content["metadata"].get("counters_since_delta_snapshot", {}).values()
        count = 8 + 2 * max((steps_since for _, steps_since in steps), default=0)
        for each in records.stored(self._conversation(thread), records.prefix_of(namespace), count):
            if each.id != wanted:
                continue
            for task, channel, packed in reversed(each.pending()):
                if channel in remaining:
                    history[channel]["writes"].insert(0, (task, channel, unpack(self.serde, packed)))
            if seeds := remaining & each.holders.keys():
                values = self._load(thread, each)[0].checkpoint["channel_values"]
                for channel in seeds:
                    history[channel]["seed"] = values[channel]
                remaining -= seeds
            wanted = each.content["parent"]
            if not (wanted and remaining):
                break
        return history

    def _checkpoints(self, thread: str, namespace: str | None, checkpoint_id: str | None) -> Iterator[Stored]:
        """Yield the checkpoints of a thread, or one of them, the last one first."""
        prefix = records.PREFIX if namespace is None else records.prefix_of(namespace) + (checkpoint_id or "")
        found: Iterable[Stored] = records.stored(self._conversation(thread), prefix)
        with suppress(*_NO_SESSION):
            if namespace is None:
                found = sorted(found, key=lambda each: each.id, reverse=True)
            yield from (each for each in found if checkpoint_id is None or each.id == checkpoint_id)

    def _load(self, thread: str, found: Stored) -> tuple[CheckpointTuple, Sequence[int]]:
        """Load the values of a checkpoint, and return it with the seqs of its messages."""
        conversation, content, holders = self._conversation(thread), found.content, found.holders
        rows = {found.record.seq: found.record}
        if others := set(holders.values()) - rows.keys():
            rows |= {each.seq: each for each in conversation.all_messages(seqs=sorted(others))}
        values, listed = {}, []
        for channel, seq in holders.items():
            packed = rows[seq].content["values"].get(channel)
            if packed is None:  # a message that was deleted by hand is missing
                listed = conversation.all_messages(seqs=records.seqs_of(rows[seq]))
                values[channel] = originals_of(conversation.key, listed, self.serde)
            else:
                values[channel] = unpack(self.serde, packed)
        namespace, parent = content["ns"], content["parent"]
        checkpoint: Checkpoint = unpack(self.serde, content["checkpoint"])
        loaded = CheckpointTuple(
            config=_config(thread, namespace, found.id),
            checkpoint={**checkpoint, "channel_values": values},
            metadata=content["metadata"],
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=[(task, channel, unpack(self.serde, packed)) for task, channel, packed in found.pending()],
        )
        return loaded, [each.seq for each in listed]

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
            self._keep(thread, lambda found: [e for e in found if e.content["metadata"].get("run_id") not in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the last checkpoint of each namespace, or the threads. See `BaseCheckpointSaver.prune`.

        With `DeltaChannel`, the checkpoints that the last one needs are kept.
        """
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._keep(thread, _last_ones)

    def _keep(self, thread: str, choose: Callable[[Sequence[Stored]], Sequence[Stored]]) -> None:
        """Delete checkpoints, and the messages that no other checkpoint has."""

        def keep(tx: Store) -> None:
            conversation = tx.conversation(self._key(thread))
            kept = choose([*records.stored(conversation, records.PREFIX)])
            log = {each.seq: each for each in conversation.all_messages()}
            whole = {row.seq for each in kept for row in (each.record, *each.writes)}
            holders = {seq for each in kept for seq in each.holders.values()}
            whole |= {
                seq for holder in holders if CHANNEL in log[holder].content for seq in records.seqs_of(log[holder])
            }
            for seq, each in log.items():
                if seq in whole or not (each.author == NAME or NAME in each.extra):
                    continue
                if seq in holders:
                    values = {name: each.content[name] for name in ("values", CHANNEL) if name in each.content}
                    changes = {"id": f"{NAME}-values:{seq}", "content": values}
                    conversation.edits.update(seq, each.model_copy(update=changes))
                else:
                    conversation.edits.delete(seq)

        with suppress(*_NO_SESSION):
            self.store.transact(keep)

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

    def _remember(self, conversation: Conversation, namespace: str, known: _Known) -> None:
        self._known[conversation.key, namespace] = known
        self._known.move_to_end((conversation.key, namespace))
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)

    def _parent(self, config: RunnableConfig) -> _Known:
        """Return a parent from memory, or load it if this saver did not load or store it last."""
        thread, namespace, parent_id = _where(config)
        known = self._known.get((self._key(thread), namespace))
        if parent_id and (known is None or known.id != parent_id):
            self.get_tuple(config)
            known = self._known.get((self._key(thread), namespace))
        is_parent = known is not None and known.id == parent_id
        return known if known and is_parent else _Known("", {}, {}, [], is_shown=False)

    def _shown(self, conversation: Conversation, parent: _Known) -> set[int]:
        """Return the seqs of the graph's messages that the session shows."""
        if parent.is_shown:
            return {seq for _, seq in parent.listed}
        try:
            return {each.seq for each in conversation.messages() if NAME in each.extra}
        except _NO_SESSION:
            return set()

    def _check_parent(self, conversation: Conversation, namespace: str, parent_id: str | None, id: str) -> None:
        """Raise `Conflict` unless a new checkpoint follows its parent. The session's row must be locked."""
        last = [each.id for each in itertools.islice(records.stored(conversation, records.prefix_of(namespace)), 2)]
        if last != [each for each in (id, parent_id) if each]:
            message = f"session {conversation.key!r} has a later checkpoint than {parent_id}: load the thread again"
            raise Conflict(conversation.key, expected=0, last_seq=conversation.info().last_seq, message=message)


def _where(config: RunnableConfig) -> tuple[str, str, str | None]:
    fields = config["configurable"]
    return str(fields["thread_id"]), fields.get("checkpoint_ns") or "", get_checkpoint_id(config)


def _config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _is_messages(value: Any) -> bool:
    return bool(value) and isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


def _common_start(listed: Listed, hashes: Sequence[int]) -> Listed:
    """Return the longest start of a new list that is stored in this order; messages may have been removed from it."""
    stored = iter(listed)
    found = (next((pair for pair in stored if pair[0] == each), None) for each in hashes)
    return [pair for pair in itertools.takewhile(bool, found) if pair]


def _last_ones(found: Sequence[Stored]) -> list[Stored]:
    """Return the last checkpoint of each namespace, and those since the last values of its delta channels."""
    kept: list[Stored] = []
    wanted: dict[str, str | None] = {}
    missing: dict[str, set[str]] = {}
    for each in found:  # the last one of each namespace first
        namespace = each.content["ns"]
        if wanted.get(namespace, each.id) == each.id:
            kept.append(each)
            delta = missing.setdefault(
                namespace, set(each.content["metadata"].get("counters_since_delta_snapshot", ()))
            )
            delta -= each.holders.keys()
            wanted[namespace] = each.content["parent"] if delta else None
    return kept
