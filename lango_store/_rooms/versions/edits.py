"""Edits: update, redact, delete or pop one message, or drop the `sent` of several. All functions need a transaction."""

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    BEFORE_ANY_EXPIRY,
    IS_RECORD,
    MESSAGE,
    SESSION,
    TURN,
    column,
    number,
    of_session,
    text,
)
from lango_store._operations.log import payloads, removals
from lango_store._operations.log.changes import LogChange, Rows
from lango_store._operations.log.messages import MAX_SEQ, check_seq
from lango_store._operations.rows import (
    MESSAGE_FIELDS,
    MESSAGE_INPUT_FIELDS,
    REDACTED,
    encode_message,
    encode_redacted,
    whole_number,
)
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._operations.session_tables import MESSAGES, OF_MESSAGES
from lango_store._rooms.versions.tables import REMOVED_TURN
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import encode_id, encode_text
from lango_store._rows.payloads import Threshold, move
from lango_store._values.model import ChangeKind, Message, MessageRole
from lango_store.errors import InvalidMessage, MessageNotFound

SeqOrId = int | str

Replace = Callable[[str], str]
"""Returns what a redaction keeps of a text."""


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
    with edit.change("pop") as change:
        turn = edit.delete(change)
        if turn is not None:
            edit.end_turn(change, turn)
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
    with edit.change("delete") as change:
        edit.delete(change)


def update(
    connection: sa.Connection,
    now: datetime,
    key: str,
    seq_or_id: SeqOrId,
    message: Message,
    expected: Expected = ANYTHING,
    threshold: Threshold | None = None,
) -> Message:
    """Replace a message. Its turn does not change; its id and time change only if the new message sets them.

    The database refuses an id that another message of the session has. With
    `threshold`, large strings become payloads.

    Raises:
        InvalidMessage: The message cannot be stored, a message of a summary would become
            a record, or tool calls would change although one of them was begun.
    """
    new = encode_message(message)
    new["created_at"] = dialect_of(connection).time(new["created_at"])
    edit = _Edit(connection, now, key, expected)
    edit.choose(seq_or_id)
    if hides(edit.row, new) and edit.is_in_summary():
        raise empties_window()
    if may_change_calls(edit.row, new) and edit.has_fixed_calls() and message.tool_calls != edit.message().tool_calls:
        raise changes_begun_call()
    if threshold is not None:
        payloads.insert(connection, key, move(new, threshold))
    with edit.change("update") as change:
        edit.replace(change, new | {name: edit.row[name] for name in ("id", "created_at") if new[name] is None})
        change.moves_consolidated = change.messages != 0
    return edit.message()


def hides(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if an edit turns a message into a record."""
    record = MessageRole.RECORD.value
    return bool(new["role"] == record and old["role"] != record)


def may_change_calls(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two versions of a row can have different tool calls."""
    return new["tool_calls"] != old["tool_calls"] or old["payloads"] is not None


def empties_window() -> InvalidMessage:
    """Return the error for an edit that hides a message of a summary."""
    reason = "a summary without messages would leave an empty window: delete the message instead"
    return InvalidMessage("role", reason)


def changes_begun_call() -> InvalidMessage:
    """Return the error for an edit that changes the tool calls of a message although one was begun."""
    reason = "a call of the message was begun: delete the message, or append another one"
    return InvalidMessage("tool_calls", reason)


def decoded(connection: sa.Connection, key: str, rows: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Decode rows with the columns of messages."""
    return payloads.decode_rows(connection, key, [[row[name] for name in MESSAGE_FIELDS] for row in rows])


def redact(
    connection: sa.Connection,
    now: datetime,
    key: str,
    seq_or_id: SeqOrId,
    reason: str | None,
    *,
    replace: Replace | None = None,
    threshold: Threshold | None = None,
    expired: bool = False,
) -> Message:
    """Remove all fields of a message that do not identify it, such as `content`; store the reason in `extra`.

    The content becomes the text `(redacted)`; that of a record becomes None.

    The session must be live, unless `expired` is True. Copies of earlier versions of the message are redacted too. If
    the message was removed from the log, only its copies are redacted. Rows of other tables that belong to it lose what
    they say. With `replace`, the message keeps what this function returns for its texts; if it changes none, nothing is
    redacted.
    """
    encode_text(reason, "reason")
    edit = _Edit(connection, now, key, expired=expired)
    edit.choose(seq_or_id, *MESSAGES)
    message = edit.message() if replace is not None else None
    kept = None if message is None or replace is None else with_texts(message, replace)
    if kept is not None and kept == message:
        return kept
    chosen_id = seq_or_id if isinstance(seq_or_id, str) else None
    new = redact_copies(connection, key, edit.row["seq"], reason, edit.row["role"], chosen_id)
    for statement in _redact_rows:
        statement.run_many(connection, [{"key": key, "seq": edit.row["seq"]}])
    if kept is not None:
        extra = kept.extra if reason is None else kept.extra | {"redacted": reason}
        encoded = encode_message(kept.model_copy(update={"extra": extra}))
        if threshold is not None:
            payloads.insert(connection, key, move(encoded, threshold))
        new = {name: encoded[name] for name in REDACTED}
    elif edit.row["tokens"] is not None:
        new["tokens"] = 0
    if edit.rows is MESSAGE:
        with edit.change("redact") as change:
            edit.replace(change, new)
    else:
        edit.row |= new
        sessions.lock_any(connection, key)
        payloads.release(connection, key)
    return edit.message()


def with_texts(message: Message, replace: Replace) -> Message:
    """Return a copy of a message with the texts and numbers in its fields replaced."""
    calls = []
    for call in message.tool_calls:
        outputs = {"output": _replaced(call.output, replace)} if call.answered else {}
        fields = {"arguments": _replaced(call.arguments, replace), "extra": _replaced(call.extra, replace)}
        calls.append(call.model_copy(update=fields | outputs))
    fields = {name: _replaced(getattr(message, name), replace) for name in ("content", "extra", "sent")}
    return message.model_copy(update=fields | {"tool_calls": calls})


def _replaced(value: Any, replace: Replace) -> Any:
    if isinstance(value, dict):
        return {replace(name): _replaced(item, replace) for name, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, replace) for item in value]
    if value is None or isinstance(value, bool):
        return value
    text = replace(str(value))
    return value if text == str(value) else text


def redact_copies(
    connection: sa.Connection, key: str, seq: int, reason: str | None, role: str, chosen_id: str | None = None
) -> dict[str, Any]:
    """Redact the removed versions of a message, and return the new values of the redacted columns."""
    new = encode_redacted(reason, role)
    for statement in _redact_copies:
        statement.run_many(connection, [new | {"key": key, "seq": seq, "chosen_id": chosen_id}])
    return new


_redact_rows: Final = [
    Statement(
        sa.update(each.table)
        .where(of_session(each.table), each.message_seq == number("seq"))
        .values(dict.fromkeys(each.stored.redacted, sa.null()))
    )
    for each in OF_MESSAGES
    if each.stored.redacted
]


def drop_sent(connection: sa.Connection, now: datetime, key: str, before: int) -> int:
    """Delete `sent` from a live session's messages with a seq below `before`; return how many messages had one."""
    check_seq("before", before)
    seq = sessions.lock(connection, now, key).last_seq + 1
    with LogChange(connection, now, key, "drop_sent", seq, before, unless_empty=True) as change:
        return change.replace(_SENT, before=before)


_SENT: Final = Rows(MESSAGE, MESSAGE.c.seq < number("before"), MESSAGE.c.sent.is_not(None), sent=sa.null())


_redact_copies: Final = [
    Statement(
        sa.update(rows)
        .where(of_session(rows), sa.or_(rows.c.seq == number("seq"), rows.c.id == text("chosen_id")))
        .values({name: column(rows.c[name]) for name in REDACTED})
        .values(tokens=rows.c.tokens * sa.literal_column("0"))
    )
    for rows in MESSAGES
    if rows is not MESSAGE
]

# If an edit sets another `created_at`, the time at which the message entered the log must not be lost.
_LOGGED_AT: Final = sa.case(
    (MESSAGE.c.created_at == column(MESSAGE.c.created_at), MESSAGE.c.logged_at),
    else_=sa.func.coalesce(MESSAGE.c.logged_at, MESSAGE.c.created_at),
)

CHOSEN: Final = MESSAGE.c.seq == number("seq")
_MESSAGE: Final = Rows(MESSAGE, CHOSEN)
EDITED_VALUES: Final = {name: column(MESSAGE.c[name]) for name in MESSAGE_INPUT_FIELDS} | {"logged_at": _LOGGED_AT}
_EDITED: Final = Rows(MESSAGE, CHOSEN, **EDITED_VALUES)
_TURN: Final = Rows(TURN, TURN.c.turn_no == number("turn_no"))
_SHORTENED: Final = Rows(TURN, TURN.c.turn_no == number("turn_no"), last_seq=number("last_seq"))


@functools.cache
def _choose(rows: sa.Table, name: str) -> Statement:
    query = sa.select(*(as_stored(rows.c[field]) for field in MESSAGE_FIELDS)).where(of_session(rows))
    query = query.where(rows.c[name] == column(rows.c[name]))
    return Statement(query.order_by(rows.c.removed_at.desc()).limit(1) if "removed_at" in rows.c else query)


_last: Final = Statement(sa.select(sa.func.max(MESSAGE.c.seq)).where(of_session(MESSAGE)))
_session: Final = Statement(
    sa.select(SESSION.c.summary_turn, SESSION.c.summarized_upto, SESSION.c.last_consolidated).where(of_session(SESSION))
)
_IN_WINDOW: Final = (of_session(MESSAGE), MESSAGE.c.seq > number("upto"), ~IS_RECORD)
_last_of_window: Final = Statement(sa.select(sa.func.max(MESSAGE.c.seq)).where(*_IN_WINDOW))
# Messages appended during the compaction follow the summary in the window, but their seq is lower.
_last_after_summary: Final = Statement(
    sa.select(sa.func.max(MESSAGE.c.seq)).where(*_IN_WINDOW, MESSAGE.c.turn_no.is_distinct_from(number("summary_turn")))
)
_compactions: Final = [
    Statement(
        sa.select(turns.c.turn_no)
        .where(of_session(turns), turns.c.turn_no == number("turn_no"), turns.c.kind == "compaction")
        .limit(1)
    )
    for turns in (TURN, REMOVED_TURN)
]
_fixing: Final = [
    Statement(sa.select(each.message_seq).where(of_session(each.table), each.message_seq == number("seq")).limit(1))
    for each in OF_MESSAGES
    if each.stored.fixes_calls
]
_turn: Final = Statement(
    sa.select(TURN.c.kind, TURN.c.first_seq, TURN.c.last_seq, as_stored(TURN.c.metadata)).where(
        of_session(TURN), TURN.c.turn_no == number("turn_no")
    )
)
_OF_TURN: Final = (of_session(MESSAGE), MESSAGE.c.turn_no == number("turn_no"))
_message_of_turn: Final = Statement(sa.select(MESSAGE.c.seq).where(*_OF_TURN, ~IS_RECORD).limit(1))
_later_of_turn: Final = Statement(
    sa.select(MESSAGE.c.seq)
    .where(*_OF_TURN, MESSAGE.c.seq > number("seq"), MESSAGE.c.seq <= number("last_seq"))
    .limit(1)
)
_earlier: Final = Statement(
    sa.select(sa.func.count())
    .select_from(MESSAGE)
    .where(of_session(MESSAGE), MESSAGE.c.seq < number("seq"), ~IS_RECORD)
)


_COMPACTION: Final = Rows(TURN, TURN.c.turn_no == number("turn_no"))
_SUMMARY: Final = Rows(MESSAGE, MESSAGE.c.turn_no == number("turn_no"), turn_no=sa.null())


def remove_compaction(change: LogChange, turn_no: int) -> None:
    """Delete a compaction, so that its replaced messages are in the window again."""
    change.delete(_COMPACTION, turn_no=turn_no)
    change.replace(_SUMMARY, turn_no=turn_no)


class _Edit:
    """An edit of one message; locks the session, which must be live unless `expired` is True."""

    def __init__(
        self,
        connection: sa.Connection,
        now: datetime,
        key: str,
        expected: Expected = ANYTHING,
        *,
        expired: bool = False,
    ) -> None:
        self._connection, self._now, self._key = connection, now, key
        session = sessions.lock(connection, BEFORE_ANY_EXPIRY if expired else now, key)
        expected.check(key, session)
        self._seq = session.last_seq + 1
        self.row: dict[str, Any] = {}
        self.rows = MESSAGE

    def _select(self, statement: Statement, **bound: Any) -> Any:
        """Return the first row of a statement, or None."""
        rows = statement.run(self._connection, {"key": self._key, "seq": self.row.get("seq"), **bound})
        return rows[0] if rows else None

    def choose(self, seq_or_id: SeqOrId, *tables: sa.Table) -> None:
        """Read the message from the first table that has it; of copies, the newest. Defaults to the log.

        Raises:
            MessageNotFound: There is no such message.
        """
        value = checked_seq_or_id(seq_or_id)
        name = "id" if isinstance(value, str) else "seq"
        for rows in tables or (MESSAGE,):
            if (row := self._select(_choose(rows, name), **{name: value})) is not None:
                self.row, self.rows = dict(zip(MESSAGE_FIELDS, row, strict=True)), rows
                return
        raise MessageNotFound(self._key, seq_or_id)

    def message(self) -> Message:
        """Return the chosen message, with the edits so far."""
        return decoded(self._connection, self._key, [self.row])[0]

    def last_seq_of_log(self) -> int | None:
        """Return the seq of the last row of the log, or None."""
        return self._select(_last)[0]  # type: ignore[no-any-return]

    def last_seq_of_window(self) -> int | None:
        """Return the seq of the last message of the window, or None."""
        summary_turn, upto, _ = self._select(_session)
        bound = {"upto": upto, "summary_turn": summary_turn or 0}
        later = self._select(_last_after_summary, **bound)[0]
        return self._select(_last_of_window, **bound)[0] if later is None else later  # type: ignore[no-any-return]

    def is_in_summary(self) -> bool:
        """Return True if the message belongs to a summary or, for a removed message, belonged to one."""
        return any(self._select(each, turn_no=self.row["turn_no"]) for each in _compactions)

    def has_fixed_calls(self) -> bool:
        """Return True if the tool calls of the message may not change, because one was begun."""
        return any(self._select(each) is not None for each in _fixing)

    def change(self, kind: ChangeKind) -> LogChange:
        """Begin the change of the message."""
        return LogChange(self._connection, self._now, self._key, kind, self._seq, self.row["seq"])

    def delete(self, change: LogChange) -> Any:
        """Delete the message, and return its turn, if the turn is still stored.

        A compaction without messages is removed, unless it discarded the replaced messages.
        """
        if not change.delete(_MESSAGE, seq=self.row["seq"]):
            raise sessions.not_permitted(self._key)
        self._move_consolidated(change)
        turn_no = self.row["turn_no"]
        turn = None if turn_no is None else self._select(_turn, turn_no=turn_no)
        if turn is None or turn[0] != "compaction" or self._select(_message_of_turn, turn_no=turn_no) is not None:
            return turn
        if removals.has_discarded(self._key, turn_no, turn[3]):
            return turn
        remove_compaction(change, turn_no)
        return None

    def end_turn(self, change: LogChange, turn: Any) -> None:
        """Shorten or delete the turn of a popped message."""
        seq, turn_no = self.row["seq"], self.row["turn_no"]
        kind, first_seq, last_seq, _ = turn
        if last_seq < seq or self._select(_later_of_turn, turn_no=turn_no, last_seq=last_seq) is not None:
            return
        if first_seq < seq or kind == "compaction":
            change.replace(_SHORTENED, turn_no=turn_no, last_seq=seq - 1)
        else:
            change.delete(_TURN, turn_no=turn_no)

    def replace(self, change: LogChange, new: Mapping[str, Any]) -> None:
        """Set columns of the message to new values."""
        row = self.row | dict(new)
        if not change.replace(_EDITED, **row):
            raise sessions.not_permitted(self._key)
        self._move_consolidated(change)
        self.row = row

    def _move_consolidated(self, change: LogChange) -> None:
        """If the message was, or now is, one of the first `last_consolidated` messages, adapt this number."""
        if not change.messages:
            return
        consolidated = whole_number(self._key, "last_consolidated", self._select(_session)[2])
        if consolidated > 0 and self._select(_earlier)[0] < consolidated:
            change.unconsolidated = change.messages
