"""Sessions of nanobot in a `Store`: `SessionManager(workspace, store=LangoSessionStore(store))`.

nanobot keeps sessions in memory and saves each as a whole. The adapter remembers the state that was last loaded or
saved, so that a save writes only the difference, and detects commits of other writers.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from lango_store import Conflict, DamagedMessage, Message, MessageRole, SessionExists, SessionNotFound, Store
from lango_store import SessionInfo as StoredInfo
from lango_store.errors import needs_extra
from lango_store.integrations.adapter import create_session, retry_conflicts
from lango_store.interchange.moments import moment
from lango_store.interchange.nanobot_lines import (
    NAME,
    file_name,
    lines_from_message,
    message_from_line,
    metadata_out,
    title_of,
)
from lango_store.rows import mapping

with needs_extra("nanobot"):
    from nanobot.providers.base import ProviderConversationState
    from nanobot.session.manager import (
        Session,
        SessionInfo,
        SessionMetadataPayload,
        SessionPayload,
        _message_preview_text,  # for previews equal to nanobot's own; the extra pins the version
        _metadata_title,
    )

Line = dict[str, Any]

_GENERATION: Final = "g2"
_PREVIEWED: Final = 50
_AT_ONCE: Final = 1_000
_TRIES: Final = 100


class LangoSessionStore:
    """A session store for nanobot.

    A save appends new messages, or rewrites the session from the first changed message. If another writer has changed
    the messages since the session was loaded or last saved, a save with new or changed messages raises `Conflict` and
    writes nothing. Metadata is merged key by key. As with nanobot's own store, a save of a session that was deleted or
    has expired creates it again.

    Args:
        store: The store. The adapter does not close it.
        on_conflict: A function that is called with the session key before a save raises `Conflict`. Use the manager's
            `invalidate`, so that the next turn loads the session again. The manager needs the adapter first, so set
            the attribute afterwards, as in the example.

    Example:
        ```python
        sessions = LangoSessionStore(store)
        manager = SessionManager(workspace, store=sessions)
        sessions.on_conflict = manager.invalidate
        ```
    """

    def __init__(self, store: Store, *, on_conflict: Callable[[str], None] | None = None) -> None:
        self.on_conflict = on_conflict
        self._store = store
        # The keys are `id(session)`, because nanobot's sessions are mutable and not hashable.
        self._synced: dict[int, tuple[weakref.ref[Session], _Synced]] = {}

    def load(self, key: str) -> Session | None:
        """Load a live session.

        Args:
            key: The session key.

        Returns:
            The session, None if it does not exist.

        Raises:
            DamagedMessage: A message cannot be read.
        """
        stored = self._read(key)
        if stored is None:
            return None
        session = stored.session()
        self._remember(session, stored.synced())
        return session

    def save(self, session: Session, *, fsync: bool = False) -> None:
        """Write the changes since the session was loaded or last saved.

        Args:
            session: The session.
            fsync: Has no effect. The durability of the store decides when changes are on disk.

        Raises:
            Conflict: Another writer has changed the messages, or both have changed a metadata key, to different values.
                Nothing was written.
            InvalidMessage: A message cannot be stored. Nothing was written.
        """
        state = _State.of(session)
        reference, synced = self._synced.get(id(session), (None, None))
        if reference is not None and reference() is not session:
            synced = None
        if synced is not None and synced.state == state:
            return
        try:
            synced = self._save(session, state, synced)
        except Conflict:
            if self.on_conflict is not None:
                self.on_conflict(session.key)
            raise
        self._remember(session, synced)

    def delete(self, key: str) -> bool:
        """Delete a session.

        Args:
            key: The session key.

        Returns:
            True if the session existed.
        """
        return self._store.delete(key)

    def read(self, key: str) -> SessionPayload | None:
        """Read a session as plain values, without the private state of the provider.

        Args:
            key: The session key.

        Returns:
            The session with its messages, None if it does not exist.

        Raises:
            DamagedMessage: A message cannot be read.
        """
        stored = self._read(key)
        if stored is None:
            return None
        session = stored.session()
        return {**_public(session), "messages": session.messages}

    def read_metadata(self, key: str) -> SessionMetadataPayload | None:
        """Read a session without its messages and without the private state of the provider.

        Args:
            key: The session key.

        Returns:
            The metadata of the session, None if it does not exist.
        """
        stored = self._read(key, messages=False)
        return None if stored is None else _public(stored.session())

    def update_metadata(self, key: str, updates: dict[str, Any], *, fsync: bool = False) -> bool:
        """Set some keys of the metadata of a session.

        Args:
            key: The session key.
            updates: The metadata keys to set. Other keys are not changed.
            fsync: Has no effect. The durability of the store decides when changes are on disk.

        Returns:
            True if the keys were set, False if the session does not exist.
        """

        def update() -> bool:
            if (stored := self._read(key, messages=False)) is None:
                return False
            metadata = stored.metadata | updates
            raw = stored.raw
            if "metadata" in raw:
                raw["metadata"] = raw["metadata"] | {"metadata": metadata}
            with self._store.transaction() as tx:
                tx.conversation(key).update(metadata=metadata, title=title_of(metadata), expect=stored.info.revision)
                tx.conversation(key).values.set(_value(key, raw))
            return True

        return retry_conflicts(update, SessionNotFound)

    def list_sessions(self) -> list[SessionInfo]:
        """List all live sessions of the store, the most recently updated first.

        Returns:
            The sessions, each with its title and a preview, without messages.
        """
        listed: list[tuple[datetime, str, SessionInfo]] = []
        path = self._store.engine.url.set(query={}).render_as_string(hide_password=True)
        infos = iter(self._store.iter_sessions(page_size=_AT_ONCE))
        while page := list(islice(infos, _AT_ONCE)):
            keys = [info.key for info in page]
            values, previews = self._store.values_of(keys, NAME), self._previews(keys)
            for info in page:
                if info.key not in values or info.key not in previews:  # deleted after it was listed
                    continue
                session = _Stored(info, _raw_of(info.key, values[info.key])).session()
                item: SessionInfo = {
                    "key": info.key,
                    "created_at": session.created_at.isoformat(),
                    "updated_at": session.updated_at.isoformat(),
                    "title": _metadata_title(info.metadata),
                    "preview": previews[info.key],
                    "path": path,
                }
                listed.append((session.updated_at.astimezone(), info.key, item))
        return [item for *_, item in sorted(listed, key=lambda each: each[:2], reverse=True)]

    def _previews(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the first text of the user or else of the assistant in each session that exists."""
        # Most sessions begin with a message of the user, so only few are read further.
        previews: dict[str, str] = {}
        for number in (1, _PREVIEWED):
            rest = [key for key in keys if not previews.get(key)]
            for key, page in self._store.messages_of(rest, first=number, damaged="return").items() if rest else ():
                messages = [each for each in page if not isinstance(each, DamagedMessage)]
                lines = [line for each in messages for line in lines_from_message(each)]
                previews[key] = _text_of(lines, "user") or (_text_of(lines, "assistant") if number > 1 else "")
        return previews

    def _remember(self, session: Session, synced: _Synced) -> None:
        identity = id(session)
        self._synced[identity] = weakref.ref(session, lambda _: self._synced.pop(identity, None)), synced

    def _read(self, key: str, *, messages: bool = True) -> _Stored | None:
        try:
            with self._store.snapshot() as view:
                info = view.conversation(key).info()
                return _Stored(info, _raw(view, key), view.conversation(key).all_messages() if messages else [])
        except SessionNotFound:
            return None

    def _save(self, session: Session, state: _State, synced: _Synced | None) -> _Synced:
        for tries_left in reversed(range(_TRIES)):
            stored = self._read(session.key, messages=False)
            if stored is not None and (synced is None or synced.revision != stored.info.revision):
                stored = self._read(session.key)
            base = _NOTHING if stored is None else _base(stored, state, synced)
            metadata = base.merged(session, {} if stored is None else stored.metadata)
            write = partial(_write, session, state, base, metadata, None if stored is None else stored.info.revision)
            try:
                return self._store.transact(write)
            except (Conflict, SessionExists, SessionNotFound):  # another writer committed after the session was read
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")


@dataclass(frozen=True)
class _State:
    """State of a session in memory: digests of its lines, the number of consolidated lines, and the rest as text."""

    lines: list[bytes]
    consolidated: int
    rest: str

    @classmethod
    def of(cls, session: Session) -> _State:
        lines = [hashlib.blake2b(json.dumps(line).encode(), digest_size=16).digest() for line in session.messages]
        rest = json.dumps([_head(session, session.metadata), _private(session)])
        return cls(lines, session.last_consolidated, rest)


@dataclass(frozen=True)
class _Synced:
    """A session when it was last loaded or saved: its lines, the seq of each line, its revision and its metadata."""

    state: _State
    seqs: list[int]
    revision: int | None
    metadata: dict[str, str]

    def same_lines(self, state: _State) -> int:
        """Count the unchanged lines at the start, leaving out a message if any of its lines has changed."""
        pairs = enumerate(zip(self.state.lines, state.lines, strict=False))
        same = next((index for index, (old, new) in pairs if old != new), min(len(self.seqs), len(state.lines)))
        while 0 < same < len(self.seqs) and self.seqs[same] == self.seqs[same - 1]:
            same -= 1
        return same

    def merged(self, session: Session, stored: Line) -> Line:
        """Return the metadata with the changes of both writers. Raises `Conflict` if both changed a key differently."""
        ours, theirs, before = _texts(session.metadata), _texts(stored), self.metadata
        if theirs == before:
            return session.metadata
        merged: Line = {}
        for name in session.metadata | stored:
            changed = ours.get(name) != before.get(name)
            if changed and theirs.get(name) not in (before.get(name), ours.get(name)):
                reason = f"metadata {name!r} of session {session.key!r} was changed by another writer: load it again"
                raise Conflict(session.key, expected=0, last_seq=0, message=reason)
            source = session.metadata if changed else stored
            if name in source:
                merged[name] = source[name]
        return merged


_NOTHING: Final = _Synced(_State([], 0, ""), [], None, {})


@dataclass(frozen=True)
class _Stored:
    """A stored session. Its conversion omits records, which nanobot does not have."""

    info: StoredInfo
    raw: Line
    log: Sequence[Message] = ()

    @property
    def metadata(self) -> Line:
        """The metadata of the session, with its title."""
        return metadata_out({"metadata": self.info.metadata, "title": self.info.title}, self._head)

    @property
    def _head(self) -> Line:
        return mapping(self.raw.get("metadata"))

    def session(self) -> Session:
        """Convert to a session of nanobot."""
        info, head = self.info, self._head
        messages = [message for message in self.log if message.role is not MessageRole.RECORD]
        updated_at = head.get("updated_at") if moment(self.raw.get("updated_at")) == info.updated_at else None
        return Session(
            key=info.key,
            messages=[line for message in messages for line in lines_from_message(message)],
            created_at=_time(head.get("created_at"), info.created_at),
            updated_at=_time(updated_at, info.updated_at),
            metadata=self.metadata,
            last_consolidated=sum(
                len(lines_from_message(message))
                for index, message in enumerate(messages)
                if index < info.last_consolidated or message.seq <= info.summarized_upto
            ),
            provider_state=ProviderConversationState.from_private_record(
                mapping(self.raw.get("provider_state")).get("state")
            ),
        )

    def synced(self) -> _Synced:
        """Return the state to remember for the next save."""
        session = self.session()
        seqs = [each.seq for each in self.log if each.role is not MessageRole.RECORD for _ in lines_from_message(each)]
        return _Synced(_State.of(session), seqs, self.info.revision, _texts(session.metadata))


def _base(stored: _Stored, state: _State, synced: _Synced | None) -> _Synced:
    """Return the state that a save starts from. Raises `Conflict` if the save would overwrite others' messages."""
    if synced is not None and synced.revision == stored.info.revision:
        return synced
    current, before = stored.synced(), synced or _NOTHING
    # The first lines are already stored if nanobot created the session again, or if a commit was not acknowledged.
    if current.state.lines in (state.lines[: len(current.state.lines)], before.state.lines):
        return replace(current, metadata=before.metadata)
    if synced is None or (synced.state.lines, synced.state.consolidated) != (state.lines, state.consolidated):
        expected = before.seqs[-1] if before.seqs else 0
        raise Conflict(stored.info.key, expected=expected, last_seq=stored.info.last_seq)
    return synced


def _write(session: Session, state: _State, base: _Synced, metadata: Line, expect: int | None, tx: Store) -> _Synced:
    """Write the differences from the stored session, or create it. Returns the state to remember."""
    key, seqs, same = session.key, base.seqs, base.same_lines(state)
    is_current = base.revision == expect  # if not, another writer has written, and its messages must not be changed
    if expect is None:
        create_session(tx, key)
    if not same == len(seqs) == len(state.lines):
        new = [message_from_line(line) for line in session.messages[same:]]
        cut = None if same == len(seqs) else seqs[same - 1] if same else 0
        stored = tx.conversation(key).append_messages(new, replace_after=cut, expect=expect)
        seqs, expect = seqs[:same] + [message.seq for message in stored], None
    changes: dict[str, Any] = {"metadata": metadata or None, "title": title_of(metadata)}
    if is_current:
        changes["last_consolidated"] = len(set(seqs[: session.last_consolidated]))
    info = tx.conversation(key).update(activity=True, expect=expect, **changes)
    raw: Line = {
        "key": key,
        "generation": _GENERATION,
        "stem": file_name(key, _GENERATION).removesuffix(".jsonl"),
        "metadata": _head(session, metadata),
        "updated_at": info.updated_at.isoformat(),
    }
    private = _private(session)
    tx.conversation(key).values.set(_value(key, raw if private is None else raw | {"provider_state": private}))
    revision = tx.conversation(key).info().revision if is_current else base.revision
    return _Synced(state, seqs, revision, _texts(session.metadata))


def _raw(store: Store, key: str) -> Line:
    """Return nanobot's stored lines except messages. A fork does not use the lines of the original session."""
    return _raw_of(key, store.conversation(key).values.get(prefix=NAME))


def _raw_of(key: str, values: Mapping[str, Any]) -> Line:
    value = mapping(values.get(NAME))
    return mapping(value.get("extra")) if value.get("key") == key else {}


def _value(key: str, raw: Line) -> Line:
    return {NAME: {"key": key, "extra": raw}}  # the same form as an import stores


def _time(text: object, stored: datetime) -> datetime:
    """Return a time as nanobot wrote it or, if that is not a time, the stored time as local time without a zone."""
    if isinstance(text, str) and moment(text, local=True) is not None:
        return datetime.fromisoformat(text)
    return stored.astimezone().replace(tzinfo=None)


def _head(session: Session, metadata: Line) -> Line:
    """Return the metadata line of nanobot's own file."""
    return {
        "_type": "metadata",
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": metadata,
        "last_archived": session.last_archived,
        "last_consolidated": session.last_consolidated,
    }


def _private(session: Session) -> Line | None:
    """Return the line with the private state of the provider, None without a state."""
    state = session.provider_state
    return None if state is None else {"_type": "provider_state", "state": state.to_private_record()}


def _public(session: Session) -> SessionMetadataPayload:
    head = _head(session, session.metadata)
    return {name: head[name] for name in ("key", "created_at", "updated_at", "metadata")}  # type: ignore[return-value]


def _text_of(lines: Sequence[Line], role: str) -> str:
    return next((text for line in lines if line.get("role") == role and (text := _message_preview_text(line))), "")


def _texts(metadata: Line) -> dict[str, str]:
    """Return each value of the metadata as text, for later comparison."""
    return {name: json.dumps(value) for name, value in metadata.items()}
