"""Edits: update, redact, delete or pop one message, or drop the `sent` of several.

Like a removal, each edit of the log uses up a `seq`, by which a concurrent load or compaction detects the edit; see
`messages.load_with_incarnation`. All functions need a transaction.
"""

import operator
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import payloads, removals, removed, sessions, suspensions
from lango_store._operations.binds import (
    CALL,
    IS_RECORD,
    MESSAGE,
    REMOVED_MESSAGE,
    REMOVED_TURN,
    SESSION,
    TURN,
    column,
    number,
    of_session,
    text,
)
from lango_store._operations.messages import MAX_SEQ, check_seq
from lango_store._operations.rows import (
    MESSAGE_FIELDS,
    MESSAGE_INPUT_FIELDS,
    encode_message,
    whole_number,
)
from lango_store._operations.sessions import ANYTHING, Expected
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import encode_id, encode_text
from lango_store._rows.payloads import move
from lango_store._values.model import Message, MessageRole
from lango_store.errors import InvalidMessage, MessageNotFound

SeqOrId = int | str

_REDACTED: Final = ("text", "content", "sent", "tool_calls", "extra", "payloads")
_REDACTED_CONTENT: Final = "(redacted)"


def checked_seq_or_id(seq_or_id: SeqOrId) -> SeqOrId:
    """Return a valid seq or id; a number that cannot be a seq becomes 0, which no message has.

    Raises:
        InvalidValue: The text cannot be an id.
        TypeError: The value is neither a number nor text.
    """
    if type(seq_or_id) is int:
        return seq_or_id if 0 < seq_or_id <= MAX_SEQ else 0
    if isinstance(seq_or_id, str):
        return str(encode_id(seq_or_id))
    raise TypeError(f"seq_or_id is {type(seq_or_id).__name__}: give the seq of a message, or its id")


def pop(connection: sa.Connection, now: datetime, key: str, *, records: bool) -> Message | None:
    """Delete and return the last message of the window, or with `records` the last row of the log; None if empty.

    If the message was the last row of its turn, the turn becomes shorter; a turn that began with it is deleted.
    A compaction whose summary has no messages left is removed, unless it discarded the messages that it replaced.
    """
    edit = _Edit(connection, now, key)
    seq = edit.last_seq_of_log() if records else edit.last_seq_of_window()
    if seq is None:
        return None
    edit.choose(seq)
    message = edit.message()
    edit.delete("pop")
    return message


def delete(
    connection: sa.Connection, now: datetime, key: str, seq_or_id: SeqOrId, expected: Expected = ANYTHING
) -> None:
    """Delete a message of a live session.

    The turn of the message does not change, with one exception: a compaction whose summary has no messages left is
    removed, unless it discarded the messages that it replaced.
    """
    edit = _Edit(connection, now, key, expected)
    edit.choose(seq_or_id)
    edit.delete("delete")


def update(
    connection: sa.Connection,
    now: datetime,
    key: str,
    seq_or_id: SeqOrId,
    message: Message,
    expected: Expected = ANYTHING,
    least: int | None = None,
) -> Message:
    """Replace a message. Its turn does not change; its id and time change only if the new message sets them.

    The database refuses an id that another message of the session has. Strings with at
    least `least` characters become payloads; with None, no strings do.

    Raises:
        InvalidMessage: The message cannot be stored, a message of a summary would become
            a record, or tool calls would change although one of them was begun.
    """
    new = encode_message(message)
    new["created_at"] = dialect_of(connection).time(new["created_at"])
    edit = _Edit(connection, now, key, expected)
    edit.choose(seq_or_id)
    record = MessageRole.RECORD.value
    if new["role"] == record and edit.row["role"] != record and edit.is_in_summary():
        raise InvalidMessage(
            "role", "a summary without messages would leave an empty window: delete the message instead"
        )
    may_differ = new["tool_calls"] != edit.row["tool_calls"] or edit.row["payloads"] is not None
    if may_differ and edit.has_begun_calls() and message.tool_calls != edit.message().tool_calls:
        raise InvalidMessage("tool_calls", "a call of the message was begun: delete the message, or append another one")
    if least is not None:
        payloads.insert(connection, key, move(new, least))
    edit.replace("update", new | {name: edit.row[name] for name in ("id", "created_at") if new[name] is None})
    return edit.message()


def redact(connection: sa.Connection, now: datetime, key: str, seq_or_id: SeqOrId, reason: str | None) -> Message:
    """Remove `content`, `sent`, `tool_calls` and `extra` of a message; store the reason in `extra`.

    The content becomes the text `(redacted)`; that of a record becomes None.

    The session must be live. Copies of earlier versions of the message are redacted too. If the message was removed
    from the log, only its copies are redacted. Suspensions of its calls lose their state, reason and answer.
    """
    encode_text(reason, "reason")
    edit = _Edit(connection, now, key)
    try:
        edit.choose(seq_or_id)
    except MessageNotFound:
        edit.choose(seq_or_id, REMOVED_MESSAGE)
    new = redacted(reason, edit.row["role"])
    copies = {"key": key, "seq": edit.row["seq"], "chosen_id": seq_or_id if isinstance(seq_or_id, str) else None}
    _redact_copies.run_many(connection, [new | copies])
    suspensions.redact(connection, key, edit.row["seq"])
    if edit.row["tokens"] is not None:
        new["tokens"] = 0
    if edit.rows is MESSAGE:
        edit.replace("redact", new)
    else:
        edit.row |= new
        sessions.lock_any(connection, key)
        payloads.release(connection, key)
    return edit.message()


def drop_sent(connection: sa.Connection, now: datetime, key: str, before: int) -> int:
    """Delete `sent` from a live session's messages with a seq below `before`; return how many messages had one."""
    check_seq("before", before)
    last_seq = sessions.lock(connection, now, key).last_seq
    those = (of_session(MESSAGE, key), MESSAGE.c.seq < before, MESSAGE.c.sent.is_not(None))
    dropped = connection.execute(sa.update(MESSAGE).where(*those).values(sent=sa.null())).rowcount
    if dropped:
        removals.insert_change(connection, now, key, last_seq + 1, "drop_sent", before)
        removals.decrease_counters(connection, now, key, removals.Removed())
    return dropped


def redacted(reason: str | None, role: str) -> dict[str, Any]:
    """Return the new values of the columns that a redaction of a message with this role replaces, except `tokens`."""
    extra = {} if encode_text(reason, "reason") is None else {"redacted": reason}
    # Providers refuse a message without content. No prompt has records.
    content = None if role == MessageRole.RECORD.value else _REDACTED_CONTENT
    row = encode_message(Message.user(content, extra=extra))
    return {name: row[name] for name in _REDACTED}


_redact_copies: Final = Statement(
    lambda _: (
        sa.update(REMOVED_MESSAGE)
        .where(
            of_session(REMOVED_MESSAGE),
            sa.or_(REMOVED_MESSAGE.c.seq == number("seq"), REMOVED_MESSAGE.c.id == text("chosen_id")),
        )
        .values({name: column(REMOVED_MESSAGE.c[name]) for name in _REDACTED})
        .values(tokens=REMOVED_MESSAGE.c.tokens * sa.literal_column("0"))
    )
)

# If an edit sets another `created_at`, the time at which the message entered the log must not be lost.
_LOGGED_AT: Final = sa.case(
    (MESSAGE.c.created_at == column(MESSAGE.c.created_at), MESSAGE.c.logged_at),
    else_=sa.func.coalesce(MESSAGE.c.logged_at, MESSAGE.c.created_at),
)

_replace: Final = Statement(
    lambda _: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
        .values({name: column(MESSAGE.c[name]) for name in MESSAGE_INPUT_FIELDS})
        .values(logged_at=_LOGGED_AT)
        .returning(MESSAGE.c.seq)
    )
)


class _Edit:
    """An edit of one message; locks the session, which must be live."""

    def __init__(self, connection: sa.Connection, now: datetime, key: str, expected: Expected = ANYTHING) -> None:
        self._connection, self._now, self._key = connection, now, key
        session = sessions.lock(connection, now, key)
        expected.check(key, session.last_seq, session.revision)
        self._seq = session.last_seq + 1
        self.row: dict[str, Any] = {}
        self.rows = MESSAGE

    def choose(self, seq_or_id: SeqOrId, rows: sa.Table = MESSAGE) -> None:
        """Read the message or, if `rows` has copies, the newest copy; raise `MessageNotFound` if there is none."""
        value = checked_seq_or_id(seq_or_id)
        chosen = rows.c.id == value if isinstance(value, str) else rows.c.seq == value
        columns = [as_stored(rows.c[name]) for name in MESSAGE_FIELDS]
        query = sa.select(*columns).where(of_session(rows, self._key), chosen)
        if rows is REMOVED_MESSAGE:
            query = query.order_by(rows.c.removed_at.desc()).limit(1)
        row = self._connection.execute(query).first()
        if row is None:
            raise MessageNotFound(self._key, seq_or_id)
        self.row, self.rows = dict(zip(MESSAGE_FIELDS, row, strict=True)), rows

    def message(self) -> Message:
        """Return the chosen message, with the edits so far."""
        return payloads.decode_rows(self._connection, self._key, [list(self.row.values())])[0]

    def last_seq_of_log(self) -> int | None:
        """Return the seq of the last row of the log, or None."""
        last = sa.select(sa.func.max(MESSAGE.c.seq)).where(of_session(MESSAGE, self._key))
        return self._connection.execute(last).scalar()

    def last_seq_of_window(self) -> int | None:
        """Return the seq of the last message of the window, or None."""
        summary_turn, upto = self._session(SESSION.c.summary_turn, SESSION.c.summarized_upto)
        in_window = (of_session(MESSAGE, self._key), MESSAGE.c.seq > upto, ~IS_RECORD)
        last = sa.select(sa.func.max(MESSAGE.c.seq)).where(*in_window)
        # Messages appended during the compaction follow the summary in the window, but their seq is lower.
        later = self._connection.execute(last.where(MESSAGE.c.turn_no.is_distinct_from(summary_turn or 0))).scalar()
        return self._connection.execute(last).scalar() if later is None else later

    def is_in_summary(self) -> bool:
        """Return True if the message belongs to a summary or, for a removed message, belonged to one."""
        for turns in (TURN, REMOVED_TURN):
            is_turn = (of_session(turns, self._key), turns.c.turn_no == self.row["turn_no"])
            query = sa.select(turns.c.kind).where(*is_turn, turns.c.kind == "compaction").limit(1)
            if self._connection.execute(query).first():
                return True
        return False

    def has_begun_calls(self) -> bool:
        """Return True if a call that the message asks for was begun."""
        begun = (of_session(CALL, self._key), CALL.c.message_seq == self.row["seq"])
        return self._connection.execute(sa.select(CALL.c.position).where(*begun).limit(1)).first() is not None

    def delete(self, kind: Literal["pop", "delete"]) -> None:
        """Delete the message. A compaction without messages is removed, unless it discarded the replaced messages."""
        removed.keep(self._connection, self._key, MESSAGE, MESSAGE.c.seq == self.row["seq"])
        is_message = (of_session(MESSAGE, self._key), MESSAGE.c.seq == self.row["seq"])
        if not self._connection.execute(sa.delete(MESSAGE).where(*is_message)).rowcount:
            raise sessions.not_permitted(self._key)
        changes: dict[str, Any] = {}
        turn = self._turn()
        if turn is not None:
            if turn.kind == "compaction" and not self._has_rows(~IS_RECORD):
                discarded = removals.has_discarded(self._key, turn.turn_no, turn.metadata)
                if not discarded:
                    changes = removals.remove_compaction(self._connection, self._key, turn.turn_no)
            if kind == "pop" and not changes:
                changes = self._end_turn(turn)
        self._count(kind, removals.Removed(), **changes)

    def _end_turn(self, turn: Any) -> dict[str, Any]:
        """Shorten or delete the turn of a popped message; return the changes of the session's counters."""
        seq = self.row["seq"]
        if turn.last_seq < seq or self._has_rows(MESSAGE.c.seq > seq, MESSAGE.c.seq <= turn.last_seq):
            return {}
        is_turn = sa.and_(of_session(TURN, self._key), TURN.c.turn_no == turn.turn_no)
        if turn.first_seq < seq or turn.kind == "compaction":
            removed.keep(self._connection, self._key, TURN, is_turn, replaced=True)
            self._connection.execute(sa.update(TURN).where(is_turn).values(last_seq=seq - 1))
            return {}
        removals.delete_turns(self._connection, self._key, is_turn)
        return {"turn_count": SESSION.c.turn_count - 1}

    def _turn(self) -> Any:
        """Return the row of the message's turn, or None."""
        if self.row["turn_no"] is None:
            return None
        columns = (TURN.c.turn_no, TURN.c.kind, TURN.c.first_seq, TURN.c.last_seq, as_stored(TURN.c.metadata))
        is_turn = (of_session(TURN, self._key), TURN.c.turn_no == self.row["turn_no"])
        return self._connection.execute(sa.select(*columns).where(*is_turn)).first()

    def _has_rows(self, *conditions: sa.ColumnElement[bool]) -> bool:
        """Return True if a stored row of the message's turn meets the conditions."""
        of_turn = (of_session(MESSAGE, self._key), MESSAGE.c.turn_no == self.row["turn_no"])
        rows = sa.select(MESSAGE.c.seq).where(*of_turn, *conditions).limit(1)
        return self._connection.execute(rows).first() is not None

    def replace(self, kind: Literal["update", "redact"], new: Mapping[str, Any]) -> None:
        """Set columns of the message to new values."""
        row = self.row | dict(new)
        if kind == "update":
            removed.keep(self._connection, self._key, MESSAGE, MESSAGE.c.seq == row["seq"], replaced=True)
        if not _replace.run(self._connection, row | {"key": self._key}):
            raise sessions.not_permitted(self._key)
        self._count(kind, _counts(row))
        self.row = row

    def _count(self, kind: removals.Edit, new: removals.Removed, **changes: Any) -> None:
        deleted = removals.Removed(*map(operator.sub, _counts(self.row), new))
        if deleted.messages and self._is_consolidated():
            changes["last_consolidated"] = SESSION.c.last_consolidated - deleted.messages
        moves = kind != "update" or deleted.messages != 0
        removals.insert_change(
            self._connection, self._now, self._key, self._seq, kind, self.row["seq"], moves_consolidated=moves
        )
        removals.decrease_counters(self._connection, self._now, self._key, deleted, **changes)

    def _is_consolidated(self) -> bool:
        """Return True if the message is one of the first `last_consolidated` messages."""
        (stored,) = self._session(SESSION.c.last_consolidated)
        consolidated = whole_number(self._key, "last_consolidated", stored)
        before = (of_session(MESSAGE, self._key), MESSAGE.c.seq < self.row["seq"], ~IS_RECORD)
        count = sa.select(sa.func.count()).select_from(MESSAGE).where(*before)
        return consolidated > 0 and self._connection.execute(count).scalar_one() < consolidated

    def _session(self, *columns: sa.ColumnElement[Any]) -> Any:
        return self._connection.execute(sa.select(*columns).where(of_session(SESSION, self._key))).one()


def _counts(row: Mapping[str, Any]) -> removals.Removed:
    if row["role"] == MessageRole.RECORD.value:
        return removals.Removed(records=1)
    return removals.Removed(messages=1, tokens=row["tokens"] if isinstance(row["tokens"], int) else 0)
