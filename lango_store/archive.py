"""Purged sessions in a separate SQLite file, with full-text search.

The file has plain tables, which Datasette and the `sqlite3` shell can read. A key can be used again after a purge. So
the table `sessions` has one row for each incarnation, that is, for each purged session that had the key.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa

from lango_store._dialect.driver_errors import translated
from lango_store._dialect.sqlite import SQLite
from lango_store._engine.untrusted_files import Guard, guard_fault
from lango_store._operations import edits, levels, payloads, transfer
from lango_store._operations.binds import CHANGE, MESSAGE, PAYLOAD, SESSION, TURN, VALUE
from lango_store._operations.expiry import MAX_BATCH
from lango_store._operations.portable_rows import RowEncoder, decode_row
from lango_store._operations.rows import MESSAGE_FIELDS, decode_messages
from lango_store._operations.session_tables import TABLES
from lango_store._rows.encoding import (
    NO_CONTENT,
    decode_json,
    encode_role,
    encode_time_text,
    end_of_prefix,
    json_of_content,
)
from lango_store._rows.payloads import with_searched
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

_MAX_HITS: Final = 1_000_000

_RECORD: Final = encode_role(MessageRole.RECORD)

_PARTS: Final = {
    "turns": (TURN, "turn_no", "turn {turn_no}"),
    "messages": (MESSAGE, "seq", "message {seq}"),
    "payloads": (PAYLOAD, "digest", "payload {digest}"),
    "changes": (CHANGE, "seq", "change {seq}"),
    "session_values": (VALUE, "name", "value {name!r}"),
}
"""For each table of the archive: the table of the store, the last column of its key, and a row's name in errors."""


_MARK_COPIES: Final = (
    "UPDATE turns SET copied_from = (SELECT forked_from FROM sessions WHERE sessions.id = turns.session_id "
    "AND turns.created_at < sessions.created_at)"
)
"""Marks the turns that forks copied: files of revisions before 0107 do not mark them."""

_TRIGGERS: Final = {
    "CREATE TRIGGER messages_ai AFTER INSERT ON messages BEGIN INSERT INTO messages_fts"
    " (rowid, text) VALUES (new.rowid, new.text); END",
    "CREATE TRIGGER messages_ad AFTER DELETE ON messages BEGIN INSERT INTO messages_fts"
    " (messages_fts, rowid, text) VALUES('delete', old.rowid, old.text); END",
    "CREATE TRIGGER messages_au AFTER UPDATE ON messages BEGIN INSERT INTO messages_fts"
    " (messages_fts, rowid, text) VALUES('delete', old.rowid, old.text); INSERT INTO messages_fts"
    " (rowid, text) VALUES (new.rowid, new.text); END",
}
"""The triggers of the full-text index, without the quotes that versions of sqlite-utils write differently."""

_QUOTES: Final = re.compile(r'["`\[\]]')


class Archive:
    """An archive file of purged sessions.

    An archive is a context manager, which closes the file. Use an archive only in the thread that created it.

    Args:
        path: The path of the file.
        create: Create a missing file, which only its owner can read, and add missing tables to an existing one.
            Default: False.

    Raises:
        InvalidFile: The file is a SQLite database but not an archive, or it does not exist and `create` is False.
        DatabaseUnavailable: The file is not a SQLite file, or cannot be opened or read.

    Example:
        ```python
        from lango_store.archive import Archive

        with Archive("cold.db") as archive:
            for hit in archive.search("invoice"):
                print(hit["key"], hit["text"])
        ```
    """

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        # Imported here and in `_our_errors`, because the import is slow and few commands need it.
        from sqlite_utils import Database

        if not create and not Path(path).exists():
            raise InvalidFile(path, "does not exist: check the path of the archive")
        with _our_errors(path):
            if create and not Path(path).exists():
                with suppress(OSError):  # SQLite's error is more specific
                    # Only the owner may read it. O_EXCL does not follow a symbolic link.
                    os.close(os.open(os.path.realpath(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._path = path
        try:
            with _our_errors(path):
                self._guard = Guard(self._connection)
            with self._bounded():
                # A purge deletes sessions once the archive is on disk.
                self._connection.execute("PRAGMA synchronous = FULL")
                self._db = Database(self._connection, execute_plugins=False)
                if create:
                    self._create_tables()
                elif not self._db["sessions"].exists():
                    raise InvalidFile(path, "is not an archive: give a file that `expire --archive` wrote")
        except BaseException:
            self._connection.close()
            raise

    def _create_tables(self) -> None:
        if self._db["messages_fts"].exists() and self._parts().keys() == _PARTS.keys() and not self._missing():
            return
        if self._db.table_names() and "incarnation" not in self._db["sessions"].columns_dict:
            raise InvalidFile(self._path, "is a database of another application: give the path of a new file")
        with self._transaction():
            sessions = self._db.table("sessions")
            columns = {"id": int, **_columns(SESSION), "incarnation": int, "archived_at": str}
            sessions.create(columns, pk="id", if_not_exists=True)
            sessions.create_index(["key", "incarnation"], unique=True, if_not_exists=True)
            for name, (table, column, _) in _PARTS.items():
                columns = {"session_id": int, **_columns(table)}
                foreign_keys = [("session_id", "sessions", "id")]
                self._db.table(name).create(
                    columns, pk=("session_id", column), foreign_keys=foreign_keys, if_not_exists=True
                )
            for table_name, column_name, kind in self._missing():
                self._db.table(table_name).add_column(column_name, kind)
                if column_name == "copied_from":
                    self._connection.execute(_MARK_COPIES)
            if not self._db["messages_fts"].exists():
                self._db.table("messages").enable_fts(["text"], create_triggers=True)

    def _reject_triggers(self) -> None:
        """Raise `InvalidFile` for a trigger that could ignore or change what this class writes."""
        query = "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'"
        for name, table, sql in self._connection.execute(query).fetchall():
            if table.lower() in ("sessions", *_PARTS) and _QUOTES.sub("", " ".join(str(sql).split())) not in _TRIGGERS:
                raise InvalidFile(
                    self._path, f"has the trigger {quoted(name)}, which lango_store did not create: drop the trigger"
                )

    def _missing(self) -> list[tuple[str, str, type]]:
        """Return the columns that a file of an earlier release lacks, each as table, name and type."""
        columns = [(name, *column) for name, part in self._parts().items() for column in _columns(part[0]).items()]
        return [each for each in columns if each[1] not in self._db.table(each[0]).columns_dict]

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Translate errors, and interrupt statements that take much longer than the size of the file explains."""
        self._guard.allow(Path(self._path))
        try:
            with _our_errors(self._path):
                yield
        finally:
            self._guard.allow(None)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")  # a transaction that reads first cannot wait for another writer
        with self._connection:
            self._reject_triggers()
            # SQLite counts full-text indexes as unsafe in triggers. The triggers are those that this class created.
            self._connection.execute("PRAGMA trusted_schema = ON")
            try:
                yield
            finally:
                self._connection.execute("PRAGMA trusted_schema = OFF")

    def _parts(self) -> dict[str, tuple[sa.Table, str, str]]:
        """Return the `_PARTS` whose table exists: files of earlier releases may lack some tables."""
        return {name: part for name, part in _PARTS.items() if self._db[name].exists()}

    @contextmanager
    def keeping(self, connection: sa.Connection, keys: Sequence[str], now: datetime) -> Iterator[None]:
        """Copy sessions of a store into the file; `Store.expire(archive=...)` calls this method.

        When the block ends, the copy is on disk. If the block raises an exception, nothing is copied.

        Args:
            connection: A connection to the store.
            keys: The keys of the sessions.
            now: The time to store as `archived_at`.
        """
        with _our_errors(self._path), self._transaction():
            for part in levels.chunks(keys, MAX_BATCH):
                self._keep(connection, part, now)
            yield

    def _keep(self, connection: sa.Connection, keys: Sequence[str], now: datetime) -> None:
        incarnations = transfer.incarnations(connection, keys)
        for session in transfer.sessions(connection, keys):
            added = {"incarnation": incarnations[session["key"]], "archived_at": encode_time_text(now)}
            self._drop("key = ? AND incarnation = ?", [session["key"], added["incarnation"]])
            session_id = self._insert("sessions", _archived(SESSION, session) | added)
            for name, (table, _, _) in _PARTS.items():
                for row in (row for page in transfer.parts(connection, table, session["key"]) for row in page):
                    archived = {"session_id": session_id, **_archived(table, row)}
                    if table is MESSAGE:
                        archived["text"] = _text(with_searched(row, partial(payloads.read, connection, session["key"])))
                    self._insert(name, archived)

    def _insert(self, table: str, row: dict[str, Any]) -> int:
        statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        return int(self._connection.execute(statement, list(row.values())).lastrowid or 0)

    def _drop(self, where: str, values: Sequence[Any]) -> int:
        chosen = f"SELECT id FROM sessions WHERE {where}"
        for table in self._parts():
            self._connection.execute(f"DELETE FROM {table} WHERE session_id IN ({chosen})", values)
        return self._connection.execute(f"DELETE FROM sessions WHERE {where}", values).rowcount

    def search(self, text: str, *, limit: int = 20) -> list[dict[str, Any]]:
        """Find the messages that contain all words of a text, the best match first.

        Args:
            text: One or more words, separated by spaces. All sessions of the archive are searched.
            limit: The maximum number of messages, 0 to 1,000,000. Default: 20.

        Returns:
            One dict for each message: `key`, `seq`, `role`, `created_at` and `text`.

        Raises:
            ValueError: `text` has no words, or `limit` is out of range.
        """
        query = (
            "SELECT sessions.key, messages.seq, messages.role, messages.created_at, messages.text "
            "FROM messages_fts JOIN messages ON messages.rowid = messages_fts.rowid "
            "JOIN sessions ON sessions.id = messages.session_id WHERE messages_fts MATCH ? ORDER BY rank LIMIT ?"
        )
        if not 0 <= limit <= _MAX_HITS:
            raise ValueError(f"limit={limit} is not between 0 and {_MAX_HITS:,}")
        words = " ".join('"' + word.replace('"', '""') + '"' for word in text.split())
        if not words:
            raise ValueError("the text to search for has no words: give one or more")
        with self._bounded():
            return list(self._db.query(query, [words, limit]))

    def count(
        self, *, user_id: str | None = None, agent_id: str | None = None, key_prefix: str | None = None
    ) -> tuple[int, int]:
        """Count the sessions and messages that `forget` would delete.

        Args:
            user_id: Only sessions of this user.
            agent_id: Only sessions of this agent.
            key_prefix: Only sessions whose key starts with this prefix.

        Returns:
            The number of sessions, and the number of their messages.

        Raises:
            ValueError: No filter was passed.
        """
        where, values = _filtered(user_id, agent_id, key_prefix)
        query = f"SELECT count(*), coalesce(sum(message_count), 0) FROM sessions WHERE {where}"
        with self._bounded():
            sessions, messages = self._connection.execute(query, values).fetchone()
        return sessions, messages

    def forget(self, *, user_id: str | None = None, agent_id: str | None = None, key_prefix: str | None = None) -> int:
        """Delete sessions, and remove all of their data from the file.

        A session is deleted if it matches all filters. Pass at least one. The whole file is rewritten, which takes long
        if the archive is large.

        Args:
            user_id: Only sessions of this user.
            agent_id: Only sessions of this agent.
            key_prefix: Only sessions whose key starts with this prefix.

        Returns:
            The number of deleted sessions.

        Raises:
            ValueError: No filter was passed; nothing was deleted.
        """
        where, values = _filtered(user_id, agent_id, key_prefix)
        with self._bounded():
            with self._transaction():
                deleted = self._drop(where, values)
                self._db.table("messages").rebuild_fts()  # the index remembers words of deleted rows until then
            self._db.vacuum()
        return deleted

    def redact(
        self, key: str, seq_or_id: int | str, *, reason: str | None = None, incarnation: int | None = None
    ) -> Message | None:
        """Redact a message, and remove all of its content from the file.

        `Conversation.redact_message(archive=...)` redacts a message in a store and in an archive.

        Args:
            key: The key of the session.
            seq_or_id: The `seq` (an int) or the id (a str) of the message.
            reason: A reason to store in the message. Default: None.
            incarnation: The `incarnation` of the session in the table `sessions`. Default: of the sessions with this
                key that have such a message, the one that was archived last.

        Returns:
            The redacted message, or None if there is no such message.
        """
        checked = edits.checked_seq_or_id(seq_or_id)
        query = (
            "SELECT messages.* FROM messages JOIN sessions ON sessions.id = messages.session_id "
            f"WHERE sessions.key = ? AND messages.{'id' if isinstance(checked, str) else 'seq'} = ? "
            "AND sessions.incarnation = coalesce(?, sessions.incarnation) ORDER BY sessions.id DESC LIMIT 1"
        )
        with self._bounded():
            with self._transaction():
                row = next(iter(self._db.query(query, [key, checked, incarnation])), None)
                if row is None:
                    return None
                redacted = edits.redacted(reason, row["role"])
                archived = {name: value for name, value in redacted.items() if name in row}
                archived |= {"content": json_of_content(redacted["text"], redacted["content"]), "text": ""}
                if row["role"] != _RECORD:  # the session does not count the tokens of records
                    spent = "UPDATE sessions SET token_count = token_count - ? WHERE id = ?"
                    self._connection.execute(spent, [row["tokens"] or 0, row["session_id"]])
                archived["tokens"] = None if row["tokens"] is None else 0
                self._db.table("messages").update((row["session_id"], row["seq"]), archived)
                if row.get("payloads") is not None:
                    self._drop_unused_payloads(row["session_id"])
                self._db.table("messages").rebuild_fts()  # the index remembers words of deleted rows until then
            self._db.vacuum()
        row |= redacted | {"tokens": archived["tokens"]}
        return decode_messages(key, [[row.get(name) for name in MESSAGE_FIELDS]])[0]

    def _drop_unused_payloads(self, session_id: int) -> None:
        used = self._connection.execute("SELECT payloads FROM messages WHERE session_id = ?", [session_id])
        digests = payloads.digests_of([listing for (listing,) in used if listing is not None])
        unused = "session_id = ? AND digest NOT IN (SELECT value FROM json_each(?))"
        self._connection.execute(f"DELETE FROM payloads WHERE {unused}", [session_id, json.dumps([*digests])])

    def restore(
        self, connection: sa.Connection, key: str, *, now: datetime, ttl: float | None, children: bool = False
    ) -> None:
        """Copy the latest incarnation of a session back into a store; `Store.restore` calls this method.

        The session also stays in the archive. With `children`, the descendants that were archived after the previous
        incarnation of the session are restored too.

        Args:
            connection: A connection to the store.
            key: The key of the session.
            now: The time to store as `updated_at`.
            ttl: The TTL in seconds; None for a session that never expires.
            children: Restore the descendants of the session too. Default: False.

        Raises:
            SessionNotFound: The archive has no session with this key.
            SessionExists: The store has a session with this key, or with the key of a descendant.
            InvalidFile: A row of a session is damaged; nothing was restored.
        """
        self._restore(connection, key, now, ttl)
        for descendant in self._descendants(key) if children else ():
            self._restore(connection, descendant, now, ttl)

    def _descendants(self, key: str) -> list[str]:
        """Return the keys of descendants that were archived after the previous incarnation of a session."""
        # One purge gives all its sessions the same `archived_at`. Their order is that of the ids: a clock can go back.
        previous = "SELECT id, archived_at FROM sessions WHERE key = ? ORDER BY id DESC LIMIT 1 OFFSET 1"
        query = (
            "SELECT DISTINCT key FROM sessions WHERE key >= ? AND key < ? AND id > ? AND archived_at IS NOT ? "
            "ORDER BY key"
        )
        prefix = levels.below(key)
        with self._bounded():
            after = self._connection.execute(previous, [key]).fetchone() or (0, "")
            return [row[0] for row in self._connection.execute(query, [prefix, end_of_prefix(prefix), *after])]

    def _restore(self, connection: sa.Connection, key: str, now: datetime, ttl: float | None) -> None:
        with self._bounded():
            rows = list(self._db["sessions"].rows_where("key = ?", [key], order_by="id desc", limit=1))
            if not rows:
                raise SessionNotFound(
                    key, f"the archive {self._path} has no session {quoted(key)}: search it for words"
                )
            row = rows[0]
            if transfer.exists(connection, key):
                raise SessionExists(key)
            expires_at = None if ttl is None else encode_time_text(now + timedelta(seconds=ttl))
            changes = {"ttl_seconds": ttl, "expires_at": expires_at, "updated_at": encode_time_text(now)}
            encoder = RowEncoder(marks_copies="copied_from" in self._db["turns"].columns_dict)
            self._restore_row(connection, encoder, SESSION, row | changes, "the session")
            for name, (table, _, label) in self._parts().items():
                for part in self._db[name].rows_where("session_id = ?", [row["id"]]):
                    self._restore_row(connection, encoder, table, {"session_key": key, **part}, label)
            try:
                encoder.check_payloads()
            except InvalidValue as error:
                raise InvalidFile(self._path, f"session {quoted(key)}: {error}; nothing was restored") from None
            # With the same incarnation, a later purge replaces this row of the archive instead of adding another one.
            counters = encoder.corrections() | {"incarnation": row["incarnation"]}
            transfer.set_counters(connection, key, counters)

    def _restore_row(
        self, connection: sa.Connection, encoder: RowEncoder, table: sa.Table, archived: dict[str, Any], label: str
    ) -> None:
        row = {column.name: archived.get(column.name) for column in TABLES[table].columns}
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
        raise ValueError("no filter was given: give user_id, agent_id or key_prefix")
    filters = {"user_id = ?": user_id, "agent_id = ?": agent_id, "instr(key, ?) = 1": key_prefix}
    conditions = {condition: value for condition, value in filters.items() if value is not None}
    return " AND ".join(conditions), list(conditions.values())


@contextmanager
def _our_errors(path: str | Path) -> Iterator[None]:
    from sqlite_utils.db import NotFoundError

    try:
        yield
    except (sqlite3.Error, NotFoundError) as error:
        if fault := guard_fault(error):
            raise InvalidFile(path, fault) from error
        ours = translated(error, SQLite())
        if type(ours) is not LangoStoreError:
            ours.args = (f"archive {path}: {ours}",)
        raise ours from None


def _columns(table: sa.Table) -> dict[str, type]:
    columns = TABLES[table].columns
    return {column.name: _kind(column.type) for column in columns if column.name != "session_key"}


def _kind(column_type: sa.types.TypeEngine[Any]) -> type:
    if isinstance(column_type, sa.Integer):
        return int
    return float if isinstance(column_type, sa.Numeric | sa.Float) else str


def _archived(table: sa.Table, row: transfer.Row) -> dict[str, Any]:
    """Return a row for the archive: without the session key, and with the content of a message in one column."""
    archived = {
        name: encode_time_text(value) if isinstance(value, datetime) else value
        for name, value in row.items()
        if name != "session_key"
    }
    if table is MESSAGE:
        archived["content"] = json_of_content(row["text"], row["content"])
    return archived


def _text(row: dict[str, Any]) -> str:
    """Return the searchable text of a message: its content, and the arguments and outputs of its tool calls."""
    words = [] if row["text"] is None else [row["text"]]
    for name in ("content", "tool_calls"):
        if row[name] is not None:
            try:
                value = decode_json(row[name])
                words += _texts_in(value if name != "content" else parts_of(value) or value)
            except ValueError:
                words.append(row[name])  # damaged JSON is searched as text
    return " ".join(words).encode("utf-8", "replace").decode().replace("\0", " ")


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, list | dict):
        return [word for item in (value.values() if isinstance(value, dict) else value) for word in _texts_in(item)]
    if value is None:
        return []
    return [value if isinstance(value, str) else json.dumps(value)]
