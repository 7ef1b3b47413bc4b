"""A record and its new entries, written: in one statement where they follow the head, else with the log in sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord

from lango_store._connections.context import Context
from lango_store._dialect.statement import Statement
from lango_store._operations import appends, session_changes, sessions, turns, values
from lango_store._operations.batches import Batch
from lango_store._operations.binds import MESSAGE, SESSION, column, number, of_session
from lango_store._operations.rows import stored_json
from lango_store._operations.sessions import ANYTHING, Expected
from lango_store._rows.encoding import checked_key, encode_json
from lango_store._services.appending import encoded
from lango_store._values.model import Message, MessageRole
from lango_store.errors import Conflict, LangoStoreError, NotPermitted, SessionNotFound, UniqueViolation
from lango_store.integrations.pydantic_ai import records
from lango_store.integrations.pydantic_ai.dumping import dumped_messages
from lango_store.integrations.pydantic_ai.entries import Log, Row, left, log_of, log_with, message_of_row, taken
from lango_store.integrations.pydantic_ai.items import NAME, message_of
from lango_store.integrations.pydantic_ai.records import Known, State


@dataclass
class Entry:
    """A message about to be stored, and the entry before it."""

    id: str
    parent: str | None
    message: Message


class Save:
    """What `write_record` is given, and how it is written."""

    def __init__(
        self,
        context: Context,
        prefix: str,
        record: ConversationRecord,
        new_entries: Sequence[ConversationEntry],
        expected_revision: str | None,
    ) -> None:
        self._context = context
        self._prefix = prefix
        self._key = checked_key(prefix + record.conversation_id)
        self._record = record
        self._expected = expected_revision
        items = dumped_messages([entry.message for entry in new_entries])
        self._entries = [
            Entry(entry.id, entry.parent_id, message_of(item, str(entry.id)))
            for entry, item in zip(new_entries, items, strict=True)
        ]

    def run(self) -> None:
        """Write; `ConversationConflict` if the record is not at that revision or its head is not there."""
        try:
            if not self._quickly():
                with self._context.transaction() as connection:
                    self._thoroughly(connection, self._context.now(connection))
        except (SessionNotFound, UniqueViolation) as error:
            raise self._conflict() from error

    def _conflict(self) -> ConversationConflict:
        return ConversationConflict(self._record.conversation_id)

    # In one statement

    def _quickly(self) -> bool:
        """Write if the entries follow the head that was read; False if they do not, or if the session moved on."""
        state = self._state_read()
        root = None if state is None else state.head
        if self._context.in_callers_transaction or not self._follow(root):
            return False
        new = encoded(self._context, [entry.message for entry in self._entries])
        try:
            with self._context.transaction() as connection:
                return self._written_at_once(connection, state, new)
        except (Conflict, SessionNotFound, UniqueViolation, NotPermitted):
            return False  # of which the other way tells what it means

    def _state_read(self) -> State | None:
        """Return what was read of the record that is to be replaced; None if there has to be none."""
        if self._expected is None:
            return None
        for known in (self._entries[0].parent if self._entries else self._record.head_id, self._expected):
            if isinstance(known, Known) and (known.state.key, known.state.revision) == (self._key, self._expected):
                return known.state
        with self._context.single_read() as connection:
            state = records.find(connection, self._context.moment(connection), self._prefix, self._key)[1]
        if state.revision != self._expected:
            raise self._conflict()
        return state

    def _follow(self, root: str | None) -> bool:
        ids = [root, *(entry.id for entry in self._entries)]
        return [entry.parent for entry in self._entries] == ids[:-1] and ids[-1] == self._record.head_id

    def _written_at_once(self, connection: sa.Connection, state: State | None, new: Batch) -> bool:
        now = self._context.now(connection)
        if state is None:
            make = records.new_session(self._context, self._prefix, self._record)
            if sessions.insert(connection, now, make) is None:
                return False
            turns.save(connection, now, self._key, new, turn=records.new_turn(self._record, None))
            self._note(connection, now, None, records.Log(len(new.rows), len(new.rows), 0), turn=True)
        else:
            self._write(connection, now, state, state.log, new)
        return True

    def _note(
        self, connection: sa.Connection, now: datetime, state: State | None, log: records.Log, *, turn: bool
    ) -> None:
        """Write what the record says of the session besides its messages."""
        fields, value = records.noted(self._prefix, self._record, state, log, turn=turn, is_new=self._expected is None)
        sessions.change(connection, self._key, fields)
        values.write(connection, now, self._key, value)

    def _write(self, connection: sa.Connection, now: datetime, state: State, log: records.Log, new: Batch) -> None:
        turn = records.new_turn(self._record, state)
        has_turn = bool(new.rows or turn.usage)
        # If its log is another one, the session is locked, and was written to since its state was read.
        expected = Expected(revision=state.number) if log == state.log else ANYTHING
        if has_turn:
            turns.save(connection, now, self._key, new, expected, turn=turn)
        else:
            appends.append(connection, now, self._key, new, expected)
        self._note(connection, now, state, log.grown(len(new.rows) - new.records, new.records), turn=has_turn)

    # With the log in sight

    def _thoroughly(self, connection: sa.Connection, now: datetime) -> None:
        """Write in a transaction, whatever the entries follow: what the new history leaves becomes records."""
        state = self._locked(connection, now)
        log = log_of(connection, now, self._key)
        entries = [*self._entries_of_others(connection, now, log), *self._entries]
        history = self._history(log, entries)
        stands = self._turned(connection, log, state, set(history))
        seqs: dict[str | None, int] = {row.id: row.seq for row in log.entries} | {None: 0}
        messages: list[Message] = []
        for seq, entry in enumerate(entries, stands.last_seq + 1):
            seqs[entry.id] = seq
            in_history = entry.id in history
            messages.append(entry.message if in_history else _as_left(entry.message, seqs[entry.parent]))
        self._write(connection, now, state, stands, encoded(self._context, messages))

    def _locked(self, connection: sa.Connection, now: datetime) -> State:
        """Lock the session, made now if there has to be none, and return what it is at."""
        if self._expected is None:
            session_changes.delete_expired(connection, now, self._key)
            make = records.new_session(self._context, self._prefix, self._record)
            if sessions.insert(connection, now, make) is None:
                raise self._conflict()
        sessions.lock(connection, now, self._key)
        record, state = records.find(connection, now, self._prefix, self._key)
        if self._expected is not None and record.revision != self._expected:
            raise self._conflict()
        return state

    def _entries_of_others(self, connection: sa.Connection, now: datetime, log: Log) -> list[Entry]:
        """Return what the new history shares with another conversation: a fork has its own copies."""
        there = {*log.by_id, *(entry.id for entry in self._entries)}
        found: list[Entry] = []
        for id in [*(entry.parent for entry in self._entries), self._record.head_id]:
            if id is None or id in there:
                continue
            try:
                rows = log_with(connection, now, self._prefix, id).way(id)
            except KeyError as error:
                raise self._conflict() from error
            parents = [None, *(row.id for row in rows)]
            shared = [Entry(row.id, before, message_of_row(row)) for before, row in zip(parents, rows, strict=False)]
            found += [entry for entry in shared if entry.id not in there]
            there.update(entry.id for entry in shared)
        return found

    def _history(self, log: Log, entries: Sequence[Entry]) -> list[str]:
        """Return the ids of the entries of the new history, the first one first."""
        parents = {entry.id: entry.parent for entry in entries}
        way: list[str] = []
        id = self._record.head_id
        while id is not None and id in parents:
            way.append(id)
            id = parents.pop(id)
        if id in way:
            raise self._conflict()
        try:
            before = [] if id is None else [row.id for row in log.way(id)]
        except KeyError as error:
            raise self._conflict() from error
        return before + way[::-1]

    def _turned(self, connection: sa.Connection, log: Log, state: State, history: set[str]) -> records.Log:
        """Make records of the rows that the history leaves, messages of those that it takes up again."""
        gone = log.left_by(history)
        back = [row for row in log.entries if not row.is_shown and row.id in history]
        if not gone and not back:
            return state.log
        for row in log.entries:
            if row.id in history and row.seq <= log.summarized_upto:
                raise LangoStoreError(
                    f"entry {row.id!r} of session {self._key!r} was left before a summary took the place of what "
                    "came then: fork the conversation from it"
                )
        turned = [_rewritten(row, MessageRole.RECORD, own) for row, own in gone]
        _rewrite.run_many(connection, turned + [_rewritten(row, row.role_in_history, taken(row.own)) for row in back])
        messages = len(back) - len(gone)
        counts = {
            "last_seq": 1,  # used up, so that a load notices: see `messages.load_life`
            "message_count": messages,
            "record_count": -messages,
            "token_count": sum(map(_tokens, back)) - sum(_tokens(row) for row, _ in gone),
        }
        sessions.change(connection, self._key, {name: SESSION.c[name] + added for name, added in counts.items()})
        return records.Log(state.log.last_seq + 1, state.log.messages + messages, state.log.records - messages)


_rewrite = Statement(
    lambda _: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
        .values(role=column(MESSAGE.c.role), extra=column(MESSAGE.c.extra))
    )
)


def _rewritten(row: Row, role: str, own: dict[str, Any]) -> dict[str, Any]:
    extra = ({} if row.extra is None else stored_json(row.key, row.seq, "extra", row.extra)) | {NAME: own}
    if not own:
        del extra[NAME]
    return {"key": row.key, "seq": row.seq, "role": str(role), "extra": encode_json(extra, "extra") if extra else None}


def _tokens(row: Row) -> int:
    return row.tokens if isinstance(row.tokens, int) else 0


def _as_left(message: Message, parent: int) -> Message:
    own = message.extra.get(NAME, {}) | left(message.role, parent)
    return message.model_copy(update={"role": MessageRole.RECORD, "extra": message.extra | {NAME: own}})


def delete(context: Context, prefix: str, conversation_id: str, expected_revision: str) -> None:
    """Delete a conversation and all of its entries; `ConversationConflict` if it is not at that revision."""
    key = prefix + conversation_id
    try:
        with context.transaction() as connection:
            now = context.now(connection)
            sessions.lock(connection, now, key)
            if records.find(connection, now, prefix, key)[0].revision != expected_revision:
                raise ConversationConflict(conversation_id)
            session_changes.delete(connection, key)
    except SessionNotFound as error:
        raise ConversationConflict(conversation_id) from error
