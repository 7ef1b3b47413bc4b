"""Imports of lango's database: values as lango reads them, except the order of messages with mixed time zones."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from interchange.session_files import golden
from support.databases import MakeDatabase
from support.paths import DATA

from lango_store import Message, MessageRole, Store, ToolCall, interchange
from lango_store.errors import InvalidFile
from lango_store.interchange import lango
from lango_store.interchange.draft import SessionDraft, Skipped
from lango_store.interchange.moments import nanoseconds

pytestmark = pytest.mark.one_database

FILE = DATA / "lango" / "lango.db"


def read(path: Path) -> dict[str, SessionDraft]:
    return {draft.key: draft for draft in lango.read(path, [])}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the database in a separate folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return Path(shutil.copy(FILE, folder))


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def insert(id: int, **columns: Any) -> str:
    """Return the statement that adds a message to the empty session `partial`."""
    values = {"id": id, "role": "user", "content": "x", "timestamp": "2026-04-01 10:00:00+00:00", "session_messages": 6}
    row = {name: "NULL" if value is None else repr(value) for name, value in (values | columns).items()}
    return f"INSERT INTO messages ({', '.join(row)}) VALUES ({', '.join(row.values())})"


def langos(message: Message) -> dict[str, Any]:
    """Convert a message to the form of lango's expected output, with the time in nanoseconds."""
    kept = message.extra["lango"]
    return {
        "role": kept.get("role", message.role.value),
        "content": message.content,
        "timestamp": nanoseconds(kept["timestamp"]),
    }


@pytest.mark.parametrize("key", golden("lango"))
def test_messages_are_read_like_lango_reads_them(key: str) -> None:
    expected = golden("lango")[key]
    draft = read(FILE)[key]
    history = [message | {"timestamp": nanoseconds(message["timestamp"])} for message in expected["history"]]
    assert [langos(message) for message in draft.messages] == history
    for ours, theirs in (("created_at", "createdAt"), ("updated_at", "updatedAt")):
        assert nanoseconds(draft.extra["lango"][ours]) == nanoseconds(expected[theirs])


def test_messages_with_mixed_time_zones_are_ordered_by_instant_then_by_row(copy: Path) -> None:
    times = [
        "2026-04-01 10:00:00.000000002+09:00",
        "2026-04-01 01:00:00.000000001+00:00",
        "2026-03-31 20:00:00.000000003-05:00",
        "2026-04-01 01:00:00.000000001+00:00",
        "0001-01-01 00:00:00+14:00",
        "yesterday",
        "9999-12-31 23:59:59-14:00",
        "10000-01-01 00:00:00+00:00",
    ]
    change(copy, *(insert(100 + number, content=str(number), timestamp=time) for number, time in enumerate(times)))
    found = [*read(copy)["partial"].messages]
    assert [message.content for message in found] == ["4", "1", "3", "0", "2", "6", "5", "7"]
    assert [message.extra["lango"]["timestamp"] for message in found] == [times[int(m.content)] for m in found]
    assert found[1].created_at == datetime(2026, 4, 1, 1, tzinfo=UTC)
    assert found[0].created_at is found[5].created_at is found[6].created_at is None


def test_session_keeps_agent_model_metadata_and_channel() -> None:
    draft = read(FILE)["telegram:123:456"]
    assert draft.fields == {
        "agent_id": "agent-1",
        "model": "claude-sonnet-4",
        "metadata": {"json": '{"a":[1,2]}', "user": "test", "유니코드": "값"},
    }
    assert draft.created_at == datetime(2026, 11, 21, 20, 39, 57, 537259, tzinfo=UTC)
    kept = draft.extra["lango"]
    assert (kept["channel_type"], kept["channel_id"]) == ("telegram", "123")
    assert kept["updated_at"] == "2026-11-21 20:39:57.545040098+00:00"


def test_tool_calls_keep_output_thought_and_signature() -> None:
    _, asked, answered, *_ = read(FILE)["telegram:123:456"].messages
    assert (asked.author, answered.author) == ("lango-orchestrator", "tool")
    assert asked.tool_calls == [
        ToolCall(
            id="call_1",
            name="exec",
            arguments='{"cmd":"ls"}',
            extra={"thought": True, "thoughtSignature": "c2lnAP8="},
        )
    ]
    assert not asked.tool_calls[0].answered
    assert answered.tool_calls == [ToolCall(id="call_1", name="exec", arguments="", output='{"out":"file.txt"}')]


def test_unknown_role_becomes_user_and_is_reported() -> None:
    skipped: list[Skipped] = []
    drafts = {draft.key: draft for draft in lango.read(FILE, skipped)}
    (message,) = drafts["empty"].messages
    assert (message.role, message.extra["lango"]["role"]) == (MessageRole.USER, "weird")
    assert [(each.line, "stored as user" in each.reason) for each in skipped] == [(22, True)]


def test_second_import_of_a_database_changes_nothing(url: str) -> None:
    with Store(url) as store:
        (report,) = interchange.import_path(store, FILE)
        assert (report.format, report.error, report.sessions, report.messages) == ("lango", None, 8, 16)
        assert [message.content for message in store.conversation("same-ts").all_messages()] == ["m4", "m5"]
        assert store.conversation("telegram:123:456").info().agent_id == "agent-1"
        assert store.conversation("telegram:123:456").all_messages()[2].tool_calls[0].output == '{"out":"file.txt"}'
        (message,) = store.conversation("zero-ts").all_messages()
        assert message.created_at == store.conversation("zero-ts").info().created_at
        (again,) = interchange.import_path(store, FILE)
        assert (again.sessions, len(again.already_there), again.collided) == (0, 8, [])


@pytest.fixture(params=["closed", "closed in WAL mode", "open in WAL mode", "killed in WAL mode", "killed"])
def source(request: pytest.FixtureRequest, copy: Path) -> Iterator[Path]:
    """A database whose last message says "new", in each state that lango may leave it in."""
    state = request.param
    connection = sqlite3.connect(copy)
    try:
        if "WAL" in state:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(insert(100, content="new"))
        connection.commit()
        if state == "killed":
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("UPDATE messages SET content = 'never committed'")
            connection.execute("PRAGMA cache_spill = 1")
            connection.execute(
                "INSERT INTO secrets SELECT randomblob(16), hex(randomblob(9)), zeroblob(9000000), "
                "'2026-01-01', '2026-01-01', 0, randomblob(16)"
            )
        if state.startswith("killed"):
            copied = copy.parent.parent / "killed"
            shutil.copytree(copy.parent, copied, ignore=shutil.ignore_patterns("*-shm"))
            assert len(list(copied.iterdir())) == 2
            yield copied / copy.name
        elif state == "open in WAL mode":
            assert Path(f"{copy}-wal").stat().st_size
            yield copy
        else:
            connection.close()
            yield copy
    finally:
        connection.close()


def test_import_never_changes_source_database(source: Path) -> None:
    def state() -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.parent.iterdir()}

    before = state()
    assert lango.recognizes(source)
    drafts = read(source)
    assert [message.content for message in drafts["partial"].messages] == ["new"]
    assert [message.content for message in drafts["same-ts"].messages] == ["m4", "m5"]
    assert state() == before


def test_rows_that_cannot_be_stored_are_reported_and_other_rows_imported(copy: Path) -> None:
    change(
        copy,
        "UPDATE sessions SET key = '' WHERE id = 1",
        "UPDATE sessions SET agent_id = CAST(x'610062' AS TEXT), metadata = 'damaged' WHERE id = 2",
        insert(100, tool_calls="damaged"),
        insert(101, tool_calls='[{"id": 1}]'),
        insert(102, session_messages=None),
        insert(103, session_messages=99),
        insert(104, author="a", tool_calls="null"),
        "UPDATE messages SET content = CAST(x'ff' AS TEXT), author = CAST(x'ff' AS TEXT) WHERE id = 104",
    )
    skipped: list[Skipped] = []
    drafts = {draft.key: draft for draft in lango.read(copy, skipped)}
    for draft in drafts.values():
        assert [*draft.messages] == [*draft.messages]
    assert sorted(each.line for each in skipped) == [1, 22, 100, 101, 102, 103]
    assert len(drafts) == 7
    assert (
        drafts["empty"].extra["lango"] | {"agent_id": "a\0b", "metadata": "damaged"} == drafts["empty"].extra["lango"]
    )
    damaged, other, no_utf8 = drafts["partial"].messages
    assert (damaged.extra["lango"]["tool_calls"], other.extra["lango"]["tool_calls"]) == ("damaged", '[{"id": 1}]')
    assert (no_utf8.content, no_utf8.extra["lango"]["author"]) == ("\udcff", "\udcff")


def test_older_and_newer_lango_databases_are_readable(copy: Path) -> None:
    change(
        copy,
        "ALTER TABLE messages ADD COLUMN mood text DEFAULT 'good'",
        "ALTER TABLE messages DROP COLUMN author",
        "ALTER TABLE sessions DROP COLUMN channel_id",
    )
    message, *_ = read(copy)["same-ts"].messages
    assert (message.author, message.extra["lango"]["mood"]) == (None, "good")


@pytest.mark.parametrize("table", ["sessions", "messages"])
def test_database_that_lacks_a_table_of_lango_is_refused(table: str, copy: Path) -> None:
    change(copy, f"ALTER TABLE {table} RENAME TO other")
    with pytest.raises(InvalidFile, match=f"is not a database of lango, {table} lacks"):
        read(copy)


def test_function_recognizes_returns_false_for_other_databases_and_missing_files(
    copy: Path, make_sqlite: MakeDatabase
) -> None:
    assert lango.recognizes(copy)
    for other in (Path(make_sqlite().removeprefix("sqlite:///")), copy.with_name("missing.db")):
        assert not lango.recognizes(other)
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + b"x" * 5_000, b"\0" * 100])
def test_file_that_is_not_a_database_raises_invalid_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lango.db"
    path.write_bytes(data)
    with pytest.raises(InvalidFile):
        read(path)
    assert lango.recognizes(path) is data.startswith(b"SQLite format 3\0")


def test_file_name_with_url_characters_is_accepted(tmp_path: Path) -> None:
    path = Path(shutil.copy(FILE, tmp_path / "a?mode=rwc#50%.db"))
    assert lango.recognizes(path)
    assert len(read(path)) == 8
    assert list(tmp_path.iterdir()) == [path]
