"""Edits of several messages in one change: replace or delete them. All functions need a transaction."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    IS_COMPACTION,
    IS_RECORD,
    MESSAGE,
    SESSION,
    TURN,
    number,
    numbers_of_list,
    of_session,
)
from lango_store._operations.log import payloads, removals
from lango_store._operations.log.changes import LogChange, Rows
from lango_store._operations.log.messages import MAX_SEQ
from lango_store._operations.rows import MESSAGE_COLUMNS, MESSAGE_FIELDS, SEQ, encode_message, whole_number
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._operations.session_tables import OF_MESSAGES
from lango_store._rooms.versions.edits import (
    CHOSEN,
    EDITED_VALUES,
    changes_begun_call,
    checked_seq_or_id,
    decoded,
    empties_window,
    hides,
    may_change_calls,
    remove_compaction,
)
from lango_store._rows.columns import as_stored
from lango_store._rows.payloads import Threshold, move
from lango_store._values.model import ChangeKind, Message, MessageRole
from lango_store.errors import MessageNotFound


def update_all(
    connection: sa.Connection,
    now: datetime,
    key: str,
    messages: Sequence[Message],
    expected: Expected = ANYTHING,
    threshold: Threshold | None = None,
) -> list[Message]:
    """Replace the messages with the seqs of `messages` in one change, as `update` replaces one."""
    new = {message.seq: encode_message(message) for message in messages}
    if len(new) < len(messages):
        raise ValueError("two messages have the same seq: give each message once")
    edit = _Edit(connection, now, key, [*new], expected)
    for message in messages:
        row, old = new[message.seq], edit.rows[message.seq]
        row["created_at"] = dialect_of(connection).time(row["created_at"])
        row |= {name: old[name] for name in ("id", "created_at") if row[name] is None}
    edit.check_update({message.seq: message for message in messages}, new)
    if threshold is not None:
        bodies = [move(row, threshold) for row in new.values()]
        payloads.insert(connection, key, {digest: body for each in bodies for digest, body in each.items()})
    with edit.change("update") as change:
        edit.replace(change, new)
    return edit.messages()


def delete_all(
    connection: sa.Connection, now: datetime, key: str, seqs: Sequence[int], expected: Expected = ANYTHING
) -> None:
    """Delete the messages with these seqs in one change, as `delete` deletes one."""
    edit = _Edit(connection, now, key, seqs, expected)
    with edit.change("delete") as change:
        edit.delete(change)


def _in_seqs(dialect: Dialect) -> sa.ColumnElement[bool]:
    return MESSAGE.c.seq.in_(numbers_of_list(dialect, "seqs"))


_choose_all: Final = Statement(
    lambda dialect: sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE), _in_seqs(dialect)).order_by(MESSAGE.c.seq)
)
_ALL: Final = Rows(MESSAGE, _in_seqs)
_REPLACED: Final = Rows(MESSAGE, _in_seqs, **EDITED_VALUES)
_replace: Final = Statement(sa.update(MESSAGE).where(of_session(MESSAGE), CHOSEN).values(EDITED_VALUES))
_summaries: Final = Statement(
    lambda dialect: sa.select(TURN.c.turn_no, as_stored(TURN.c.metadata)).where(
        of_session(TURN), IS_COMPACTION, TURN.c.turn_no.in_(numbers_of_list(dialect, "turn_nos"))
    )
)
_not_empty: Final = Statement(
    lambda dialect: (
        sa.select(MESSAGE.c.turn_no)
        .where(of_session(MESSAGE), MESSAGE.c.turn_no.in_(numbers_of_list(dialect, "turn_nos")), ~IS_RECORD)
        .distinct()
    )
)
_fixing_all: Final = [
    Statement(
        lambda dialect, each=each: sa.select(each.message_seq).where(  # type: ignore[misc]
            of_session(each.table), each.message_seq.in_(numbers_of_list(dialect, "seqs"))
        )
    )
    for each in OF_MESSAGES
    if each.stored.fixes_calls
]
_consolidated: Final = Statement(sa.select(SESSION.c.last_consolidated).where(of_session(SESSION)))
_last_consolidated: Final = Statement(
    sa.select(MESSAGE.c.seq)
    .where(of_session(MESSAGE), ~IS_RECORD)
    .order_by(MESSAGE.c.seq)
    .offset(number("consolidated") - sa.literal_column("1"))
    .limit(1)
)


class _Edit:
    """An edit of several messages in one change, with a number of statements that does not depend on theirs."""

    def __init__(
        self, connection: sa.Connection, now: datetime, key: str, seqs: Sequence[int], expected: Expected
    ) -> None:
        self._connection, self._now, self._key = connection, now, key
        session = sessions.lock(connection, now, key)
        expected.check(key, session)
        self._next = session.last_seq + 1
        for seq in seqs:
            if type(seq) is not int:
                raise TypeError(f"a seq is {type(seq).__name__}: give the seqs of messages")
        self._seqs = {"key": key, "seqs": json.dumps([checked_seq_or_id(seq) for seq in seqs])}
        stored = _choose_all.run(connection, self._seqs)
        self.rows = {row[SEQ]: dict(zip(MESSAGE_FIELDS, row, strict=True)) for row in stored}
        for seq in seqs:
            if seq not in self.rows:
                raise MessageNotFound(key, seq)

    def messages(self) -> list[Message]:
        """Return the messages, with the edits so far, in the order of their seqs."""
        return decoded(self._connection, self._key, self.rows.values())

    def change(self, kind: ChangeKind) -> LogChange:
        """Begin the change of the messages."""
        return LogChange(self._connection, self._now, self._key, kind, self._next, min(self.rows))

    def check_update(self, messages: Mapping[int, Message], new: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise `InvalidMessage` if new versions hide messages of a summary, or change calls that were begun."""
        if self._summaries_of(seq for seq, row in new.items() if hides(self.rows[seq], row)):
            raise empties_window()
        may_change = [seq for seq, row in new.items() if may_change_calls(self.rows[seq], row)]
        fixed = [seq for each in _fixing_all if may_change for (seq,) in each.run(self._connection, self._seqs)]
        if chosen := [self.rows[seq] for seq in may_change if seq in fixed]:
            for stored in decoded(self._connection, self._key, chosen):
                if stored.tool_calls != messages[stored.seq].tool_calls:
                    raise changes_begun_call()

    def replace(self, change: LogChange, new: Mapping[int, Mapping[str, Any]]) -> None:
        """Set columns of the messages to new values."""
        shown = {seq for seq, row in new.items() if hides(row, self.rows[seq])}
        hidden = {seq for seq, row in new.items() if hides(self.rows[seq], row)}
        self._move_consolidated(change, shown, hidden)
        change.moves_consolidated = bool(shown or hidden)
        change.copy(_REPLACED, self._seqs, change.seq)
        change.count(MESSAGE, _REPLACED.count.run(self._connection, self._seqs), 1)
        for seq, row in new.items():
            self.rows[seq] |= row
        replaced = _replace.run_many(self._connection, [row | {"key": self._key} for row in self.rows.values()])
        change.count(MESSAGE, _REPLACED.count.run(self._connection, self._seqs), -1)
        if replaced != len(self.rows):
            raise sessions.not_permitted(self._key)

    def delete(self, change: LogChange) -> None:
        """Delete the messages, and the compactions that have no messages left, unless they discarded messages."""
        record = MessageRole.RECORD.value
        self._move_consolidated(change, (), {seq for seq, row in self.rows.items() if row["role"] != record})
        if change.delete(_ALL, replaced=False, **self._seqs) != len(self.rows):
            raise sessions.not_permitted(self._key)
        if summaries := self._summaries_of(self.rows):
            bound = {"key": self._key, "turn_nos": json.dumps([*summaries])}
            not_empty = {turn_no for (turn_no,) in _not_empty.run(self._connection, bound)}
            for turn_no in summaries.keys() - not_empty:
                if not removals.has_discarded(self._key, turn_no, summaries[turn_no]):
                    remove_compaction(change, turn_no)

    def _summaries_of(self, seqs: Iterable[int]) -> dict[int, str | None]:
        """Return the metadata of the compactions to which messages belong, by turn number."""
        turn_nos = {self.rows[seq]["turn_no"] for seq in seqs} - {None}
        if not turn_nos:
            return {}
        bound = {"key": self._key, "turn_nos": json.dumps([*turn_nos])}
        return dict(_summaries.run(self._connection, bound))

    def _move_consolidated(self, change: LogChange, shown: Collection[int], hidden: Collection[int]) -> None:
        """Adapt `last_consolidated` to messages that are added to and removed from the first ones."""
        if not shown and not hidden:
            return
        stored = _consolidated.run(self._connection, {"key": self._key})[0][0]
        consolidated = whole_number(self._key, "last_consolidated", stored)
        if consolidated > 0:
            last = _last_consolidated.run(self._connection, {"key": self._key, "consolidated": consolidated})
            upto = last[0][0] if last else MAX_SEQ
            change.unconsolidated = sum(seq <= upto for seq in hidden) - sum(seq < upto for seq in shown)
