"""Import of a `SessionDraft` in the caller's transaction."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa

from lango_store import Message
from lango_store._operations.session import values
from lango_store._rooms.tool_calls import suspensions
from lango_store.errors import DamagedMessage, InvalidMessage, SessionNotFound, quoted
from lango_store.interchange.draft import Part, SessionDraft
from lango_store.rows import (
    CHANGE,
    MESSAGE,
    PAYLOAD,
    SESSION,
    TABLES,
    TURN,
    checked_key,
    encode_id,
    encode_json,
    encode_session,
    encode_text,
    of_session,
    transfer,
)
from lango_store.rows.storage import Batch, NewSession, sessions

_ROWS: Final = 500
_CHARACTERS: Final = 1 << 20
"""The numbers of rows and characters after which a batch of rows is written."""

_COUNTERS: Final = (
    "last_seq",
    "message_count",
    "record_count",
    "token_count",
    "turn_count",
    "last_turn_no",
    "summarized_upto",
)

Row = dict[str, Any]
Batches = Iterator[dict[sa.Table, list[Row]]]


class _Rows:
    """The rows of a draft, and the session's counters, which are complete after the last batch.

    With `counters`, the rows follow those of a stored session.

    Raises `InvalidMessage` if a message cannot be stored.
    """

    def __init__(
        self,
        draft: SessionDraft,
        now: datetime,
        encode: Callable[[list[Message]], Batch],
        counters: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        self.key = draft.key
        self._draft, self._now, self._encode = draft, now, encode
        self._forked_from = encode_text(draft.forked_from, "forked_from")
        self._ids: set[tuple[sa.Table, str]] = set()
        self._digests: set[str] = set()
        self.counters: Row = dict.fromkeys(_COUNTERS, 0) | {"summary_turn": None} | dict(counters)

    @property
    def written(self) -> int:
        """The number of messages and records, after the last batch."""
        return int(self.counters["message_count"] + self.counters["record_count"])

    def batches(self) -> Batches:
        """Yield the rows of turns, changes, messages and payloads, as many as one statement should write."""
        batch, size = _empty(), 0
        for part in self._draft.parts:
            size += self._add(batch, part)
            if size > _CHARACTERS or len(batch[MESSAGE]) + len(batch[TURN]) >= _ROWS:
                full, batch, size = [batch], _empty(), 0
                yield full.pop()  # no reference is kept, so that the rows are freed before the next batch
        yield batch

    def _add(self, batch: dict[sa.Table, list[Row]], part: Part) -> int:
        """Add the rows of a part to a batch, and return their number of characters."""
        counters, key, size = self.counters, self._draft.key, 0
        before, created_at = counters["last_seq"], part.created_at or self._now
        turn_no = counters["last_turn_no"] + 1 if part.kind else None
        if part.kind == "compaction":
            counters["last_seq"] += 1  # a compaction uses one seq, so that a comparison of last_seq detects it
            counters |= {"summary_turn": turn_no, "summarized_upto": before}
        first_seq = counters["last_seq"] + 1
        encoded = self._encode(part.messages)
        for row in encoded.rows:
            counters["last_seq"] += 1
            self._check_id(MESSAGE, row["id"])
            size += sum([len(row.get(name) or "") for name in TABLES[MESSAGE].large])
            row["created_at"] = row["created_at"] or created_at
            row |= {"session_key": key, "seq": counters["last_seq"], "turn_no": turn_no}
            row |= {"logged_at": self._now, "taken_by": None}
            batch[MESSAGE].append(row)
        for digest, body in encoded.bodies.items():
            if digest not in self._digests:
                self._digests.add(digest)
                batch[PAYLOAD].append({"session_key": key, "digest": digest, "body": body})
                size += len(body)
        counters["message_count"] += len(encoded.rows) - encoded.records
        counters["record_count"] += encoded.records
        counters["token_count"] += encoded.tokens
        if part.kind:
            position = {"session_key": key, "first_seq": first_seq, "last_seq": counters["last_seq"]}
            replaced_upto = before if part.kind == "compaction" else None
            position |= {"turn_no": turn_no, "replaced_upto": replaced_upto, "created_at": created_at}
            # A file does not mark the turns that a fork copied: they are older than the fork.
            is_copy = created_at < (self._draft.created_at or self._now)
            turn = _encode_turn(part) | position | {"copied_from": self._forked_from if is_copy else None}
            self._check_id(TURN, turn["id"])
            counters |= {"turn_count": counters["turn_count"] + 1, "last_turn_no": turn_no}
            batch[TURN].append(turn)
            if part.kind == "compaction":
                batch[CHANGE].append(_compaction(turn))
        return size

    def _check_id(self, table: sa.Table, id: str | None) -> None:
        if id is None:
            return
        if (table, id) in self._ids:
            raise InvalidMessage(
                "id",
                f"session {quoted(self._draft.key)} has two messages or turns with the same id: make the ids differ",
            )
        self._ids.add((table, id))


def _empty() -> dict[sa.Table, list[Row]]:
    return {TURN: [], MESSAGE: [], PAYLOAD: [], CHANGE: []}


def _encode_turn(part: Part) -> Row:
    named = {"usage": part.usage, "metadata": part.metadata, "extra": part.extra}
    encoded = {name: None if value is None else encode_json(value, name) for name, value in named.items()}
    return {"id": encode_id(part.id), "kind": part.kind, **encoded}


def _compaction(turn: Row) -> Row:
    """Return the change row for the seq that precedes the summary of a compaction."""
    position = {"session_key": turn["session_key"], "seq": turn["first_seq"] - 1, "after_seq": turn["replaced_upto"]}
    return position | {
        "kind": "compact",
        "changed_by": None,
        "changed_at": turn["created_at"],
        "added_upto": turn["last_seq"],
    }


def _encode_extra(draft: SessionDraft) -> values.NamedJson:
    # The key is stored too: a fork has copies of the values, and must not be mistaken for the imported session.
    named = {system: {"key": draft.key, "extra": extra} for system, extra in draft.extra.items()}
    return values.encode_values(draft.key, named)


def _suspensions(draft: SessionDraft) -> list[suspensions.NewSuspension]:
    return [suspensions.NewSuspension(draft.key, (), state, None, None) for state in draft.suspensions]


def import_draft(
    connection: sa.Connection,
    now: datetime,
    draft: SessionDraft,
    *,
    ttl: timedelta | None,
    encode: Callable[[list[Message]], Batch],
) -> int | None:
    """Write a session and return its number of messages; return None and write nothing if the key exists.

    Requires a transaction that the caller rolls back if this function raises.
    """
    extra = _encode_extra(draft)
    if sessions.insert(connection, now, NewSession(draft.key, ttl, draft.fields)) is None:
        return None
    rows = _Rows(draft, now, encode)
    _insert(connection, rows)
    fields = {
        "last_consolidated": draft.last_consolidated,
        "forked_from": encode_session({"forked_from": draft.forked_from})["forked_from"],
    }
    sessions.change(connection, draft.key, fields | rows.counters)
    set_times(connection, now, draft)
    values.write(connection, now, draft.key, extra)
    for new in _suspensions(draft):
        suspensions.suspend(connection, now, new)
    return rows.written


def set_times(connection: sa.Connection, now: datetime, draft: SessionDraft) -> None:
    """Give a session the times of its draft."""
    times = {"created_at": draft.created_at or now, "updated_at": draft.updated_at or now}
    sessions.change(connection, draft.key, times)


def extend(
    connection: sa.Connection,
    now: datetime,
    draft: SessionDraft,
    *,
    encode: Callable[[list[Message]], Batch],
    **changes: Any,
) -> None:
    """Append the parts of a draft to the session with its key, which is locked, and change columns of the session."""
    names = (*_COUNTERS, "summary_turn")
    query = sa.select(*(SESSION.c[name] for name in names)).where(of_session(SESSION, draft.key))
    rows = _Rows(draft, now, encode, dict(zip(names, connection.execute(query).one(), strict=True)))
    _insert(connection, rows)
    sessions.change(connection, draft.key, changes | rows.counters)


def _insert(connection: sa.Connection, rows: _Rows) -> None:
    for batch in rows.batches():
        if batch[PAYLOAD]:
            digests = {row["digest"] for row in batch[PAYLOAD]}
            stored = sa.select(PAYLOAD.c.digest).where(of_session(PAYLOAD, rows.key), PAYLOAD.c.digest.in_(digests))
            known = set(connection.scalars(stored))
            batch[PAYLOAD] = [row for row in batch[PAYLOAD] if row["digest"] not in known]
        for table in batch:
            for start in range(0, len(batch[table]), _ROWS):
                transfer.insert(connection, table, batch[table][start : start + _ROWS])


def dry_run(connection: sa.Connection, now: datetime, draft: SessionDraft, planned: set[str]) -> int | None:
    """Return the number of messages that `import_draft` would write, None if the key exists. Nothing is written.

    `planned` contains the keys that earlier drafts would have created; this draft's key is added.
    """
    if draft.key in planned or transfer.incarnations(connection, [checked_key(draft.key)]):
        return None
    planned.add(draft.key)
    return check(draft, now)


def check(draft: SessionDraft, now: datetime) -> int:
    """Return the number of messages of a draft. Raises `InvalidValue` if the draft cannot be stored."""
    checked_key(draft.key)
    encode_session(draft.fields | {"forked_from": draft.forked_from})
    _encode_extra(draft)
    _suspensions(draft)
    branches = [Part(each.messages) for each in draft.branches]
    rows = _Rows(replace(draft, parts=chain(draft.parts, branches)) if branches else draft, now, Batch)
    deque(rows.batches(), maxlen=0)
    return rows.written


def is_stored(log: Iterable[Message], draft: SessionDraft) -> bool:
    """Return True if a log starts with the messages of a draft, apart from seqs, turns, times and token counts."""
    stored = iter(log)
    is_same = True
    for message in draft.messages:  # to the end, because the first iteration reports the skipped lines
        try:
            is_same = is_same and _same(next(stored, None), message)
        except (SessionNotFound, DamagedMessage):  # an expired or damaged session cannot be compared
            is_same = False
    return is_same


_IGNORED: Final = {"seq", "turn_no", "created_at", "tokens"}


def _same(stored: Message | None, message: Message) -> bool:
    return stored is not None and stored.model_dump(exclude=_IGNORED) == message.model_dump(exclude=_IGNORED)
