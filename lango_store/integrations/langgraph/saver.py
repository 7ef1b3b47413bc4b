"""The checkpointer: threads of LangGraph as sessions of a store."""

import copy
import heapq
import itertools
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

import sqlalchemy as sa
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from lango_store import (
    AsyncRunningTurn,
    AsyncStore,
    Conflict,
    Conversation,
    Message,
    MessageRole,
    RunningTurn,
    SessionExpired,
    SessionNotFound,
    Store,
)
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import level_id, level_key, turn_metadata
from lango_store.integrations.langgraph import records
from lango_store.integrations.langgraph.messages import (
    NAME,
    digest_of,
    is_messages,
    message_of,
    original_of,
    pack,
    role_of,
    unpack,
    usage_of,
)
from lango_store.integrations.langgraph.records import Stored

R = TypeVar("R")

_CHANNEL: Final = "messages"
_CACHED: Final = 128
_NO_SESSION: Final = (SessionNotFound, SessionExpired)

Listed = list[tuple[bytes, int]]
"""Digest and `seq` of each message of a checkpoint."""


class _Known(NamedTuple):
    """What a later checkpoint needs of an earlier one."""

    id: str
    versions: ChannelVersions
    holders: Mapping[str, int]
    listed: Listed


class LangoSaver(Adapter, BaseCheckpointSaver[int]):
    """A checkpointer that stores each thread of LangGraph as a session.

    The messages of the channel `messages` of the root graph are messages of the session. Checkpoints and pending writes
    are records in the log.

    Args:
        store: A `Store`, an `AsyncStore`, or the URL of a database.
        serde: The serializer of values other than messages. By default LangGraph's, which creates only objects of its
            list of safe types and of the types that the graph's state names. Messages are stored as messages only with
            a `JsonPlusSerializer`; with another serializer, such as one that encrypts, they are values like any others.
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
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()

    def in_turn(self, turn: RunningTurn | AsyncRunningTurn) -> Self:
        """Return this saver for a turn in progress, with `fence=True`.

        The returned saver writes to the session of the turn only while the turn has its lease. Once the turn has lost
        the lease, it raises `LeaseLost`. Closing it has no effect.

        Args:
            turn: A turn of the thread's session, in its block.
        """
        if isinstance(turn, AsyncRunningTurn):
            saver = super().in_turn(turn)
        else:
            saver = copy.copy(self)
            saver._awaited, saver._closes = AsyncStore(self.store.in_turn(turn)), False
        saver._fence = True
        return saver

    # Write

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. See `BaseCheckpointSaver.put`.

        Raises:
            Conflict: With `fence=True`, the parent is not the last checkpoint; nothing was written.
            LeaseLost: The turn of `in_turn` has lost its lease; nothing was written.
        """
        thread, namespace, parent_id = _where(config)
        conversation = self._conversation(thread)
        parent = self._load_known(conversation, namespace, parent_id) if parent_id else None
        values = checkpoint["channel_values"]
        holders = {}
        if parent is not None:
            versions = checkpoint["channel_versions"]
            holders = {
                channel: seq
                for channel, seq in parent.holders.items()
                if channel in values and channel not in new_versions and parent.versions[channel] == versions[channel]
            }
        content: dict[str, Any] = {
            "parent": parent_id,
            "metadata": json.loads(json.dumps(get_checkpoint_metadata(config, metadata))),
            "checkpoint": pack(self.serde, {**checkpoint, "channel_values": {}}),
            "refs": holders,
        }
        listed: Listed = parent.listed if parent is not None and _CHANNEL in holders else []
        added: Sequence[BaseMessage] = []
        digests: Sequence[bytes] = []
        hidden: Sequence[int] = []
        shown: Sequence[int] = []
        inline = {channel: value for channel, value in values.items() if channel not in holders}
        if not namespace and self._shows_messages and inline.get(_CHANNEL) and is_messages(inline[_CHANNEL]):
            messages = inline.pop(_CHANNEL)
            digests = [digest_of(each, self.serde) for each in messages]
            listed = _common_start(parent.listed if parent else [], digests)
            added = messages[len(listed) :]
            content["messages"] = {"rows": records.as_groups(seq for _, seq in listed), "new": len(added)}
        if not namespace and self._shows_messages:
            visible, remaining = self._visible(conversation, parent), {seq for _, seq in listed}
            hidden, shown = sorted(visible - remaining), sorted(remaining - visible)
        content["values"] = {channel: pack(self.serde, value) for channel, value in inline.items()}
        new = [message_of(each, self.serde) for each in added]
        new.append(records.record("checkpoint", namespace, checkpoint["id"], **content))
        earlier = {digest for digest, _ in parent.listed} if parent else set()
        fresh = [each for each, digest in zip(added, digests[len(listed) :], strict=True) if digest not in earlier]
        usage, models = usage_of(fresh)  # a message that is stored again was paid once

        def write(store: Store) -> Message:
            conversation = store.conversation(self._key(thread))
            if usage:
                written = conversation.save_turn(new, usage, metadata=turn_metadata(models), create=True).messages[-1]
            else:
                written = conversation.append_messages(new, create=True)[-1]
            if written.replayed:
                written = self._replace(conversation, written, new[-1])
            for seqs, role in ((hidden, MessageRole.RECORD), (shown, None)):
                for message in conversation.find_messages(seqs) if seqs else ():
                    conversation.edits.update(message.seq, _with_role(message, role))
            if self._fence:
                self._check_head(conversation, namespace, parent_id, checkpoint["id"])
            return written

        needs_transaction = hidden or shown or self._fence
        last = self.store.transact(write) if needs_transaction else write(self.store)
        if content.get("messages"):
            start = last.seq - len(added)
            listed = [*listed, *((digest, start + number) for number, digest in enumerate(digests[len(listed) :]))]
        holders = holders | dict.fromkeys(content["values"], last.seq)
        if "messages" in content:
            holders[_CHANNEL] = last.seq
        self._remember(conversation, namespace, checkpoint, holders, listed, is_head=True)
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

    def _check_head(self, conversation: Conversation, namespace: str, parent_id: str | None, id: str) -> None:
        """Raise `Conflict` unless a new checkpoint follows its parent. The session's row must be locked."""
        found = records.stored(conversation, records.prefix_of(namespace), page=8)
        last = [each.id for each in itertools.islice(found, 2)]
        if last != [each for each in (id, parent_id) if each]:
            message = f"session {conversation.key!r} has a later checkpoint than {parent_id}: load the thread again"
            raise Conflict(conversation.key, expected=0, last_seq=conversation.info().last_seq, message=message)

    def _replace(self, conversation: Conversation, old: Message, new: Message) -> Message:
        """Replace a checkpoint that is stored under the same id."""
        if "messages" in new.content:  # the new messages are not stored before this record
            listed = new.content["messages"]
            last = conversation.info().last_seq
            rows = [listed["rows"], records.as_groups(range(last - listed["new"] + 1, last + 1))]
            new = new.model_copy(
                update={"content": new.content | {"messages": {"rows": " ".join(filter(None, rows)), "new": 0}}}
            )
        return conversation.edits.update(old.seq, new)

    # Read

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint, by default the last one of the namespace. See `BaseCheckpointSaver.get_tuple`."""
        thread, namespace, checkpoint_id = _where(config)
        conversation = self._conversation(thread)
        found = records.find(conversation, namespace, checkpoint_id)
        if found is None:
            return None
        head = self._cached(conversation, namespace, "")
        is_new = self._cached(conversation, namespace, found.id) is None
        is_head = checkpoint_id is None
        is_read = is_new or (is_head and (head is None or head.id != found.id))
        (loaded,) = self._tuples(conversation, thread, [found], is_read=is_read, is_head=is_head)
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
        found = self._listed(config, filter or {}, get_checkpoint_id(before) if before else None)
        for conversation, thread, each in itertools.islice(found, limit):
            yield from self._tuples(conversation, thread, [each])

    def _listed(
        self, config: RunnableConfig | None, filter: dict[str, Any], before: str | None
    ) -> Iterator[tuple[Conversation, str, Stored]]:
        wanted = get_checkpoint_id(config) if config else None
        namespace = config["configurable"].get("checkpoint_ns") if config else None
        for thread in [str(config["configurable"]["thread_id"])] if config else self._threads():
            conversation = self._conversation(thread)
            if namespace is None:
                found: Iterable[Stored] = heapq.nlargest(
                    10**9, records.stored(conversation, records.PREFIX), key=lambda each: each.id
                )
            else:
                prefix = records.prefix_of(namespace)
                end = None if before is None else prefix + before
                found = records.stored(conversation, prefix + (wanted or ""), before=end, page=64)
            for each in found:
                matches = all(each.content["metadata"].get(name) == value for name, value in filter.items())
                if matches and (wanted is None or each.id == wanted) and (before is None or each.id < before):
                    yield conversation, thread, each

    def _tuples(
        self,
        conversation: Conversation,
        thread: str,
        found: Sequence[Stored],
        *,
        is_read: bool = False,
        is_head: bool = False,
    ) -> Iterator[CheckpointTuple]:
        own = {each.record.seq: each.record for each in found}
        others = {seq for each in found for seq in each.content["refs"].values()} - set(own)
        read = own | {each.seq: each for each in (conversation.find_messages(sorted(others)) if others else ())}
        holders = {each.id: each.holders | _own_messages(each) for each in found}
        lists = {each.id: records.seqs_of(read[holders[each.id][_CHANNEL]]) for each in found if _lists(each, read)}
        wanted = {seq for seqs in lists.values() for seq in seqs}
        rows = {each.seq: each for each in (conversation.find_messages(sorted(wanted)) if wanted else ())}
        for each in found:
            content = each.content
            checkpoint: Checkpoint = unpack(self.serde, content["checkpoint"])
            values = {
                channel: unpack(self.serde, read[seq].content["values"][channel])
                for channel, seq in holders[each.id].items()
                if not (channel == _CHANNEL and each.id in lists)
            }
            listed: Listed = []
            if each.id in lists:
                seqs = [seq for seq in lists[each.id] if seq in rows]  # a message that was deleted by hand is missing
                values[_CHANNEL] = [original_of(rows[seq], self.serde) for seq in seqs]
                if is_read:
                    listed = [
                        (digest_of(value, self.serde), seq) for value, seq in zip(values[_CHANNEL], seqs, strict=True)
                    ]
            if is_read:
                self._remember(conversation, content["ns"], checkpoint, holders[each.id], listed, is_head=is_head)
            writes = [(task, channel, unpack(self.serde, packed)) for task, channel, packed in each.ordered_writes()]
            yield CheckpointTuple(
                config=_config(thread, content["ns"], each.id),
                checkpoint={**checkpoint, "channel_values": values},
                metadata=content["metadata"],
                parent_config=_config(thread, content["ns"], content["parent"]) if content["parent"] else None,
                pending_writes=writes,
            )

    # Delete and copy

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its session with all messages. See `BaseCheckpointSaver.delete_thread`."""
        self.store.delete(self._key(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; another thread with the new id is replaced. See `BaseCheckpointSaver.copy_thread`."""

        def copy_session(tx: Store) -> None:
            tx.delete(self._key(target_thread_id))
            tx.conversation(self._key(source_thread_id)).fork(self._key(target_thread_id))

        self.store.transact(copy_session)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads. See `BaseCheckpointSaver.delete_for_runs`."""
        runs = set(run_ids)
        for thread in self._threads():
            self._drop(thread, lambda found: (e for e in found if e.content["metadata"].get("run_id") in runs))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the last checkpoint of each namespace, or the threads. See `BaseCheckpointSaver.prune`.

        With `DeltaChannel`, the checkpoints that the last one needs are kept.
        """
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._drop(thread, _superseded)

    def _drop(self, thread: str, choose: Callable[[Sequence[Stored]], Iterable[Stored]]) -> None:
        """Delete checkpoints. A record with values that other checkpoints need loses everything else."""

        def drop(tx: Store) -> None:
            conversation = tx.conversation(self._key(thread))
            found = [*records.stored(conversation, records.PREFIX)]
            dropped = [*choose(found)]
            gone = {each.record.seq for each in dropped}
            needed = {seq for each in found if each.record.seq not in gone for seq in each.content["refs"].values()}
            for each in dropped:
                for write in each.writes:
                    conversation.edits.delete(write.seq)
                if each.record.seq in needed:
                    rest = {name: each.content[name] for name in ("values", "messages") if name in each.content}
                    id = f"{records.PREFIX[:-1]}-values:{each.record.seq}"
                    conversation.edits.update(
                        each.record.seq, each.record.model_copy(update={"id": id, "content": rest})
                    )
                else:
                    conversation.edits.delete(each.record.seq)

        self.store.transact(drop)

    # Asynchronous versions

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint; see `get_tuple`."""
        return await self._in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints; see `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await self._in_thread(next, found, None)) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; see `put`."""
        return await self._in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store pending writes; see `put_writes`."""
        await self._in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread; see `delete_thread`."""
        await self._in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs; see `delete_for_runs`."""
        await self._in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; see `copy_thread`."""
        await self._in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints; see `prune`."""
        await self._in_thread(lambda: self.prune(thread_ids, strategy=strategy))

    async def _in_thread(self, call: Callable[..., R], *arguments: Any) -> R:
        return await self._awaited.run_sync(lambda _: call(*arguments))

    # Helpers

    @property
    def _shows_messages(self) -> bool:
        return isinstance(self.serde, JsonPlusSerializer)

    def _key(self, thread: str) -> str:
        return level_key(str(thread), self._prefix)

    def _conversation(self, thread: str) -> Conversation:
        return self.store.conversation(self._key(thread))

    def _threads(self) -> Iterator[str]:
        for info in self.store.iter_sessions(key_prefix=self._prefix):
            if (thread := level_id(info.key, self._prefix)) is not None:
                yield thread

    def _cached(self, conversation: Conversation, namespace: str, checkpoint_id: str) -> _Known | None:
        return self._known.get((conversation.key, namespace, checkpoint_id))

    def _remember(
        self,
        conversation: Conversation,
        namespace: str,
        checkpoint: Checkpoint,
        holders: Mapping[str, int],
        listed: Listed,
        *,
        is_head: bool,
    ) -> None:
        known = _Known(checkpoint["id"], dict(checkpoint["channel_versions"]), holders, listed)
        for id in (known.id, "") if is_head else (known.id,):
            self._known[conversation.key, namespace, id] = known
            self._known.move_to_end((conversation.key, namespace, id))
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)

    def _load_known(self, conversation: Conversation, namespace: str, checkpoint_id: str) -> _Known | None:
        """Return a parent from memory. Another process, or a checkpoint of long ago, is read from the database."""
        known = self._cached(conversation, namespace, checkpoint_id)
        if known is None and (found := records.find(conversation, namespace, checkpoint_id)):
            [*self._tuples(conversation, conversation.key, [found], is_read=True)]
            known = self._cached(conversation, namespace, checkpoint_id)
        return known

    def _visible(self, conversation: Conversation, parent: _Known | None) -> set[int]:
        """Return the messages in the log that are not hidden: those of the last checkpoint."""
        head = self._cached(conversation, "", "")
        if head is not None and parent is not None and head.id == parent.id:
            return {seq for _, seq in head.listed}
        try:
            return {each.seq for each in conversation.messages() if NAME in each.extra}
        except _NO_SESSION:
            return set()


def _where(config: RunnableConfig) -> tuple[str, str, str | None]:
    fields = config["configurable"]
    return str(fields["thread_id"]), fields.get("checkpoint_ns") or "", get_checkpoint_id(config)


def _config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _common_start(listed: Listed, digests: Sequence[bytes]) -> Listed:
    """Return the longest start of a new list that is stored in this order; messages may have been removed from it."""
    start: Listed = []
    stored = iter(listed)
    for digest in digests:
        pair = next((pair for pair in stored if pair[0] == digest), None)
        if pair is None:
            break
        start.append(pair)
    return start


def _with_role(message: Message, role: MessageRole | None) -> Message:
    return message.model_copy(update={"role": role or role_of(message.extra[NAME]["type"])})


def _superseded(found: Sequence[Stored]) -> list[Stored]:
    """Return the checkpoints that are not the last one of their namespace, and that it does not need."""
    by_id = {(each.content["ns"], each.id): each for each in found}
    latest: dict[str, Stored] = {}
    for each in sorted(found, key=lambda each: each.id):
        latest[each.content["ns"]] = each
    kept: set[str | None] = set()
    for namespace, each in latest.items():
        cursor: Stored | None = each
        missing = set(each.content["metadata"].get("counters_since_delta_snapshot", ()))
        while cursor is not None:
            kept.add(cursor.record.id)
            missing -= set(cursor.holders)
            # A DeltaChannel replays the writes since its last snapshot.
            cursor = by_id.get((namespace, cursor.content["parent"])) if missing else None
    return [each for each in found if each.record.id not in kept]


def _own_messages(each: Stored) -> dict[str, int]:
    return {_CHANNEL: each.record.seq} if "messages" in each.content else {}


def _lists(each: Stored, read: Mapping[int, Message]) -> bool:
    seq = (each.holders | _own_messages(each)).get(_CHANNEL)
    return seq is not None and "messages" in read[seq].content
