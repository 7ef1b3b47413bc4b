"""nanobot's sessions in a `Store`: give `LangoSessionStore(store)` to its `SessionManager`.

nanobot keeps sessions in memory and hands over a whole one at every save. What it was when it was loaded or saved last
is remembered: so a save writes what changed, and notices what others wrote meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa
from nanobot.providers.base import ProviderConversationState
from nanobot.session.manager import (
    Session,
    SessionInfo,
    SessionMetadataPayload,
    SessionPayload,
    _message_preview_text,  # our lists have to look like nanobot's own, whose version the extra pins
    _metadata_title,
)

from lango_store._dialect import Moment
from lango_store._engine.url import shown
from lango_store._operations import appends, messages, session_changes, sessions
from lango_store._operations.batches import Batch
from lango_store._operations.messages import Range
from lango_store._operations.rows import salvage_messages, session_value
from lango_store._operations.sessions import New
from lango_store._values import model
from lango_store._values.model import UNSET, Message, MessageRole
from lango_store._values.model import SessionInfo as StoredInfo
from lango_store.errors import Conflict, DamagedMessage, SessionNotFound
from lango_store.integrations.nanobot_memory import NOTHING, Known, Line, Memory, State, texts
from lango_store.interchange import exporting
from lango_store.interchange.draft import Draft
from lango_store.interchange.fidelity import mapping
from lango_store.interchange.moments import moment
from lango_store.interchange.nanobot.heads import title_of
from lango_store.interchange.nanobot.lines import STYLES, lines_from_message, message_from_line
from lango_store.interchange.nanobot.names import NAME, file_name
from lango_store.interchange.nanobot.writing import metadata_out
from lango_store.store import Store

_GENERATION: Final = "g2"
_STYLE: Final = STYLES[_GENERATION]
_PAGE: Final = 500
_PREVIEWED: Final = 200


class LangoSessionStore:
    """A store for nanobot: `SessionManager(workspace, store=LangoSessionStore(store))`.

    A save appends what is new, or rewrites from the first line that changed. If somebody else wrote messages to the
    session since it was loaded, a save that changes messages is `Conflict` and writes nothing; `on_conflict` is then
    called with the key, and `SessionManager.invalidate` is made for it: the next turn sees what came in. Metadata is
    put together key by key. A session that was deleted or has expired is written anew, as nanobot's own store does.
    """

    def __init__(self, store: Store, *, on_conflict: Callable[[str], None] | None = None) -> None:
        self.on_conflict = on_conflict
        self._store = store
        self._context = store.context
        self._memory = Memory()

    def load(self, key: str) -> Session | None:
        """Load a live session, None if there is none."""
        try:
            with self._context.snapshot() as connection:
                session, known = _loaded(connection, self._context.moment(connection), key)
        except SessionNotFound:
            return None
        self._memory.remember(session, known)
        return session

    def save(self, session: Session, *, fsync: bool = False) -> None:
        """Write what changed in a session since it was loaded or saved; on return it is on disk, `fsync` or not."""
        state = _state(session)
        known = self._memory.recall(session)
        if known is not None and known.state == state:
            return
        try:
            with self._context.transaction() as connection:
                known = self._saved(connection, session, state, known)
        except Conflict:
            if self.on_conflict is not None:
                self.on_conflict(session.key)
            raise
        self._memory.remember(session, known)

    def delete(self, key: str) -> bool:
        """Delete a session; False if there was none."""
        return self._store.delete(key)

    def read(self, key: str) -> SessionPayload | None:
        """Read a session as plain values, without the provider's private state."""
        try:
            with self._context.snapshot() as connection:
                session, _ = _loaded(connection, self._context.moment(connection), key)
        except SessionNotFound:
            return None
        return {**_public(session), "messages": session.messages}

    def read_metadata(self, key: str) -> SessionMetadataPayload | None:
        """Read what there is of a session besides its messages and the provider's private state."""
        try:
            with self._context.snapshot() as connection:
                return _public(_session(exporting.draft(connection, self._context.moment(connection), key)))
        except SessionNotFound:
            return None

    def update_metadata(self, key: str, updates: dict[str, Any], *, fsync: bool = False) -> bool:
        """Replace these keys of a session's metadata and nothing else; False if there is no session."""
        try:
            with self._context.transaction() as connection:
                now = self._context.now(connection)
                sessions.lock(connection, now, key)
                draft = exporting.draft(connection, now, key)
                session = _session(draft)
                session.metadata = session.metadata | updates
                raw = _raw(draft)
                if "metadata" in raw:
                    raw["metadata"] = raw["metadata"] | {"metadata": session.metadata}
                fields = {"metadata": session.metadata, "title": title_of(session.metadata)}
                session_changes.adopt(connection, key, fields | {"extra": (draft.extra | {NAME: raw}) or None})
        except SessionNotFound:
            return False
        return True

    def list_sessions(self) -> list[SessionInfo]:
        """List live sessions, the last updated first, each with its title and the beginning of what a user said."""
        found: list[tuple[datetime, str, SessionInfo]] = []
        infos = self._store.iter_sessions(page_size=_PAGE)
        while page := list(islice(infos, _PAGE)):
            previews = self._previews([info.key for info in page])
            found += [(info.updated_at, info.key, self._listed(info, previews[info.key])) for info in page]
        return [listed for *_, listed in sorted(found, key=itemgetter(0, 1), reverse=True)]

    def _listed(self, info: model.SessionInfo, preview: str) -> SessionInfo:
        return {
            "key": info.key,
            "created_at": _local(info.created_at).isoformat(),
            "updated_at": _local(info.updated_at).isoformat(),
            "title": _metadata_title(info.metadata),
            "preview": preview,
            "path": shown(self._store.engine.url),
        }

    def _previews(self, keys: Sequence[str]) -> dict[str, str]:
        with self._context.snapshot() as connection:
            first = messages.firsts(connection, keys, MessageRole.USER)
            texts = {key: _preview([first[key]] if key in first else [], "user") for key in keys}
            return {key: text or self._deep_preview(connection, key) for key, text in texts.items()}

    def _deep_preview(self, connection: sa.Connection, key: str) -> str:
        """Look further where the first user message has no words, or there is none."""
        rows = messages.read_rows(connection, self._context.moment(connection), key, Range(limit=_PREVIEWED))
        found = salvage_messages(key, rows)
        return _preview(found, "user") or _preview(found, "assistant")

    def _saved(self, connection: sa.Connection, session: Session, state: State, known: Known | None) -> Known:
        now, key = self._context.now(connection), session.key
        try:
            found = sessions.lock(connection, now, key)
        except SessionNotFound:
            self._create(connection, now, key)
            made = sessions.lock(connection, now, key).incarnation
            return self._written(connection, now, session, state, replace(NOTHING, incarnation=made))
        if known is None:
            known = _adopted(connection, now, session, state)
        elif not known.still(found.incarnation, found.last_seq, state) and not (
            known.still(found.incarnation, known.last_seq, state)  # the same life of the session
            and messages.only_records(connection, key, known.last_seq, found.last_seq)  # which nanobot does not see
        ):
            raise Conflict(key, expected=known.last_seq, last_seq=found.last_seq)
        return self._written(connection, now, session, state, known)

    def _create(self, connection: sa.Connection, now: datetime, key: str) -> None:
        session_changes.delete_expired(connection, now, key)
        if sessions.insert(connection, now, New(key, self._context.ttl(key, UNSET), {})) is None:
            raise Conflict(key, expected=0, last_seq=sessions.lock(connection, now, key).last_seq)  # made just now

    def _written(self, connection: sa.Connection, now: datetime, session: Session, state: State, known: Known) -> Known:
        draft = exporting.draft(connection, now, session.key)
        metadata = known.merged(session.key, session.metadata, _metadata(draft))
        seqs, last_seq = self._write_messages(connection, now, session, state, known)
        fields = _fields(session, draft, metadata, seqs)
        session_changes.adopt(connection, session.key, fields)
        return Known(state, seqs, last_seq, known.incarnation, texts(session.metadata))

    def _write_messages(
        self, connection: sa.Connection, now: datetime, session: Session, state: State, known: Known
    ) -> tuple[list[int], int]:
        """Append or rewrite, and give the seq of each line and of the session."""
        key, same = session.key, known.same_lines(state)
        if same == len(known.seqs) == len(state.lines):
            return known.seqs, known.last_seq
        new = Batch([self._context.counted(message_from_line(line)) for line in session.messages[same:]])
        if same == len(known.seqs):
            append = appends.append_new_ids if new.ids else appends.append
            written = append(connection, now, key, new)
        else:
            after = known.seqs[same - 1] if same else 0
            written = appends.replace(connection, now, key, new, after=after)
        last_seq = written[-1].seq if written else sessions.lock(connection, now, key).last_seq
        return known.seqs[:same] + [message.seq for message in written], last_seq


def _adopted(connection: sa.Connection, now: datetime, session: Session, state: State) -> Known:
    """Take a session that nanobot made by itself for the one that is there, unless that would lose a message."""
    _, there = _loaded(connection, now, session.key)
    if there.state.lines != state.lines[: len(there.state.lines)]:
        raise Conflict(session.key, expected=0, last_seq=there.last_seq)
    return replace(there, metadata={})


# nanobot's session and ours


def _loaded(connection: sa.Connection, now: Moment, key: str) -> tuple[Session, Known]:
    incarnation, row = sessions.life_of(connection, now, key)
    info = session_value(StoredInfo, row)
    found = [(message.seq, lines_from_message(message, _STYLE)) for message in exporting.log(connection, now, key)]
    session = _session(exporting.draft(connection, now, key))
    session.messages = [line for _, lines in found for line in lines]
    session.last_consolidated = sum(
        len(lines)
        for place, (seq, lines) in enumerate(found)
        if place < info.last_consolidated or seq <= info.summarized_upto
    )
    seqs = [seq for seq, lines in found for _ in lines]
    return session, Known(_state(session), seqs, info.last_seq, incarnation, texts(session.metadata))


def _session(draft: Draft) -> Session:
    """Return nanobot's session, its messages aside."""
    raw = _raw(draft)
    head = mapping(raw.get("metadata"))
    private = raw.get("provider_state")
    return Session(
        key=draft.key,
        created_at=_time(head.get("created_at"), draft.created_at),
        updated_at=_time(head.get("updated_at"), draft.updated_at),
        metadata=_metadata(draft),
        provider_state=ProviderConversationState.from_private_record(mapping(private).get("state")),
    )


def _raw(draft: Draft) -> Line:
    return dict(mapping(draft.extra.get(NAME)))


def _metadata(draft: Draft) -> Line:
    return metadata_out(draft, mapping(_raw(draft).get("metadata")))


def _time(text: object, stored: datetime | None) -> datetime:
    """Return a time as nanobot wrote it, unless it has changed since."""
    if isinstance(text, str) and moment(text, local=True) == stored:
        return datetime.fromisoformat(text)
    return _local(stored or datetime.now(UTC))


def _local(time: datetime) -> datetime:
    return time.astimezone().replace(tzinfo=None)


def _fields(session: Session, draft: Draft, metadata: Line, seqs: Sequence[int]) -> dict[str, Any]:
    """Return what the session's row says beside its counters."""
    created_at = moment(session.created_at.isoformat(), local=True) or draft.created_at
    updated_at = moment(session.updated_at.isoformat(), local=True) or draft.updated_at
    raw: Line = {
        "key": session.key,
        "generation": _GENERATION,
        "stem": file_name(session.key, _GENERATION).removesuffix(".jsonl"),
        "metadata": _head(session, metadata),
    }
    if (private := _private(session)) is not None:
        raw["provider_state"] = private
    if updated_at is not None:
        raw["updated_at"] = updated_at.isoformat()
    return {
        "created_at": created_at,
        "updated_at": updated_at,
        "metadata": metadata or None,
        "title": title_of(metadata),
        "last_consolidated": len(set(seqs[: session.last_consolidated])),
        "extra": draft.extra | {NAME: raw},
    }


def _state(session: Session) -> State:
    rest = [_head(session, session.metadata), _private(session)]
    return State.of(session.messages, session.last_consolidated, rest)


def _head(session: Session, metadata: Line) -> Line:
    """Return the line that stands first in nanobot's own file."""
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
    """Return the line of the provider's private state."""
    state = session.provider_state
    return None if state is None else {"_type": "provider_state", "state": state.to_private_record()}


def _public(session: Session) -> SessionMetadataPayload:
    return {
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": session.metadata,
    }


def _preview(found: Sequence[Message | DamagedMessage], role: str) -> str:
    lines = (line for message in found if isinstance(message, Message) for line in lines_from_message(message, _STYLE))
    return next((text for line in lines if line.get("role") == role and (text := _message_preview_text(line))), "")
