"""Salvage of damaged files: every row that SQLite can read is saved, and losses are reported."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run
from support.damage import KEYS, PAGE, ROUNDS, leaves_of, lose
from support.databases import MakeDatabase
from support.rows import all_fields, shared_fields
from support.session_checks import assert_sound

from lango_store import DatabaseUnavailable, InvalidFile, Message, Store, ToolCall, UnknownFeature, schema
from lango_store._operations.log import counters
from lango_store._rooms.turns_in_progress import owed
from lango_store.interchange.copying import copy
from lango_store.interchange.salvage import salvage

TABLES = tuple(
    f"lango_{name}"
    for name in ("session", "turn", "message", "payload", "change", "value", "draft", "inbox", "shared_value")
)
pytestmark = pytest.mark.timeout(120 + 5 * ROUNDS)


@pytest.fixture
def sound(sound_file: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{sound_file}") as store:
        yield store


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    return make_sqlite()


def rows_by_number(path: Path, numbers: dict[str, int]) -> dict[tuple[str, int], Any]:
    """Read each row by its rowid, without an index and without code of the package."""
    found: dict[tuple[str, int], Any] = {}
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        connection.execute("PRAGMA writable_schema = ON")  # without it, SQLite reads nothing of a file that was cut
        for table, most in numbers.items():
            for number in range(1, most + 1):
                try:
                    row = connection.execute(f"SELECT * FROM {table} NOT INDEXED WHERE rowid = ?", [number]).fetchone()
                except sqlite3.Error:
                    continue
                if row is not None:
                    found[table, number] = row
    return found


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def position(fields: dict[str, Any]) -> tuple[Any, ...]:
    """Return the identifying columns of a row of any table."""
    names = ("session_key", "key", "scope", "name", "seq", "turn_no", "kind", "n", "token", "digest")
    return tuple(fields.get(name) for name in names)


def fields_of(store: Store) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return all rows by their positions, without counters, which a salvage corrects."""
    rows = [row for session in all_fields(store).values() for row in session] + shared_fields(store)
    uncounted = [{name: row[name] for name in row if "key" not in row or name not in counters.NAMES} for row in rows]
    return {position(row): row for row in uncounted}


def without_wait(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a session that does not wait for its inbox; other rows unchanged."""
    waiting = row.get("waiting", 0)
    if not waiting & owed.IN_INBOX:
        return row
    ended = set() if waiting & ~owed.IN_INBOX or "lease_turn" in row else {"owed_at", "attempts", "last_error"}
    return {name: row[name] for name in row if name not in ended} | {"waiting": waiting & ~owed.IN_INBOX}


def matched(rows: dict[tuple[Any, ...], dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return rows without references to lost rows: turns, payloads, and messages of payloads."""
    turns = {(row["session_key"], row["turn_no"]) for row in rows.values() if "first_seq" in row}
    lost_turns = {
        at for at, row in rows.items() if "turn_no" in row and (row["session_key"], row["turn_no"]) not in turns
    }
    detached = ({name: rows[at][name] for name in rows[at] if name != "turn_no"} for at in lost_turns)
    rows = {at: row for at, row in rows.items() if at not in lost_turns} | {position(row): row for row in detached}
    payloads = {(row["session_key"], row["digest"]) for row in rows.values() if "body" in row}
    used = {(row["session_key"], row["payloads"]["text"][0]): row for row in rows.values() if "payloads" in row}
    lost = {id(row) for reference, row in used.items() if reference not in payloads}
    unused = {id(row) for row in rows.values() if "body" in row and (row["session_key"], row["digest"]) not in used}
    return {
        at: {name: value for name, value in row.items() if name != "payloads"} if id(row) in lost else row
        for at, row in rows.items()
        if id(row) not in unused
    }


def overwrite(path: Path, seed: int) -> None:
    """Overwrite pages or parts of pages, except the first page, which has the schema; cut every third file."""
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 2, 3, 6, 12))):
        start = chance.randrange(1, len(data) // PAGE) * PAGE
        first = chance.choice((0, 0, 0, chance.randrange(PAGE)))
        size = PAGE - first if chance.random() < 0.7 else min(100, PAGE - first)
        data[start + first : start + first + size] = chance.choice((bytes(size), chance.randbytes(size)))
    path.write_bytes(data if seed % 3 else data[: chance.randrange(len(data) // 2, len(data))])


@pytest.mark.slow
def test_every_row_that_sqlite_can_read_is_salvaged(sound: Store, sound_file: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(sound_file)) as connection:
        numbers = {each: connection.execute(f"SELECT max(rowid) FROM {each}").fetchone()[0] or 0 for each in TABLES}
        names = {each: [row[1] for row in connection.execute(f"PRAGMA table_info({each})")] for each in TABLES}
    original, whole = rows_by_number(sound_file, numbers), fields_of(sound)
    places = {
        place: position(dict(zip(names[place[0]], map(_text, row), strict=True))) for place, row in original.items()
    }
    salvaged = 0
    for seed in range(ROUNDS):
        path = tmp_path / f"{seed}.db"
        path.write_bytes(sound_file.read_bytes())
        overwrite(path, seed)
        before = path.read_bytes()
        readable = {place for place, row in rows_by_number(path, numbers).items() if row == original[place]}
        with Store(f"sqlite:///{tmp_path}/{seed}.salvaged.db", migrate=True) as target:
            try:
                report = salvage(path, target)
            except InvalidFile:
                assert not readable, seed
                continue
            found = fields_of(target)
            with target.engine.connect() as connection:
                inboxes = {*connection.scalars(sa.text("SELECT session_key FROM lango_inbox"))}
            for at, row in matched({places[place]: whole[places[place]] for place in readable}).items():
                assert found.get(at) == (row if row.get("key") in inboxes else without_wait(row)), (seed, at)
            assert_sound(target)
            assert not report.failed, seed
            assert report.complete is (len(readable) == len(original)), seed
        assert path.read_bytes() == before
        assert not list(tmp_path.glob(f"{seed}.db-*"))
        salvaged += len(readable)
    assert salvaged > ROUNDS * len(original) // 3


@pytest.mark.slow
def test_salvage_recreates_lost_session_row(sound: Store, damaged_file: Path, url: str) -> None:
    lose(damaged_file, *leaves_of("lango_session", damaged_file))
    with Store(url) as target:
        report = salvage(damaged_file, target)
        assert report.copied == len(KEYS)
        for key in KEYS:
            info = target.conversation(key).info()
            assert [each.content for each in target.conversation(key).all_messages()] == [
                each.content for each in sound.conversation(key).all_messages()
            ]
            assert (info.title, info.last_seq) == (None, sound.conversation(key).info().last_seq)
        assert_sound(target)
    assert {each.key for each in report.missing if "its row is lost" in each.reason} == set(KEYS)


def test_salvage_recreates_the_session_of_a_draft_alone(make_sqlite: MakeDatabase, url: str) -> None:
    file = Path(make_sqlite().removeprefix("sqlite:///"))
    with Store(f"sqlite:///{file}") as source, source.open("k").turn("t") as turn:
        turn.write("half an answer")
        turn.flush()
        with closing(sqlite3.connect(file)) as connection:  # its own rows, without foreign keys
            connection.execute("DELETE FROM lango_session")
            connection.commit()
        with Store(url) as target:
            report = salvage(file, target)
            assert [draft.text for draft in target.conversation("k").drafts.list()] == ["half an answer"]
            assert_sound(target)
        turn.abandon()
    assert ["its row is lost" in each.reason for each in report.missing] == [True]


@pytest.mark.slow
def test_salvage_keeps_message_whose_payload_is_lost(make_sqlite: MakeDatabase, tmp_path: Path, url: str) -> None:
    file = Path(make_sqlite().removeprefix("sqlite:///"))
    with Store(f"sqlite:///{file}", payload_threshold=10) as source:
        source.create("k", messages=[Message.user(["lost string", "kept string"]), Message.user("lost string")])
        with source.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM lango_payload WHERE body = 'lost string'")
    with Store(url) as target:
        report = salvage(file, target)
        assert [each.content for each in target.conversation("k").messages()] == [["", "kept string"], ""]
        assert_sound(target)
    assert [(each.key, each.reason) for each in report.missing] == [
        ("k", f"a large string of message {seq} is lost, its place is empty") for seq in (1, 2)
    ]


def test_salvage_leaves_out_suspensions_of_lost_messages(make_sqlite: MakeDatabase, url: str) -> None:
    file = Path(make_sqlite().removeprefix("sqlite:///"))
    with Store(f"sqlite:///{file}") as source:
        session = source.open("k", messages=[Message.assistant(tool_calls=[ToolCall(id="c", name="pay")])])
        session.suspensions.create([(1, 0)])
        with source.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_message SET tool_calls = 'damaged'")
    with Store(url) as target:
        report = salvage(file, target)
        assert target.conversation("k").suspensions.list() == []
        assert_sound(target)
    assert "1 rows of lango_suspension belong to lost messages, such as 1" in {each.reason for each in report.missing}


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["0100", "0102", "0104"])
def test_file_of_an_earlier_migration_revision_is_salvaged(make_sqlite: MakeDatabase, url: str, revision: str) -> None:
    file = Path(make_sqlite().removeprefix("sqlite:///"))
    with Store(f"sqlite:///{file}") as source:
        source.create("k", messages=[Message.user("hello"), Message.user([1])])
        for content in ("waiting", [1]):
            source.conversation("k").inbox.put(Message.user(content, author="ann", extra={"x": None}))
    schema.downgrade(f"sqlite:///{file}", revision)
    with Store(url) as target:
        assert salvage(file, target).complete
        assert [each.content for each in target.conversation("k").messages()] == ["hello", [1]]
        waiting = [(each.content, each.author, each.extra) for each in target.conversation("k").inbox.list()]
        expected = [("waiting", "ann", {"x": None}), ([1], "ann", {"x": None})]
        assert waiting == (expected if revision >= "0103" else [])


def test_messages_in_the_wal_file_are_salvaged(make_sqlite: MakeDatabase, tmp_path: Path, url: str) -> None:
    with Store(make_sqlite()) as source:
        source.append_message("k", Message.user("still in the log"), create=True)
        file = Path(source.engine.url.database or "")
        for ending in ("", "-wal", "-shm"):
            (tmp_path / f"copy.db{ending}").write_bytes(Path(f"{file}{ending}").read_bytes())
    assert (tmp_path / "copy.db-wal").stat().st_size > 0
    before = {path: path.read_bytes() for path in tmp_path.glob("copy.db*")}
    with Store(url) as target:
        report = salvage(tmp_path / "copy.db", target)
        assert (report.complete, target.get("k").messages[0].content) == (True, "still in the log")
    assert {path: path.read_bytes() for path in tmp_path.glob("copy.db*")} == before


def test_file_with_unknown_feature_is_not_salvaged(damaged_file: Path, url: str) -> None:
    with closing(sqlite3.connect(damaged_file)) as connection, connection:
        connection.execute("INSERT INTO lango_feature VALUES ('moods')")
    with Store(url) as target, pytest.raises(UnknownFeature, match="moods"):
        salvage(damaged_file, target)


@pytest.mark.slow
def test_salvage_command_lists_losses_and_exits_1(
    damaged_file: Path, make_database: MakeDatabase, sound_file: Path
) -> None:
    lose(damaged_file, leaves_of("lango_message", damaged_file)[4])
    url = make_database()
    with (
        Store(url) as target,
        Store(f"sqlite:///{damaged_file}") as source,
        pytest.raises(DatabaseUnavailable, match="malformed"),
    ):
        copy(source, target)
    done = run("copy", "--from", str(damaged_file), "--to", url, "--salvage")
    assert done.returncode == 1
    assert "copied 20 sessions" in done.stdout
    assert "messages are missing: seq " in done.stderr
    again = run("copy", "--from", f"sqlite:///{damaged_file}", "--to", url, "--salvage", "--json")
    assert (again.returncode, '"already_there":20' in again.stdout.replace(" ", "")) == (1, True)
    assert run("copy", "--from", str(sound_file), "--to", make_database(), "--salvage").returncode == 0
    assert run("copy", "--from", str(damaged_file), "--to", f"sqlite:///{damaged_file}", "--salvage").returncode == 2
    assert run("copy", "--from", "missing.db", "--to", url, "--salvage").returncode == 1
