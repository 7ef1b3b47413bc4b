"""Purged sessions in a separate SQLite file, for people: tables, full-text search, readable by Datasette.

`sessions` has a row for each life of a session: a key may be used again after its purge, and both lives stay here.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa

from lango_store._dialect.driver_errors import translated
from lango_store._dialect.sqlite import SQLite
from lango_store._operations import edits, transfer
from lango_store._operations.binds import CHANGE, MESSAGE, SESSION, TURN, VALUE
from lango_store._operations.portable_rows import RowEncoder, decode_row
from lango_store._operations.rows import MESSAGE_FIELDS, decode_messages
from lango_store._rows.encoding import NO_CONTENT, decode_json, encode_role, encode_time_text, json_of_content
from lango_store._values.content_blocks import parts_of
from lango_store._values.model import Message, MessageRole
from lango_store.errors import (
    DamagedMessage,
    InvalidFile,
    InvalidValue,
    LangoStoreError,
    SessionExists,
    SessionNotFound,
    quoted,
)

_MOST_FOUND: Final = 1_000_000

_RECORD: Final = encode_role(MessageRole.RECORD)

_PARTS: Final = {
    "turns": (TURN, "turn_no", "turn {turn_no}"),
    "messages": (MESSAGE, "seq", "message {seq}"),
    "changes": (CHANGE, "seq", "change {seq}"),
    "session_values": (VALUE, "name", "value {name!r}"),
}
"""The tables of a session's rows: the store's table, the last column of the key, and what errors call a row."""


class Archive:
    """An archive's file: `Archive(path)` opens it, or with `create=True` makes it; a context manager that closes it."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        from sqlite_utils import Database  # here, as in `_our_errors`: its import is slow, and few commands need it

        if not create and not Path(path).exists():
            raise InvalidFile(path, "does not exist: check the path of the archive")
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
                    self._create_tables()
                elif not self._db["sessions"].exists():
                    raise InvalidFile(path, "is not an archive: give a file that `expire --archive` wrote")
        except BaseException:
            self._connection.close()
            raise

    def _create_tables(self) -> None:
        if self._db["messages_fts"].exists() and self._parts().keys() == _PARTS.keys():
            return
        with self._transaction():
            sessions = self._db.table("sessions")
            columns = {"id": int, **_columns(SESSION), "incarnation": int, "archived_at": str}
            sessions.create(columns, pk="id", if_not_exists=True)
            sessions.create_index(["key", "incarnation"], unique=True, if_not_exists=True)
            for name, (table, place, _) in _PARTS.items():
                columns = {"session_id": int, **_columns(table)}
                foreign_keys = [("session_id", "sessions", "id")]
                self._db.table(name).create(
                    columns, pk=("session_id", place), foreign_keys=foreign_keys, if_not_exists=True
                )
            if not self._db["messages_fts"].exists():
                self._db.table("messages").enable_fts(["text"], create_triggers=True)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")  # one that reads first cannot wait for another process to write
        with self._connection:
            yield

    def _parts(self) -> dict[str, tuple[sa.Table, str, str]]:
        """Return those of `_PARTS` that the file has: one that an earlier release made may lack some."""
        return {name: part for name, part in _PARTS.items() if self._db[name].exists()}

    @contextmanager
    def keeping(self, connection: sa.Connection, keys: Sequence[str], now: datetime) -> Iterator[None]:
        """Copy sessions of a store into the file, on disk when the context ends; an error in it undoes the copy."""
        with _our_errors(self._path), self._transaction():
            incarnations = transfer.incarnations(connection, keys)
            for row in transfer.sessions(connection, keys):
                life = {"incarnation": incarnations[row["key"]], "archived_at": encode_time_text(now)}
                self._drop("key = ? AND incarnation = ?", [row["key"], life["incarnation"]])
                number = self._insert("sessions", [_archived(SESSION, row) | life])
                for name, (table, _, _) in _PARTS.items():
                    for rows in transfer.parts(connection, table, row["key"]):
                        self._insert(name, [{"session_id": number, **_archived(table, each)} for each in rows])
            yield

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
        for table in self._parts():
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
            with self._transaction():
                gone = self._drop(where, values)
                self._db.table("messages").rebuild_fts()  # the index remembers words of deleted rows until then
            self._db.vacuum()
        return gone

    def redact(
        self, key: str, seq_or_id: int | str, *, reason: str | None = None, incarnation: int | None = None
    ) -> Message | None:
        """Redact a message as `Store.redact_message` does, so that the file keeps no trace, and return it.

        It is looked for in the life of the session with this incarnation, or in the latest one that has such a message;
        None if there is none.
        """
        place = edits.checked_seq_or_id(seq_or_id)
        of_turn = "turns.session_id = messages.session_id AND turns.turn_no = messages.turn_no"
        query = (
            f"SELECT messages.*, EXISTS (SELECT 1 FROM turns WHERE {of_turn} AND kind = 'compaction') AS in_summary "
            "FROM messages JOIN sessions ON sessions.id = messages.session_id "
            f"WHERE sessions.key = ? AND messages.{'id' if isinstance(place, str) else 'seq'} = ? "
            "AND sessions.incarnation = coalesce(?, sessions.incarnation) ORDER BY sessions.id DESC LIMIT 1"
        )
        with _our_errors(self._path):
            with self._transaction():
                row = next(iter(self._db.query(query, [key, place, incarnation])), None)
                if row is None:
                    return None
                taken = edits.redacted(reason, in_summary=bool(row["in_summary"]))
                left = taken | {"content": json_of_content(taken["text"], taken["content"]), "text": ""}
                if row["role"] != _RECORD:  # whose tokens its session does not count
                    spent = "UPDATE sessions SET token_count = token_count - ? WHERE id = ?"
                    self._connection.execute(spent, [row["tokens"] or 0, row["session_id"]])
                left["tokens"] = None if row["tokens"] is None else 0
                self._db.table("messages").update((row["session_id"], row["seq"]), left)
                self._db.table("messages").rebuild_fts()  # the index remembers words of deleted rows until then
            self._db.vacuum()
        row |= taken | {"tokens": left["tokens"]}
        return decode_messages(key, [[row[name] for name in MESSAGE_FIELDS]])[0]

    def restore(self, connection: sa.Connection, key: str, *, now: datetime, ttl: float | None) -> None:
        """Put the latest life of a session back into a store, with this TTL in seconds; it stays in the archive too."""
        with _our_errors(self._path):
            found = list(self._db["sessions"].rows_where("key = ?", [key], order_by="id desc", limit=1))
            if not found:
                raise SessionNotFound(
                    key, f"the archive {self._path} has no session {quoted(key)}: search it for words"
                )
            row = found[0]
            if transfer.exists(connection, key):
                raise SessionExists(key)
            expires_at = None if ttl is None else encode_time_text(now + timedelta(seconds=ttl))
            changes = {"ttl_seconds": ttl, "expires_at": expires_at, "updated_at": encode_time_text(now)}
            encoder = RowEncoder()
            self._restore_row(connection, encoder, SESSION, row | changes, "the session")
            for name, (table, _, label) in self._parts().items():
                for part in self._db[name].rows_where("session_id = ?", [row["id"]]):
                    self._restore_row(connection, encoder, table, {"session_key": key, **part}, label)
            life = encoder.corrections() | {"incarnation": row["incarnation"]}  # archived again, it replaces this one
            transfer.set_counters(connection, key, life)

    def _restore_row(
        self, connection: sa.Connection, encoder: RowEncoder, table: sa.Table, archived: dict[str, Any], label: str
    ) -> None:
        row = {column.name: archived.get(column.name) for column in transfer.COLUMNS[table.name]}
        if table is MESSAGE:
            row |= {"text": None, "content": row["content"] or NO_CONTENT}
        try:
            encoded = encoder.encode(table, decode_row(table, row))
        except (DamagedMessage, InvalidValue) as error:
            reason = error.fact if isinstance(error, DamagedMessage) else str(error)
            raise InvalidFile(self._path, f"{label.format_map(archived)}: {reason}; nothing was restored") from None
        transfer.insert(connection, table, [encoded])

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
    from sqlite_utils.db import NotFoundError

    try:
        yield
    except (sqlite3.Error, NotFoundError) as error:
        ours = translated(error, SQLite())
        if type(ours) is not LangoStoreError:
            ours.args = (f"archive {path}: {ours}",)
        raise ours from None


def _columns(table: sa.Table) -> dict[str, type]:
    columns = transfer.COLUMNS[table.name]
    return {column.name: _kind(column.type) for column in columns if column.name != "session_key"}


def _kind(column_type: sa.types.TypeEngine[Any]) -> type:
    if isinstance(column_type, sa.Integer):
        return int
    return float if isinstance(column_type, sa.Numeric | sa.Float) else str


def _archived(table: sa.Table, row: transfer.Row) -> dict[str, Any]:
    """Return a row for the archive, without its session's key; `text` holds the words of a message."""
    archived = {
        name: encode_time_text(value) if isinstance(value, datetime) else value
        for name, value in row.items()
        if name != "session_key"
    }
    if table is MESSAGE:
        archived["content"] = json_of_content(row["text"], row["content"])
        archived["text"] = _text(archived)
    return archived


def _text(archived: dict[str, Any]) -> str:
    """Return the words of a message: its content, and the arguments and outputs of its tool calls."""
    words: list[str] = []
    for name in ("content", "tool_calls"):
        if archived[name] is not None:
            try:
                value = decode_json(archived[name])
                words += _texts_in(value if name != "content" else parts_of(value) or value)
            except ValueError:
                words.append(archived[name])  # damaged JSON is searched as text
    return " ".join(words).encode("utf-8", "replace").decode().replace("\0", " ")


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, list | dict):
        return [word for item in (value.values() if isinstance(value, dict) else value) for word in _texts_in(item)]
    if value is None:
        return []
    return [value if isinstance(value, str) else json.dumps(value)]
