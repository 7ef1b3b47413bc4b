"""Import of a `Draft` in the caller's transaction."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations import sessions, suspensions, transfer, values
from lango_store._operations.appends import Batch
from lango_store._operations.binds import CHANGE, MESSAGE, PAYLOAD, TURN
from lango_store._operations.rows import encode_session
from lango_store._operations.sessions import New
from lango_store._rows.encoding import checked_key, encode_id, encode_json, encode_text
from lango_store._values.model import Message
from lango_store.errors import DamagedMessage, InvalidMessage, SessionNotFound, quoted
from lango_store.interchange.draft import Draft, Part

_PAGE: Final = 500

Row = dict[str, Any]


def _encode(
    draft: Draft, now: datetime, encode: Callable[[list[Message]], Batch]
) -> tuple[dict[sa.Table, list[Row]], Row]:
    """Return the rows of a draft's turns, messages and payloads, and the session's counters.

    Raises `InvalidMessage` if a message cannot be stored.
    """
    turns: list[Row] = []
    messages: list[Row] = []
    bodies: dict[str, str] = {}
    last_seq = tokens = summarized_upto = 0
    summary_turn = None
    forked_from = encode_text(draft.forked_from, "forked_from")
    for part in draft.parts:
        before, created_at = last_seq, part.created_at or now
        turn_no = len(turns) + 1 if part.kind else None
        if part.kind == "compaction":
            last_seq += 1  # a compaction uses one seq, so that a comparison of last_seq detects it
            summary_turn, summarized_upto = turn_no, before
        first_seq = last_seq + 1
        batch = encode(part.messages)
        bodies |= batch.bodies
        for row in batch.rows:
            last_seq += 1
            position = {"session_key": draft.key, "seq": last_seq, "turn_no": turn_no}
            times = {"created_at": row["created_at"] or created_at, "logged_at": now}
            messages.append(row | position | times | {"taken_by": None})
        tokens += batch.tokens
        if part.kind:
            position = {"session_key": draft.key, "turn_no": turn_no, "first_seq": first_seq, "last_seq": last_seq}
            replaced_upto = before if part.kind == "compaction" else None
            # A file does not mark the turns that a fork copied: they are older than the fork.
            is_copy = created_at < (draft.created_at or now)
            facts = {"replaced_upto": replaced_upto, "created_at": created_at}
            turns.append(_encode_turn(part) | position | facts | {"copied_from": forked_from if is_copy else None})
    for rows in (turns, messages):
        ids = [row["id"] for row in rows if row["id"] is not None]
        if len(set(ids)) < len(ids):
            raise InvalidMessage(
                "id", f"session {quoted(draft.key)} has two messages or turns with the same id: make the ids differ"
            )
    counters = {
        "last_seq": last_seq,
        "message_count": len(messages),
        "token_count": tokens,
        "turn_count": len(turns),
        "last_turn_no": len(turns),
        "summary_turn": summary_turn,
        "summarized_upto": summarized_upto,
    }
    payloads = [{"session_key": draft.key, "digest": digest, "body": body} for digest, body in bodies.items()]
    return {TURN: turns, MESSAGE: messages, PAYLOAD: payloads}, counters


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


def _encode_extra(draft: Draft) -> values.NamedJson:
    # The key is stored too: a fork has copies of the values, and must not be mistaken for the imported session.
    named = {system: {"key": draft.key, "extra": extra} for system, extra in draft.extra.items()}
    return values.encode_values(draft.key, named)


def _suspensions(draft: Draft) -> list[suspensions.New]:
    return [suspensions.New(draft.key, (), state, None, None) for state in draft.suspensions]


def import_draft(
    connection: sa.Connection,
    now: datetime,
    draft: Draft,
    *,
    ttl: timedelta | None,
    encode: Callable[[list[Message]], Batch],
) -> int | None:
    """Write a session and return its number of messages; return None and write nothing if the key exists.

    Requires a transaction that the caller rolls back if this function raises.
    """
    extra = _encode_extra(draft)
    if sessions.insert(connection, now, New(draft.key, ttl, draft.fields)) is None:
        return None
    written, counters = _encode(draft, now, encode)
    written[CHANGE] = [_compaction(turn) for turn in written[TURN] if turn["kind"] == "compaction"]
    for table, rows in written.items():
        for start in range(0, len(rows), _PAGE):
            transfer.insert(connection, table, rows[start : start + _PAGE])
    fields = {
        "created_at": draft.created_at or now,
        "updated_at": draft.updated_at or now,
        "last_consolidated": draft.last_consolidated,
        "forked_from": encode_session({"forked_from": draft.forked_from})["forked_from"],
    }
    sessions.change(connection, draft.key, fields | counters)
    values.write(connection, now, draft.key, extra)
    for new in _suspensions(draft):
        suspensions.suspend(connection, now, new)
    return len(written[MESSAGE])


def dry_run(connection: sa.Connection, now: datetime, draft: Draft, planned: set[str]) -> int | None:
    """Return the number of messages that `import_draft` would write, None if the key exists. Nothing is written.

    `planned` contains the keys that earlier drafts would have created; this draft's key is added.
    """
    if draft.key in planned or transfer.exists(connection, checked_key(draft.key)):
        return None
    planned.add(draft.key)
    return check(draft, now)


def check(draft: Draft, now: datetime) -> int:
    """Return the number of messages of a draft. Raises `InvalidValue` if the draft cannot be stored."""
    checked_key(draft.key)
    encode_session(draft.fields | {"forked_from": draft.forked_from})
    _encode_extra(draft)
    _suspensions(draft)
    rows, _ = _encode(draft, now, Batch)
    return len(rows[MESSAGE])


def is_stored(log: Iterable[Message], draft: Draft) -> bool:
    """Return True if a log starts with the messages of a draft, apart from seqs, turns, times and token counts."""
    stored = iter(log)
    try:
        return all(_same(next(stored, None), message) for message in draft.messages)
    except (SessionNotFound, DamagedMessage):  # the messages of an expired or damaged session cannot be compared
        return False


_IGNORED: Final = {"seq", "turn_no", "created_at", "tokens"}


def _same(stored: Message | None, message: Message) -> bool:
    return stored is not None and stored.model_dump(exclude=_IGNORED) == message.model_dump(exclude=_IGNORED)
