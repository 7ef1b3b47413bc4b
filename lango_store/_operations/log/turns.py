"""Turns: save messages together with their usage. A compaction is a turn whose messages summarize the window."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import IN_SUMMARY, IS_COMPACTION, IS_RECORD, MESSAGE, TURN, number, of_session
from lango_store._operations.log import messages
from lango_store._operations.log.appends import Batch, NewTurn, merge_stored, select_unstored, write
from lango_store._operations.log.changes import LogChange, Rows
from lango_store._operations.rows import TURN_COLUMNS, TURN_FIELDS, decode_turn, encode_object, turn_json
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import ANYTHING, Expected, NewSession
from lango_store._operations.session_tables import Condition, select_stored
from lango_store._rows.encoding import checked_key, decode_json, encode_id, encode_text
from lango_store._values.model import ChangeKind, Compaction, Message, MessageRole, Turn
from lango_store._values.session import Session
from lango_store._values.usage import total
from lango_store.errors import Conflict, quoted


def new_turn(
    id: str | None,
    usage: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
    copied_from: str | None = None,
) -> NewTurn:
    """Encode the fields of a turn; `InvalidValue` names a field that cannot be stored."""
    encoded = (encode_id(id), encode_object(usage, "usage"), encode_object(metadata, "metadata"))
    return NewTurn(*encoded, copied_from=encode_text(copied_from, "copied_from"))


# Save


def save(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    expected: Expected = ANYTHING,
    create: NewSession | None = None,
    *,
    turn: NewTurn,
) -> Turn:
    """Append a turn to a live session without looking up stored ids; see `appends.append`."""
    saved = write(connection, now, key, new, expected, create, turn)
    return Turn(
        turn_no=saved.turn_no,
        kind=turn.kind,
        id=turn.id,
        first_seq=saved.last_seq - len(saved.messages) + 1,
        last_seq=saved.last_seq,
        replaced_upto=turn.replaced_upto,
        usage={} if turn.usage is None else decode_json(turn.usage),
        metadata={} if turn.metadata is None else decode_json(turn.metadata),
        created_at=saved.created_at,
        messages=saved.messages,
    )


def save_new(
    connection: sa.Connection, now: Moment, key: str, new: Batch, expected: Expected = ANYTHING, *, turn: NewTurn
) -> Turn:
    """Append a turn, or return the stored turn if its id or all its messages are stored. Needs a transaction.

    If the batch starts with stored messages that end the log and belong to no turn, they become part of the turn.
    """
    last_seq = sessions.lock(connection, now, key).last_seq
    if turn.id is not None:
        for existing in read_stored(connection, key, lambda rows: rows.c.id == turn.id):
            return replayed(connection, now, key, existing)
    stored = messages.read_by_ids(connection, key, new.ids)
    fresh = select_unstored(new, stored)
    if turn.id is None and new.rows and not fresh.rows:
        # A retry: all messages are stored. If they belong to several turns, the last of these is the saved turn.
        numbers = {message.turn_no for message in stored.values()} - {None}
        for existing in read_stored(connection, key, lambda rows: rows.c.turn_no.in_(numbers))[-1:]:
            return replayed(connection, now, key, existing)
        turn = replace(turn, id=_id_of(new))
        for existing in read(connection, key, TURN.c.id == turn.id):
            return existing.model_copy(update={"messages": merge_stored(new, stored, []), "replayed": True})
    saved = save(connection, now, key, fresh, expected, turn=turn)
    if fresh.rows and (joining := _last_without_turn(new, stored, last_seq)):
        saved = saved.model_copy(update={"first_seq": joining[0].seq})
        is_joining = (of_session(MESSAGE, key), MESSAGE.c.seq >= saved.first_seq, MESSAGE.c.seq <= last_seq)
        connection.execute(sa.update(MESSAGE).where(*is_joining).values(turn_no=saved.turn_no))
        is_turn = (of_session(TURN, key), TURN.c.turn_no == saved.turn_no)
        connection.execute(sa.update(TURN).where(*is_turn).values(first_seq=saved.first_seq))
        stored |= {str(each.id): each.model_copy(update={"turn_no": saved.turn_no}) for each in joining}
    return saved.model_copy(update={"messages": merge_stored(new, stored, saved.messages)})


def _last_without_turn(new: Batch, stored: Mapping[str, Message], last_seq: int) -> list[Message]:
    """Return the stored messages at the start of a batch that are the last of the log and belong to no turn."""
    first = itertools.takewhile(lambda message: message is not None, (stored.get(m.id or "") for m in new.messages))
    joining: list[Message] = []
    for message in reversed([each for each in first if each is not None]):
        if message.turn_no is not None or message.seq != last_seq - len(joining):
            break
        joining.insert(0, message)
    return joining


def _id_of(new: Batch) -> str:
    """Return a turn id computed from the message ids, so that a retry finds the turn by it."""
    ids = json.dumps([message.id for message in new.messages])
    return f"messages:{hashlib.sha256(ids.encode()).hexdigest()}"


def replayed(connection: AnyConnection, now: Moment, key: str, turn: Turn) -> Turn:
    """Return a stored turn of a live session with its messages, marked as replayed."""
    sessions.lock(connection, now, key)
    bounds = {"first": turn.first_seq, "last": turn.last_seq, "turn_no": turn.turn_no}
    stored = messages.select(connection, _of_turn, key, **bounds)
    return turn.model_copy(update={"messages": stored, "replayed": True})


_TURN_NO: Final = number("turn_no")
_of_turn: Final = messages.selecting_stored(
    lambda _, rows: sa.and_(rows.c.turn_no == _TURN_NO, rows.c.seq.between(number("first"), number("last")))
)


# Read


def read(connection: sa.Connection, key: str, *conditions: sa.ColumnElement[bool]) -> list[Turn]:
    """Read turns of a session without their messages, ordered by turn number."""
    query = sa.select(*TURN_COLUMNS).where(of_session(TURN, key), *conditions).order_by(TURN.c.turn_no)
    return [decode_turn(key, row) for row in connection.execute(query)]


def read_stored(connection: sa.Connection, key: str, condition: Condition) -> list[Turn]:
    """Read turns as `read` does, also those that are set aside."""
    rows = connection.execute(select_stored(TURN, TURN_FIELDS, condition), {"key": key})
    return [decode_turn(key, row) for row in rows]


def read_all(connection: sa.Connection, now: Moment, key: str) -> list[Turn]:
    """Read the turns of a live session without their messages."""
    sessions.row_of(connection, now, key)
    return read(connection, key)


def find(connection: sa.Connection, now: Moment, key: str, turn_no_or_id: int | str) -> Turn | None:
    """Return the turn of a live session with this number or id and its messages, or None."""
    sessions.row_of(connection, now, key)
    is_wanted: sa.ColumnElement[bool]
    if isinstance(turn_no_or_id, int):
        is_wanted = TURN.c.turn_no == min(max(int(turn_no_or_id), 0), messages.MAX_SEQ)
    else:
        is_wanted = TURN.c.id == str(encode_id(turn_no_or_id))
    for turn in read(connection, key, is_wanted):
        return turn.model_copy(update={"messages": messages_of(connection, key, turn)})
    return None


def messages_of(connection: sa.Connection, key: str, turn: Turn) -> list[Message]:
    """Read the messages of a turn that are still stored."""
    is_of_turn = (MESSAGE.c.seq >= turn.first_seq, MESSAGE.c.seq <= turn.last_seq, MESSAGE.c.turn_no == turn.turn_no)
    return messages.where(connection, key, sa.and_(*is_of_turn))


# Usage

_usages = Statement(select_stored(TURN, ("turn_no", "usage"), lambda rows: rows.c.usage.is_not(None)))


def usages(connection: AnyConnection, key: str) -> Iterator[dict[str, Any]]:
    """Yield the usage of each turn that has one, also of turns that are set aside."""
    for turn_no, text in _usages.run(connection, {"key": checked_key(key)}):
        yield turn_json(key, turn_no, "usage", text)


# Compactions


@dataclass(frozen=True)
class ReadWindow:
    """A window that is being summarized, with the state of its session at the time of reading."""

    session: Session
    incarnation: int

    @property
    def key(self) -> str:
        """The session's key."""
        return self.session.key

    @property
    def state(self) -> tuple[int, int]:
        """The state to compare with `sessions.Locked.state` before the summary is saved."""
        return self.incarnation, sessions.removed(self.session)


def read_window(connection: AnyConnection, now: Moment, key: str, *, records: bool = False) -> ReadWindow:
    """Read the window of a live session for a summary."""
    incarnation, session = messages.load_with_incarnation(connection, now, key, records=records)
    return ReadWindow(session, incarnation)


def finish_compaction(
    connection: sa.Connection, now: datetime, pending: ReadWindow, summary: Batch, *, discard: bool
) -> Compaction:
    """Replace a window with its summary. Messages appended since it was read stay in the window, after the summary.

    Raises:
        Conflict: The session was compacted, or messages were changed or removed, since the
            window was read.
    """
    key, upto = pending.session.key, pending.session.last_seq
    locked = sessions.lock(connection, now, key)
    if locked.state != pending.state:
        raise Conflict(
            key,
            expected=upto,
            last_seq=locked.last_seq,
            message=f"session {quoted(key)} was compacted, or messages were edited or removed, since its window was "
            "read: nothing was changed, compact again if the window is still too long",
        )
    metadata: dict[str, Any] = {
        "original_event_count": pending.session.turn_count,
        "original_message_count": sum(message.role is not MessageRole.RECORD for message in pending.session.messages),
    }
    seq = locked.last_seq + 1
    added_upto = seq + len(select_unstored(summary, {}).rows)
    kind: ChangeKind = "discard" if discard else "compact"
    old: list[Turn] = []
    copied: dict[int, str] = {}
    with LogChange(connection, now, key, kind, seq, upto, added_upto=added_upto) as change:
        if discard:
            metadata["discarded"] = True
            old = read(connection, key)[: pending.session.turn_count]  # not by seq: a turn without messages has none
            copied = _copied(connection, key)
            # Records are kept, because `Conversation.compact` hides them from the summarizer. They no longer belong to
            # a turn.
            change.unconsolidated = change.delete(_REPLACED, upto=upto)
            change.replace(_RECORDS, upto=upto)
            if old:
                change.delete(_OLD_TURNS, turn_no=old[-1].turn_no)
    usage = total(turn.usage for turn in old if turn.turn_no not in copied)
    if spent_elsewhere := total(turn.usage for turn in old if turn.turn_no in copied):
        # In a separate turn, so that `usage_report` does not count it again. An undo removes both turns.
        save(connection, now, key, Batch([]), turn=new_turn(None, spent_elsewhere, None, [*copied.values()][-1]))
    turn = replace(new_turn(None, usage, metadata), kind="compaction", replaced_upto=upto)
    saved = save(connection, now, key, _with_new_ids(connection, key, summary), turn=turn)
    sessions.change(connection, key, {"summary_turn": saved.turn_no, "summarized_upto": upto})
    return _compaction(saved, saved.messages, 0 if discard else pending.session.summarized_upto)


def _copied(connection: sa.Connection, key: str) -> dict[int, str]:
    """Return by turn number the sessions that the session's copied turns come from."""
    query = sa.select(TURN.c.turn_no, TURN.c.copied_from).where(of_session(TURN, key), TURN.c.copied_from.is_not(None))
    return {row.turn_no: row.copied_from for row in connection.execute(query.order_by(TURN.c.turn_no))}


_UPTO: Final = MESSAGE.c.seq <= number("upto")
_REPLACED: Final = Rows(MESSAGE, _UPTO, ~IS_RECORD)
_RECORDS: Final = Rows(MESSAGE, _UPTO, MESSAGE.c.turn_no.is_not(None), turn_no=sa.null())
_OLD_TURNS: Final = Rows(TURN, TURN.c.turn_no <= number("turn_no"))


def _with_new_ids(connection: sa.Connection, key: str, summary: Batch) -> Batch:
    # A summary may repeat a stored message, whose id cannot be used twice, or contain the same message twice.
    stored = messages.read_by_ids(connection, key, summary.ids)
    distinct = select_unstored(summary, {}).messages
    chosen = [each.model_copy(update={"id": None}) if each.id in stored else each for each in distinct]
    return Batch(chosen, summary.threshold)


def compactions(connection: sa.Connection, now: Moment, key: str) -> list[Compaction]:
    """Read the compactions of a live session, oldest first."""
    sessions.row_of(connection, now, key)
    summaries: dict[int | None, list[Message]] = {}
    for message in messages.where(connection, key, IN_SUMMARY):
        summaries.setdefault(message.turn_no, []).append(message)
    result: list[Compaction] = []
    for turn in read(connection, key, IS_COMPACTION):
        after = result[-1].replaced_upto if result else 0
        result.append(_compaction(turn, summaries.get(turn.turn_no, []), after))
    return result


def _compaction(turn: Turn, summary: list[Message], replaced_after: int) -> Compaction:
    return Compaction(
        turn_no=turn.turn_no,
        summary=summary,
        replaced_after=replaced_after,
        replaced_upto=turn.replaced_upto or 0,
        replaced_messages=turn.metadata.get("original_message_count", 0),
        discarded=turn.metadata.get("discarded", False),
        created_at=turn.created_at,
    )
