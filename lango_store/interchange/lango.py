"""lango's SQLite database, read only: its sessions and their messages, ordered by instant, then by row.

Columns that we have no field for, and texts that our fields do not give back exactly (times with nanoseconds and their
own offsets), are kept in `extra["lango"]` of the session and of each message.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lango_store.columns import checked_key
from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import kept_text, known_role, mapping
from lango_store.interchange.files import LONGEST_LINE
from lango_store.interchange.json_text import strict_json
from lango_store.interchange.moments import moment, nanoseconds
from lango_store.interchange.source import Source, first_bytes
from lango_store.model import Message, MessageRole, ToolCall

NAME: Final = "lango"

_MAGIC: Final = b"SQLite format 3\0"
_NEEDED: Final = {"sessions": {"id", "key"}, "messages": {"id", "role", "content", "timestamp", "session_messages"}}
_SESSION_FIELDS: Final = ("id", "key", "agent_id", "model", "metadata")
_MESSAGE_FIELDS: Final = ("id", "role", "content", "author", "tool_calls", "session_messages")
_CALL_FIELDS: Final = {"id": "id", "name": "name", "input": "arguments", "output": "output"}
_PAGE: Final = 100

Row = dict[str, Any]


def recognises(path: Path) -> bool:
    """Tell by a file's first bytes and its tables whether it is lango's; a damaged database may be."""
    if first_bytes(path, len(_MAGIC)) != _MAGIC:
        return False
    if Path(f"{path}-wal").exists():  # the tables may lie there
        return True
    try:
        with closing(sqlite3.connect(_untouched(path), uri=True)) as connection:
            found = connection.execute("SELECT 1 FROM pragma_table_info('messages') WHERE name = 'session_messages'")
            return found.fetchone() is not None
    except sqlite3.Error:
        return True


def _untouched(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
    """Read all sessions; a row that cannot be kept as it was is told of by its id."""
    database = _Database(path)
    drafts: list[Draft] = []
    for row in database.rows("SELECT * FROM sessions ORDER BY id"):
        try:
            key = checked_key(row["key"])
        except InvalidKey as error:
            skipped.append(Skipped(_number(row), f"session row {row['id']} was left out: {error}"))
            continue
        drafts.append(_draft(database, key, row))
    for row in database.rows("SELECT * FROM messages ORDER BY id"):
        _message(row, skipped)
    strays = (
        "SELECT id FROM messages WHERE session_messages IS NULL OR session_messages NOT IN (SELECT id FROM sessions)"
    )
    for row in database.rows(strays):
        skipped.append(Skipped(_number(row), f"message row {row['id']} belongs to no session: left out"))
    return drafts


def _draft(database: _Database, key: str, row: Row) -> Draft:
    metadata = _json(row.get("metadata"))
    fields = {name: text for name in ("agent_id", "model") if (text := kept_text(row.get(name)))}
    if mapping(metadata):
        fields["metadata"] = metadata
    kept = _kept(row, _SESSION_FIELDS)
    kept |= {name: row[name] for name in ("agent_id", "model") if row.get(name) and name not in fields}
    if row.get("metadata") is not None and not isinstance(metadata, dict):
        kept["metadata"] = row["metadata"]
    created_at = moment(row.get("created_at"))
    return Draft(
        key=key,
        parts=lambda: _parts(database, row["id"], created_at),
        fields=fields,
        created_at=created_at,
        updated_at=moment(row.get("updated_at")),
        extra={NAME: kept} if kept else {},
    )


def _parts(database: _Database, session: Any, created_at: datetime | None) -> Iterator[Part]:
    """Give the messages of a session; one without a time is as old as the session."""
    query = (
        "SELECT messages.* FROM place JOIN messages ON messages.rowid = place.row "
        "WHERE session = ? ORDER BY instant, row"
    )
    messages = (_message(row, []) for row in database.rows(query, session))
    while page := list(islice(messages, _PAGE)):
        yield Part(page, created_at=created_at)


def _message(row: Row, skipped: list[Skipped]) -> Message:
    kept = _kept(row, _MESSAGE_FIELDS)
    role = known_role(row["role"])
    if role is None:
        role, kept["role"] = MessageRole.USER, row["role"]
        skipped.append(Skipped(_number(row), f"message row {row['id']}: its role {row['role']!r} was kept as user"))
    author = kept_text(row.get("author"))
    if row.get("author") and author is None:
        kept["author"] = row["author"]
    calls = _calls(row.get("tool_calls"))
    if calls is None:
        kept["tool_calls"] = row["tool_calls"]
        skipped.append(Skipped(_number(row), f"message row {row['id']}: its tool calls are damaged, kept in extra"))
    return Message(
        role=role,
        content=row["content"],
        author=author,
        tool_calls=calls or [],
        created_at=moment(row["timestamp"]),
        extra={NAME: kept} if kept else {},
    )


def _kept(row: Row, fields: tuple[str, ...]) -> Row:
    return {name: value for name, value in row.items() if name not in fields and value is not None}


def _number(row: Row) -> int:
    return row["id"] if isinstance(row["id"], int) else 0


def _json(text: Any) -> Any:
    try:
        return strict_json(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _calls(text: Any) -> list[ToolCall] | None:
    """Read the tool calls of a message, None if they are damaged."""
    if text is None or text == "":
        return []
    calls = _json(text)
    if calls is None and text == "null":
        return []
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return None
    return [_call(call) for call in calls]


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and all(isinstance(call.get(name, ""), str) for name in ("id", "name"))


def _call(call: dict[str, Any]) -> ToolCall:
    """Read a call; what a model passed and a tool gave stays the text that lango has."""
    known = {"id": "", "name": ""} | {ours: call[name] for name, ours in _CALL_FIELDS.items() if name in call}
    return ToolCall(**known, extra={name: value for name, value in call.items() if name not in _CALL_FIELDS})


class _Database:
    """A database file that is read and never touched: no lock, no journal, no file beside it.

    What lies in a journal beside it counts as well; then a copy of both is read. The order of the messages is kept in a
    temporary table, which SQLite has elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        beside = [Path(f"{path}{ending}") for ending in ("-wal", "-journal")]
        journals = [each for each in beside if each.is_file() and each.stat().st_size]
        self._sources = [Source(each) for each in (path, *journals)]
        uri = f"{self._copy().as_uri()}?mode=rw" if journals else _untouched(path)
        with self._our_errors():
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._connection.close)
            self._connection.text_factory = _text
            self._connection.create_function("instant", 1, _instant, deterministic=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._check_tables()
            self._connection.execute(
                "CREATE TEMP TABLE place AS "
                "SELECT session_messages AS session, instant(timestamp) AS instant, rowid AS row FROM messages"
            )
            self._connection.execute("CREATE INDEX temp.place_order ON place (session, instant, row)")

    def _check_tables(self) -> None:
        for table, needed in _NEEDED.items():
            found = {row["name"] for row in self.rows(f"PRAGMA table_info({table})")}
            if not needed <= found:
                missing = ", ".join(sorted(needed - found))
                raise InvalidFile(self._path, f"is no database of lango, {table} lacks {missing}: give lango.db")

    def rows(self, query: str, *values: Any) -> Iterator[Row]:
        """Give the rows of a query; `InvalidFile` if the file is damaged, or was written to since it was found."""
        with self._our_errors():
            cursor = self._connection.execute(query, values)
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield {name: _plain(value) for name, value in zip(names, row, strict=True)}
        for source in self._sources:
            source.check()

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:
            raise InvalidFile(
                self._path, f"cannot be read as lango's database ({error}): is it whole, and not encrypted?"
            ) from error

    def _copy(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="lango-store-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for source in self._sources:
            copy = folder / f"copy{source.path.name.removeprefix(self._path.name)}"
            with source.reading() as file, copy.open("wb") as to:
                shutil.copyfileobj(file, to)
        return folder / "copy"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")  # what is no UTF-8 comes as lone surrogates, which JSON can hold


def _plain(value: Any) -> Any:
    """Make a value of SQLite one of JSON."""
    if isinstance(value, bytes):
        return _text(value)
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def _instant(timestamp: Any) -> str:
    """Make a time text that sorts by the instant; what is no time comes last."""
    count = nanoseconds(_plain(timestamp))
    return "~" if count is None else f"{count + 10**21:030d}"
