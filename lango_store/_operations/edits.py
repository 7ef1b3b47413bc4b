"""One message of a session changed or removed.

Each edit takes a new `last_seq`, as every removal does, so that a load or a compaction in progress notices it; see
`messages.load_life`. The functions need a transaction.
"""

import operator
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import removals, sessions
from lango_store._operations.binds import IS_RECORD, MESSAGE, SESSION, TURN, column, number, of_session
from lango_store._operations.messages import MAX_SEQ
from lango_store._operations.rows import (
    MESSAGE_COLUMNS,
    MESSAGE_FIELDS,
    MESSAGE_GIVEN,
    decode_messages,
    encode_message,
    whole_number,
)
from lango_store._operations.sessions import ANYTHING, Expected
from lango_store._rows.encoding import encode_id, encode_text
from lango_store._values.model import Message, MessageRole
from lango_store.errors import MessageNotFound

SeqOrId = int | str

_REDACTED: Final = ("text", "content", "tool_calls", "extra")


def checked_seq_or_id(seq_or_id: SeqOrId) -> SeqOrId:
    """Return a seq (0 for a number that no message can have) or an id; TypeError for anything else."""
    if type(seq_or_id) is int:
        return seq_or_id if 0 < seq_or_id <= MAX_SEQ else 0
    if isinstance(seq_or_id, str):
        return str(encode_id(seq_or_id))
    raise TypeError(f"seq_or_id is {type(seq_or_id).__name__}: give the seq of a message, or its id")


def pop(connection: sa.Connection, now: datetime, key: str, *, records: bool) -> Message | None:
    """Remove the last message of the window, or with `records` of the log, and return it; None if there is none.

    Its turn ends before it, or is deleted if it began with it, unless records of the turn came later. If the turn is a
    compaction, the messages that it replaced are in the window again.
    """
    edit = _Edit(connection, now, key)
    seq = edit.last_seq_of_log() if records else edit.last_seq_of_window()
    if seq is None:
        return None
    edit.choose(seq)
    edit.delete(**edit.end_turn())
    return edit.message()


def delete(
    connection: sa.Connection, now: datetime, key: str, seq_or_id: SeqOrId, expected: Expected = ANYTHING
) -> None:
    """Delete a message of a live session; turns and summaries are unchanged."""
    edit = _Edit(connection, now, key, expected)
    edit.choose(seq_or_id)
    edit.delete()


def update(
    connection: sa.Connection,
    now: datetime,
    key: str,
    seq_or_id: SeqOrId,
    message: Message,
    expected: Expected = ANYTHING,
) -> Message:
    """Replace a message, which keeps its turn, and its id and time unless the new one has them.

    The database refuses an id that another message has.
    """
    new = encode_message(message)
    new["created_at"] = dialect_of(connection).time(new["created_at"])
    edit = _Edit(connection, now, key, expected)
    edit.choose(seq_or_id)
    edit.replace(new | {name: edit.row[name] for name in ("id", "created_at") if new[name] is None})
    return edit.message()


def redact(connection: sa.Connection, now: datetime, key: str, seq_or_id: SeqOrId, reason: str | None) -> Message:
    """Remove content, tool calls and extra from a message of a live session; a reason is its new extra."""
    new = redacted(reason)
    edit = _Edit(connection, now, key)
    edit.choose(seq_or_id)
    edit.replace(new if edit.row["tokens"] is None else new | {"tokens": 0})
    return edit.message()


def redacted(reason: str | None) -> dict[str, Any]:
    """Return the values of the columns that a redaction empties."""
    extra = {} if encode_text(reason, "reason") is None else {"redacted": reason}
    left = encode_message(Message.user(extra=extra))
    return {name: left[name] for name in _REDACTED}


_replace: Final = Statement(
    lambda _: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
        .values({name: column(MESSAGE.c[name]) for name in MESSAGE_GIVEN})
        .returning(MESSAGE.c.seq)
    )
)


class _Edit:
    """An edit of one message of a live session, which is locked."""

    def __init__(self, connection: sa.Connection, now: datetime, key: str, expected: Expected = ANYTHING) -> None:
        self._connection, self._now, self._key = connection, now, key
        found = sessions.lock(connection, now, key)
        expected.check(key, found.last_seq, found.revision)
        self.row: dict[str, Any] = {}

    def choose(self, seq_or_id: SeqOrId) -> None:
        """Read the message to edit; `MessageNotFound` if there is none."""
        value = checked_seq_or_id(seq_or_id)
        chosen = MESSAGE.c.id == value if isinstance(value, str) else MESSAGE.c.seq == value
        found = self._connection.execute(sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE, self._key), chosen))
        row = found.first()
        if row is None:
            raise MessageNotFound(self._key, seq_or_id)
        self.row = dict(zip(MESSAGE_FIELDS, row, strict=True))

    def message(self) -> Message:
        """Return the current message, or the deleted one."""
        return decode_messages(self._key, [list(self.row.values())])[0]

    def last_seq_of_log(self) -> int | None:
        """Return the seq of the last row of the log."""
        last = sa.select(sa.func.max(MESSAGE.c.seq)).where(of_session(MESSAGE, self._key))
        return self._connection.execute(last).scalar()

    def last_seq_of_window(self) -> int | None:
        """Return the seq of the last message of the window."""
        summary_turn, upto = self._session(SESSION.c.summary_turn, SESSION.c.summarized_upto)
        shown = (of_session(MESSAGE, self._key), MESSAGE.c.seq > upto, ~IS_RECORD)
        last = sa.select(sa.func.max(MESSAGE.c.seq)).where(*shown)
        # Messages appended while a summary was written come after it, with a lower seq.
        later = self._connection.execute(last.where(MESSAGE.c.turn_no.is_distinct_from(summary_turn or 0))).scalar()
        return self._connection.execute(last).scalar() if later is None else later

    def end_turn(self) -> dict[str, Any]:
        """End the message's turn before it, and return what changes in the session."""
        seq, turn_no = self.row["seq"], self.row["turn_no"]
        turn = sa.and_(of_session(TURN, self._key), TURN.c.turn_no == turn_no)
        found = self._connection.execute(sa.select(TURN.c.first_seq, TURN.c.last_seq).where(turn)).first()
        if found is None:
            return {}
        later = (MESSAGE.c.turn_no == turn_no, MESSAGE.c.seq > seq, MESSAGE.c.seq <= found.last_seq)
        rest = sa.select(MESSAGE.c.seq).where(of_session(MESSAGE, self._key), *later).limit(1)
        if found.last_seq < seq or self._connection.execute(rest).first():
            return {}
        if found.first_seq < seq:
            self._connection.execute(sa.update(TURN).where(turn).values(last_seq=seq - 1))
            return {}
        self._connection.execute(sa.delete(TURN).where(turn))
        (summary_turn,) = self._session(SESSION.c.summary_turn)
        summary = removals.latest_summary(self._key) if summary_turn == turn_no else {}
        return {"turn_count": SESSION.c.turn_count - 1} | summary

    def delete(self, **changes: Any) -> None:
        """Delete the message, and change the session with it."""
        its = (of_session(MESSAGE, self._key), MESSAGE.c.seq == self.row["seq"])
        if not self._connection.execute(sa.delete(MESSAGE).where(*its)).rowcount:
            raise sessions.not_permitted(self._key)
        self._count(removals.Removed(), **changes)

    def replace(self, new: Mapping[str, Any]) -> None:
        """Write other values into columns of the message."""
        row = self.row | dict(new)
        if not _replace.run(self._connection, row | {"key": self._key}):
            raise sessions.not_permitted(self._key)
        self._count(_counts(row))
        self.row = row

    def _count(self, new: removals.Removed, **changes: Any) -> None:
        removed = removals.Removed(*map(operator.sub, _counts(self.row), new))
        if removed.messages and self._is_consolidated():
            changes["last_consolidated"] = SESSION.c.last_consolidated - removed.messages
        removals.count(self._connection, self._now, self._key, removed, **changes)

    def _is_consolidated(self) -> bool:
        """Return whether the message is before the end of the consolidated ones."""
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
