"""One message changed or removed where it is; each edit uses one `seq` up, as every removal does.

So a load, and a summary that is being written, notice that the session is not what it was: see `messages.load_life`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import edit_statements as statements
from lango_store._operations import sessions
from lango_store._operations.messages import MAX_SEQ
from lango_store._operations.rows import MESSAGE_FIELDS, decode_messages, encode_message
from lango_store._operations.sessions import ANYTHING, Expected
from lango_store._rows.encoding import checked_key, encode_id, encode_text
from lango_store._values.model import Message
from lango_store.errors import MessageNotFound

SeqOrId = int | str


def checked_seq_or_id(seq_or_id: SeqOrId) -> SeqOrId:
    """Return a seq, 0 for a number that is none, or an id; TypeError for anything else."""
    if type(seq_or_id) is int:
        return seq_or_id if 0 < seq_or_id <= MAX_SEQ else 0
    if isinstance(seq_or_id, str):
        return str(encode_id(seq_or_id))
    raise TypeError(f"seq_or_id is {type(seq_or_id).__name__}: give the seq of a message, or its id")


def pop(connection: sa.Connection, now: Moment, key: str, *, records: bool) -> Message | None:
    """Remove the last message of the window, or with `records` of the log, and return it; None if there is none.

    Its turn ends before it, or goes if it began with it, unless records of the turn came later. With a summary that
    goes, what it replaced is in the window again, unless that was discarded. Needs a transaction.
    """
    edit = _Edit(connection, now, key)
    if not edit.choose("last of the log" if records else "last of the window"):
        return None
    edit.write(statements.delete_message)
    if edit.row["emptied"] is not None:
        edit.write_turn(statements.delete_turn)
    elif edit.row["ends"] is not None:
        edit.write_turn(statements.shorten_turn)
    edit.write(statements.count_without_turn)
    return edit.message()


def delete(connection: sa.Connection, now: Moment, key: str, seq_or_id: SeqOrId, expected: Expected = ANYTHING) -> None:
    """Delete a message of a live session; turns and summaries stay as they are. Needs a transaction."""
    edit = _edit_of(connection, now, key, seq_or_id, expected)
    edit.write(statements.delete_message)
    edit.write(statements.count_without)


def update(
    connection: sa.Connection,
    now: Moment,
    key: str,
    seq_or_id: SeqOrId,
    message: Message,
    expected: Expected = ANYTHING,
) -> Message:
    """Put a message in the place of another, which leaves it its turn, and its id and time unless it has its own.

    Needs a transaction, and a caller who says what an id that is stored already means.
    """
    new = encode_message(message)
    new["created_at"] = dialect_of(connection).time(new["created_at"])
    edit = _edit_of(connection, now, key, seq_or_id, expected)
    edit.write(statements.replace_message, new)
    edit.write(statements.count_instead, new)
    return edit.message(new | {name: edit.row[name] for name in ("id", "created_at") if new[name] is None})


def redact(connection: sa.Connection, now: Moment, key: str, seq_or_id: SeqOrId, reason: str | None) -> Message:
    """Remove content, tool calls and extra from a message of a live session; a reason is its new extra."""
    new = redacted(reason)
    edit = _edit_of(connection, now, key, seq_or_id)
    edit.write(statements.redact_message, new)
    edit.write(statements.count_redacted)
    return edit.message(new if edit.row["tokens"] is None else new | {"tokens": 0})


def redacted(reason: str | None) -> dict[str, Any]:
    """Return what the columns that a redaction empties hold afterwards."""
    extra = {} if encode_text(reason, "reason") is None else {"redacted": reason}
    left = encode_message(Message.user(extra=extra))
    return {name: left[name] for name in statements.REDACTED}


_NO_VALUES: Final[Mapping[str, Any]] = {}


class _Edit:
    """An edit of one message of a live session, which is locked."""

    def __init__(self, connection: sa.Connection, now: Moment, key: str, expected: Expected = ANYTHING) -> None:
        self._connection, self._key = connection, checked_key(key)
        self._bound: dict[str, Any] = {"key": key, "now": dialect_of(connection).time(now)}
        self.row: dict[str, Any] = {}
        found = sessions.lock(connection, now, key)
        expected.check(key, found.last_seq, found.revision)

    def choose(self, by: str, value: SeqOrId | None = None) -> bool:
        """Read the message to edit; False if there is none."""
        rows = statements.choose[by].run(self._connection, self._bound | {by: value})
        if rows:
            self.row = dict(zip(statements.CHOSEN, rows[0], strict=True))
            self._bound |= {f"chosen_{name}": value for name, value in self.row.items()}
            if not isinstance(self.row["tokens"], int):
                self._bound["chosen_tokens"] = None  # damaged, and counted as none
        return bool(rows)

    def write(self, statement: Statement, new: Mapping[str, Any] = _NO_VALUES) -> None:
        """Run a statement on its row or the session's; `NotPermitted` if the database keeps that as it is."""
        if not statement.run(self._connection, self._bound | {f"new_{name}": value for name, value in new.items()}):
            raise sessions.not_permitted(self._key)

    def write_turn(self, statement: Statement) -> None:
        """Run a statement on its turn."""
        statement.run_many(self._connection, [self._bound])

    def message(self, new: Mapping[str, Any] = _NO_VALUES) -> Message:
        """Return the message as it was, or with other columns."""
        row = {name: self.row[name] for name in MESSAGE_FIELDS}
        return decode_messages(self._key, [list((row | dict(new)).values())])[0]


def _edit_of(
    connection: sa.Connection, now: Moment, key: str, seq_or_id: SeqOrId, expected: Expected = ANYTHING
) -> _Edit:
    value = checked_seq_or_id(seq_or_id)
    edit = _Edit(connection, now, key, expected)
    if not edit.choose("id" if isinstance(value, str) else "seq", value):
        raise MessageNotFound(key, seq_or_id)
    return edit
