"""Expired sessions in a SQLite file of their own, for people: tables, full-text search, readable by Datasette.

`sessions` has a row for each life of a session: a key may be used again after its purge, and both lives stay here.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlite_utils import Database
from sqlite_utils.db import NotFoundError

from lango_store._dialect.sqlite import SQLite
from lango_store._operations import edits, transfer
from lango_store._operations.binds import MESSAGE, SESSION, TURN, VALUE
from lango_store._operations.portable_rows import RowEncoder, decode_row
from lango_store._operations.rows import MESSAGE_FIELDS, decode_messages
from lango_store._rows.encoding import encode_role, encode_time_text, json_of_content
from lango_store._values.model import Message, MessageRole
from lango_store.archive import tables
from lango_store.archive.tables import VALUES_TABLE
from lango_store.errors import (
    DamagedMessage,
    DatabaseUnavailable,
    InvalidFile,
    InvalidValue,
    LangoStoreError,
    SessionExists,
    SessionNotFound,
)

_MOST_FOUND: Final = 1_000_000

_IDENTITY: Final = ("seq", "life", "id", "role", "created_at")
_SAME: Final = (
    "messages.seq IS ? AND (sessions.created_at IS ?"
    " OR messages.id IS ? AND messages.role IS ? AND messages.created_at IS ?)"
)
"""Whether an archived message is a copy of another, as it is or as it was before an update.

It has the same seq, in a session that was created at the same time, as a purge and a restore leave it; or else the
same id, role and time.
"""

_RECORD: Final = encode_role(MessageRole.RECORD)

_PARTS: Final = {"turns": TURN, "messages": MESSAGE, VALUES_TABLE: VALUE}
_LABELS: Final = {TURN.name: "turn {turn_no}", MESSAGE.name: "message {seq}", VALUE.name: "value {name!r}"}


class Archive:
    """An archive's file: `Archive(path)` opens it, or with `create=True` makes it; a context manager that closes it."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        if not create and not Path(path).exists():
            raise DatabaseUnavailable(f"archive {path} does not exist: check the path")
        with _our_errors(path):
            if create and not Path(path).exists():
                with suppress(OSError):  # SQLite's own error says more
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # readable by its owner only
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._path = path
        try:
            with _our_errors(path):
                self._connection.execute("PRAGMA synchronous = FULL")  # a purge relies on it
                self._db = Database(self._connection, execute_plugins=False)
                if create:
                    tables.create(self._db)
                elif not self._db["sessions"].exists():
                    raise DatabaseUnavailable(f"{path} is not an archive: give a file that `expire --archive` wrote")
        except BaseException:
            self._connection.close()
            raise

    def keep(self, connection: sa.Connection, keys: Sequence[str], now: datetime) -> None:
        """Write sessions of a store, and return when they are on disk; one that is stored already is written anew."""
        with _our_errors(self._path), self._db.atomic():
            ids: dict[str, int] = {}
            lives = transfer.incarnations(connection, keys)
            for row in transfer.sessions(connection, keys):
                row["incarnation"] = lives[row["key"]]
                self._drop("key = ? AND incarnation = ?", [row["key"], row["incarnation"]])
                archived = tables.archived_row(SESSION, row) | {"archived_at": encode_time_text(now)}
                ids[row["key"]] = self._insert("sessions", [archived])
            for key, (name, table) in itertools.product(ids, _PARTS.items()):
                for rows in transfer.parts(connection, table, key):
                    self._insert(name, [{"session_id": ids[key], **tables.archived_row(table, row)} for row in rows])

    def _insert(self, table: str, rows: Sequence[dict[str, Any]]) -> int:
        names = list(rows[0])
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
        cursor = self._connection.cursor()
        for row in rows:
            cursor.execute(statement, list(row.values()))
        return int(cursor.lastrowid or 0)

    def _drop(self, where: str, values: Sequence[Any]) -> int:
        chosen = f"SELECT id FROM sessions WHERE {where}"
        for table in ("messages", "turns", VALUES_TABLE):
            self._connection.execute(f"DELETE FROM {table} WHERE session_id IN ({chosen})", values)
        return self._connection.execute(f"DELETE FROM sessions WHERE {where}", values).rowcount

    def search(self, text: str, *, limit: int = 20) -> list[dict[str, Any]]:
        """Return messages that hold all of these words, the best first: `key`, `seq`, `role`, `created_at`, `text`."""
        query = (
            "SELECT sessions.key, messages.seq, messages.role, messages.created_at, messages.text "
            "FROM messages_fts JOIN messages ON messages.rowid = messages_fts.rowid "
            "JOIN sessions ON sessions.id = messages.session_id WHERE messages_fts MATCH ? ORDER BY rank LIMIT ?"
        )
        if not 0 <= limit <= _MOST_FOUND:
            raise ValueError(f"limit={limit} is not between 0 and {_MOST_FOUND:,}")
        words = " ".join('"' + word.replace('"', '""') + '"' for word in text.split())
        if not words:
            raise ValueError("the text to search for has no words: give one or more")
        with _our_errors(self._path):
            return list(self._db.query(query, [words, limit]))

    def count(
        self, *, user_id: str | None = None, agent_id: str | None = None, key_prefix: str | None = None
    ) -> tuple[int, int]:
        """Return how many sessions and messages `forget` would delete."""
        where, values = _filtered(user_id, agent_id, key_prefix)
        query = f"SELECT count(*), coalesce(sum(message_count), 0) FROM sessions WHERE {where}"
        with _our_errors(self._path):
            sessions, messages = self._connection.execute(query, values).fetchone()
        return sessions, messages

    def forget(self, *, user_id: str | None = None, agent_id: str | None = None, key_prefix: str | None = None) -> int:
        """Delete sessions so that the file keeps no trace of them, and return how many.

        At least one filter is needed, ValueError otherwise; several narrow it down.
        """
        where, values = _filtered(user_id, agent_id, key_prefix)
        with _our_errors(self._path):
            with self._db.atomic():
                gone = self._drop(where, values)
                self._db.table("messages").rebuild_fts()  # the index remembers words of deleted rows until then
            self._db.vacuum()
        return gone

    def redact(
        self,
        key: str,
        seq_or_id: int | str,
        *,
        reason: str | None = None,
        stored: Message | None = None,
        session_created_at: datetime | None = None,
    ) -> Message | None:
        """Redact a message as `Store.redact_message` does, so that the file keeps no trace, and return what is left.

        It is the message that the store has, if `stored`, in the session that was created then; else the one with this
        `seq` or id in the latest life of the session that has one; None if there is none. A session that was restored
        and purged again is here several times, and the message with it, as it was then.
        """
        place = edits.checked_seq_or_id(seq_or_id)
        taken = edits.redacted(reason)
        left = taken | {"content": json_of_content(taken["text"], taken["content"]), "text": ""}
        changes = ", ".join(f"{name} = ?" for name in left)
        with _our_errors(self._path):
            with self._db.atomic():
                if stored is not None:
                    times = [
                        None if t is None else encode_time_text(t) for t in (session_created_at, stored.created_at)
                    ]
                    identity = [stored.seq, times[0], stored.id, encode_role(stored.role), times[1]]
                    found = self._messages([key, *identity], _SAME)
                else:
                    found = self._messages([key, place], f"messages.{'id' if isinstance(place, str) else 'seq'} = ?")
                    if found:
                        found = self._messages([key, *(found[0][name] for name in _IDENTITY)], _SAME)
                if not found:
                    return None
                for row in found:
                    if row["role"] != _RECORD:  # whose tokens its session does not count
                        spent = "UPDATE sessions SET token_count = token_count - ? WHERE id = ?"
                        self._connection.execute(spent, [row["tokens"] or 0, row["session_id"]])
                    row |= left | {"tokens": None if row["tokens"] is None else 0}
                    redacted = f"UPDATE messages SET {changes}, tokens = ? WHERE session_id = ? AND seq = ?"
                    self._connection.execute(redacted, [*left.values(), row["tokens"], row["session_id"], row["seq"]])
                self._db.table("messages").rebuild_fts()  # the index remembers words of deleted rows until then
            self._db.vacuum()
        row = found[0] | taken
        return decode_messages(key, [[row[name] for name in MESSAGE_FIELDS]])[0]

    def _messages(self, values: Sequence[Any], condition: str) -> list[dict[str, Any]]:
        query = (
            "SELECT messages.*, sessions.created_at AS life "
            "FROM messages JOIN sessions ON sessions.id = messages.session_id "
            f"WHERE sessions.key = ? AND {condition} ORDER BY sessions.id DESC"
        )
        return list(self._db.query(query, values))

    def restore(self, connection: sa.Connection, key: str, *, now: datetime, ttl: float | None) -> None:
        """Put the latest life of a session back into a store, with this TTL in seconds; it stays in the archive too."""
        with _our_errors(self._path):
            found = list(self._db["sessions"].rows_where("key = ?", [key], order_by="id desc", limit=1))
            if not found:
                raise SessionNotFound(key, f"the archive {self._path} has no session {key!r}: search it for words")
            row = found[0]
            if transfer.exists(connection, key):
                raise SessionExists(key)
            expires_at = None if ttl is None else encode_time_text(now + timedelta(seconds=ttl))
            anew = {"ttl_seconds": ttl, "expires_at": expires_at, "updated_at": encode_time_text(now)}
            encoder = RowEncoder()
            self._restore_row(connection, encoder, SESSION, row | anew)
            for name, table in _PARTS.items():
                for each in self._db[name].rows_where("session_id = ?", [row["id"]]):
                    self._restore_row(connection, encoder, table, {"session_key": key, **each})
            transfer.set_counters(connection, key, encoder.corrections())

    def _restore_row(
        self, connection: sa.Connection, encoder: RowEncoder, table: sa.Table, archived: dict[str, Any]
    ) -> None:
        try:
            row = encoder.encode(table, decode_row(table, tables.stored_row(table, archived)))
        except (DamagedMessage, InvalidValue) as error:
            label = "the session" if table is SESSION else _LABELS[table.name].format_map(archived)
            reason = error.fact if isinstance(error, DamagedMessage) else str(error)
            raise InvalidFile(self._path, f"{label}: {reason}; nothing was restored") from None
        transfer.insert(connection, table, [row])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _filtered(user_id: str | None, agent_id: str | None, key_prefix: str | None) -> tuple[str, list[str]]:
    if user_id is None and agent_id is None and not key_prefix:
        raise ValueError("no filter says whose sessions are meant: give user_id, agent_id or key_prefix")
    filters = {"user_id = ?": user_id, "agent_id = ?": agent_id, "instr(key, ?) = 1": key_prefix}
    given = {condition: value for condition, value in filters.items() if value is not None}
    return " AND ".join(given), list(given.values())


@contextmanager
def _our_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, NotFoundError) as error:
        translated = SQLite().translate_error(error)
        known = type(translated) is not LangoStoreError
        raise (type(translated)(f"archive {path}: {translated}") if known else translated) from error
