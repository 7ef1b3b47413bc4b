"""Import of lango's SQLite database: sessions, and messages ordered by time and then by row.

Columns without a field of ours, and exact texts such as times with nanoseconds and UTC offsets, are stored in the
`extra["lango"]` of the session or the message.

Sessions and messages are read with key, agent, model, metadata, author and tool calls, whose `input` and `output`
remain text, from a copy of the database with its write-ahead log. Other tables are not imported. lango compares times
as text, so its order can differ if times have different UTC offsets. A message with an unknown role is stored as `user`
and reported.
"""

import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from lango_store import Message, ToolCall
from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.draft import FileParts, Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import check_key, read_json, read_role
from lango_store.interchange.moments import moment, nanoseconds
from lango_store.interchange.source import copy_database, database_fault, first_bytes, open_database
from lango_store.rows import mapping, storable_text

Row = dict[str, Any]

_MAGIC: Final = b"SQLite format 3\0"
_NEEDED: Final = {"sessions": {"id", "key"}, "messages": {"id", "role", "content", "timestamp", "session_messages"}}


def recognizes(path: Path) -> bool:
    """Return True if a file is a SQLite database with lango's tables, or one whose tables cannot be checked."""
    if first_bytes(path, len(_MAGIC)) != _MAGIC:
        return False
    if Path(f"{path}-wal").exists():  # the tables may be in the write-ahead log only
        return True
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            column = connection.execute("SELECT 1 FROM pragma_table_info('messages') WHERE name = 'session_messages'")
            return column.fetchone() is not None
    except sqlite3.Error:
        return True


class Database:
    """A temporary copy of a database file and of its `-wal` or `-journal` file. The original is never changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        folder = Path(tempfile.mkdtemp(prefix="lango-store-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        copy = copy_database(path, folder)
        with self._our_errors():
            connection = open_database(copy)
            weakref.finalize(self, connection.close)
            connection.text_factory = _text
            import sqlite_utils  # imported late: it takes half as long as SQLModel

            self._tables = sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)
            self._tables.register_function(_instant, name="instant", deterministic=True)
            self._check_tables()
            # The primary key refuses a damaged file whose pages repeat rows.
            connection.execute("CREATE TEMP TABLE place (row INTEGER PRIMARY KEY, session, instant)")
            connection.execute("INSERT INTO place SELECT rowid, session_messages, instant(timestamp) FROM messages")
            connection.execute("CREATE INDEX temp.place_order ON place (session, instant, row)")

    def _check_tables(self) -> None:
        for table, needed in _NEEDED.items():
            if lacking := needed - self._tables[table].columns_dict.keys():
                missing = ", ".join(sorted(lacking))
                raise InvalidFile(self._path, f"is not a database of lango, {table} lacks {missing}: give lango.db")

    def rows(self, query: str, *values: Any) -> Iterator[Row]:
        """Yield the rows of a query. Raises `InvalidFile` if the file is damaged."""
        with self._our_errors():
            for row in self._tables.query(query, values):
                yield {name: _plain(value) for name, value in row.items()}

    def messages(self, session: Any) -> Iterator[Row]:
        """Yield the messages of a session in the order of their times, then of their rows."""
        query = (
            "SELECT messages.* FROM place JOIN messages ON messages.rowid = row WHERE session = ? ORDER BY instant, row"
        )
        return self.rows(query, session)

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:
            fault = database_fault(error)
            raise InvalidFile(
                self._path, f"cannot be read as lango's database ({fault}): give a complete database, not encrypted"
            ) from error


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")  # invalid UTF-8 becomes lone surrogates, which JSON can hold


def _plain(value: Any) -> Any:
    """Convert a value of SQLite to a value of JSON."""
    if isinstance(value, bytes):
        return _text(value)
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def _instant(timestamp: Any) -> str:
    """Return a text that sorts by time. A value that is not a time sorts last."""
    count = nanoseconds(_plain(timestamp))
    return "~" if count is None else f"{count + 10**21:030d}"


NAME: Final = "lango"

_SESSION_FIELDS: Final = ("id", "key", "agent_id", "model", "metadata")
_MESSAGE_FIELDS: Final = ("id", "role", "content", "author", "tool_calls", "session_messages")
_CALL_FIELDS: Final = {"id": "id", "name": "name", "input": "arguments", "output": "output"}


def read(path: Path, skipped: list[Skipped]) -> Iterator[SessionDraft]:
    """Yield the sessions. Rows that cannot be stored unchanged are reported in `skipped`, with their ids."""
    database = Database(path)
    strays = (
        "SELECT id FROM messages WHERE session_messages IS NULL OR session_messages NOT IN (SELECT id FROM sessions)"
    )
    for row in database.rows(strays):
        skipped.append(Skipped(_number(row), f"message row {row['id']} belongs to no session: left out"))
    ids: set[Any] = set()
    for row in database.rows("SELECT * FROM sessions ORDER BY id"):
        if row["id"] in ids:
            raise InvalidFile(path, f"is damaged, it has the session row {row['id']} twice: use another copy")
        ids.add(row["id"])
        try:
            key = check_key(row["key"])
        except InvalidKey as error:
            skipped.append(Skipped(_number(row), f"session row {row['id']} was left out: {error}"))
        else:
            yield _draft(database, key, row, skipped)


def _draft(database: Database, key: str, row: Row, skipped: list[Skipped]) -> SessionDraft:
    metadata = _json(row.get("metadata"))
    fields = {name: text for name in ("agent_id", "model") if (text := storable_text(row.get(name)))}
    if mapping(metadata):
        fields["metadata"] = metadata
    raw = _raw(row, _SESSION_FIELDS)
    raw |= {name: row[name] for name in ("agent_id", "model") if row.get(name) and name not in fields}
    if row.get("metadata") is not None and not isinstance(metadata, dict):
        raw["metadata"] = row["metadata"]
    created_at = moment(row.get("created_at"))

    def parts(skipped: list[Skipped]) -> Iterator[Part]:
        for each in database.messages(row["id"]):
            yield Part([_message(each, skipped)], created_at=created_at)

    return SessionDraft(
        key=key,
        parts=FileParts(parts, skipped),
        fields=fields,
        created_at=created_at,
        updated_at=moment(row.get("updated_at")),
        extra={NAME: raw} if raw else {},
    )


def _message(row: Row, skipped: list[Skipped]) -> Message:
    raw = _raw(row, _MESSAGE_FIELDS)
    role = read_role(row["role"], skipped, _number(row), f"message row {row['id']}")
    if role.value != row["role"]:
        raw["role"] = row["role"]
    author = storable_text(row.get("author"))
    if row.get("author") and author is None:
        raw["author"] = row["author"]
    calls = _calls(row.get("tool_calls"))
    if calls is None:
        raw["tool_calls"] = row["tool_calls"]
        skipped.append(Skipped(_number(row), f"message row {row['id']}: its tool calls are damaged, stored in extra"))
    return Message(
        role=role,
        content=row["content"],
        author=author,
        tool_calls=calls or [],
        created_at=moment(row["timestamp"]),
        extra={NAME: raw} if raw else {},
    )


def _raw(row: Row, fields: tuple[str, ...]) -> Row:
    return {name: value for name, value in row.items() if name not in fields and value is not None}


def _number(row: Row) -> int:
    return row["id"] if isinstance(row["id"], int) else 0


def _json(text: Any) -> Any:
    try:
        return read_json(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _calls(text: Any) -> list[ToolCall] | None:
    """Return the tool calls of a message, None if they are damaged."""
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
    """Convert a tool call. Arguments and output remain the texts that lango stores."""
    fields = {"id": "", "name": ""} | {ours: call[name] for name, ours in _CALL_FIELDS.items() if name in call}
    return ToolCall(**fields, extra={name: value for name, value in call.items() if name not in _CALL_FIELDS})
