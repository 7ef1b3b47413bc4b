"""Adoption of sessions of openai-agents: afterwards, `LangoSession` reads what the framework's own session read."""

import asyncio
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, EncryptedSession, SQLAlchemySession
from support.databases import MakeDatabase

from lango_store import Message, Store
from lango_store.integrations.openai_agents import LangoSession

from .adopting import adopt, kill_adoption, random_items, states

pytestmark = pytest.mark.timeout(300)

Open = Callable[[str], Any]


def write_sessions(opened: Open, *, count: int = 50, seed: int = 1) -> dict[str, list[Any]]:
    """Write random sessions, and return the items that the framework reads."""
    chance = random.Random(seed)

    async def write() -> dict[str, list[Any]]:
        written = {}
        for number in range(count):
            id = f"user/{number}%"
            session = opened(id)
            for items in random_items(chance):
                await session.add_items(items)
                if chance.random() < 0.1:
                    await session.pop_item()
            written[id] = await session.get_items()
            await close(session)
        return written

    return asyncio.run(write())


async def close(session: Any) -> None:
    if isinstance(session, SQLAlchemySession):
        await session.engine.dispose()
    elif isinstance(session, SQLiteSession):
        session.close()


def add(session: Any, items: list[Any]) -> list[Any]:
    """Add items, and return all items."""

    async def added() -> list[Any]:
        await session.add_items(items)
        found: list[Any] = await session.get_items()
        await close(session)
        return found

    return asyncio.run(added())


def read(url: str, id: str, **options: Any) -> list[Any]:
    async def items() -> list[Any]:
        async with LangoSession(id, url, **options) as session:
            found: list[Any] = await session.get_items()
            return found

    return asyncio.run(items())


def change(url: str, method: str, *arguments: Any) -> None:
    """Call a method of the session `a` in the store."""

    async def call() -> None:
        async with LangoSession("a", url) as session:
            await getattr(session, method)(*arguments)

    asyncio.run(call())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def check_killed_and_repeated(url: str, source: str, written: dict[str, list[Any]]) -> None:
    """Kill two adoptions, finish the third, and compare each session with what the framework read."""
    chance = random.Random(len(written))
    for _ in range(2):
        kill_adoption(url, source, chance.randrange(1, 25))
    reports = adopt(url, source)
    assert [each.skipped for each in reports if each.skipped] == []
    assert states(reports).keys() <= {"imported", "continued", "already there"}
    for id, items in written.items():
        assert read(url, id) == items
    assert states(adopt(url, source)) == {"already there": len(reports)}
    with Store(url) as store:
        assert sum(each.message_count + each.record_count for each in store.iter_sessions()) <= sum(
            map(len, written.values())
        )


def test_sessions_of_sqlite_session_are_equal_after_kills(url: str, file: Path) -> None:
    written = write_sessions(lambda id: SQLiteSession(id, file))
    before = file.read_bytes()
    check_killed_and_repeated(url, f"sqlite:///{file}", written)
    assert file.read_bytes() == before


def test_sessions_of_sqlalchemy_session_are_equal_after_kills(url: str, make_database: MakeDatabase) -> None:
    source = make_database(migrated=False)
    written = write_sessions(lambda id: SQLAlchemySession.from_url(id, url=asynchronous(source), create_tables=True))
    check_killed_and_repeated(url, source, written)


def asynchronous(url: str) -> str:
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    parsed = sa.make_url(url)
    return parsed.set(drivername=drivers[parsed.get_backend_name()]).render_as_string(hide_password=False)


def test_sessions_of_advanced_sqlite_session_are_equal_after_kills(url: str, file: Path) -> None:
    written = write_sessions(lambda id: AdvancedSQLiteSession(session_id=id, db_path=file, create_tables=True))
    check_killed_and_repeated(url, f"sqlite:///{file}", written)


def test_source_and_target_may_be_one_database(url: str) -> None:
    written = write_sessions(
        lambda id: SQLAlchemySession.from_url(id, url=asynchronous(url), create_tables=True), count=5
    )
    check_killed_and_repeated(url, url, written)


def test_branches_become_forks_and_usage_becomes_turns(url: str, file: Path) -> None:
    class Result:
        def __init__(self, usage: Any) -> None:
            self.context_wrapper = type("Wrapper", (), {"usage": usage})

    from agents.usage import Usage

    async def write() -> dict[str, list[Any]]:
        session = AdvancedSQLiteSession(session_id="a", db_path=file, create_tables=True)
        for number in range(3):
            await session.add_items([{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "a"}])
            await session.store_run_usage(Result(Usage(requests=1, input_tokens=10 + number, output_tokens=3)))  # type: ignore[arg-type]
        await session.create_branch_from_turn(2, "other/way")
        await session.add_items([{"role": "user", "content": "another"}])
        items = {branch: await session.get_items(branch_id=branch) for branch in ("main", "other/way")}
        session.close()
        return items

    items = asyncio.run(write())
    source = f"sqlite:///{file}"
    assert [each.key for each in adopt(url, source)] == ["a", "a/other%2Fway"]
    assert read(url, "a") == items["main"]
    assert read(url, "other/way", prefix="a/") == items["other/way"]
    with Store(url) as store:
        turns = store.conversation("a").turns.list()
        assert [(turn.usage["requests"], turn.usage["input_tokens"]) for turn in turns] == [(1, 10), (1, 11), (1, 12)]
        assert [(turn.first_seq, turn.last_seq) for turn in turns] == [(1, 2), (3, 4), (5, 6)]
        assert store.conversation("a/other%2Fway").info().forked_from == "a"
        assert store.conversation("a/other%2Fway").turns.list() == []

    async def store_usage_late() -> None:
        session = AdvancedSQLiteSession(session_id="a", db_path=file, create_tables=True)
        await session.switch_to_branch("other/way")
        await session.store_run_usage(Result(Usage(requests=1, input_tokens=50)))  # type: ignore[arg-type]
        session.close()

    asyncio.run(store_usage_late())
    for _ in range(2):
        adopt(url, source)
        with Store(url) as store:
            (turn,) = store.conversation("a/other%2Fway").turns.list()
            assert (turn.usage["input_tokens"], turn.last_seq - turn.first_seq) == (50, -1)


def test_damaged_usage_and_a_turn_in_two_parts_lose_no_items(url: str, file: Path) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(3)]
    assert add(AdvancedSQLiteSession(session_id="a", db_path=file, create_tables=True), items) == items
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE message_structure SET user_turn_number = 1 WHERE sequence_number = 3")
        connection.execute(
            "INSERT INTO turn_usage (session_id, user_turn_number, requests, input_tokens_details) "
            "VALUES ('a', 1, 2, '{'), ('a', 9, 1, '{')"
        )
    (report,) = adopt(url, f"sqlite:///{file}")
    assert (report.state, report.skipped) == ("imported", [])
    assert read(url, "a") == items
    with Store(url) as store:
        turns = store.conversation("a").turns.list()
        assert [turn.usage for turn in turns] == [{"requests": n, "input_tokens_details": "{"} for n in (2, 1)]


def test_adoption_continues_a_source_that_grew_and_keeps_what_was_added_since(url: str, file: Path) -> None:
    source, calls = f"sqlite:///{file}", [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]
    before = add(SQLiteSession("a", file), [{"role": "user", "content": "q"}, *calls])
    adopt(url, source)
    change(url, "add_items", [{"role": "user", "content": "in the store"}])
    after = add(SQLiteSession("a", file), [{"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"}])
    (report,) = adopt(url, source)
    assert (report.state, report.messages) == ("continued", 1)
    assert read(url, "a") == [*before, {"role": "user", "content": "in the store"}, *after[len(before) :]]


def test_item_removed_in_the_store_stays_removed(url: str, file: Path) -> None:
    items = add(SQLiteSession("a", file), [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}])
    adopt(url, f"sqlite:///{file}")
    change(url, "pop_item")
    adopt(url, f"sqlite:///{file}")
    assert read(url, "a") == items[:1]


@pytest.mark.parametrize("kind", [SQLiteSession, SQLAlchemySession])
def test_items_have_the_order_in_which_the_framework_reads_them(url: str, file: Path, kind: type) -> None:
    def opened() -> Any:
        if kind is SQLiteSession:
            return SQLiteSession("a", file)
        return SQLAlchemySession.from_url("a", url=f"sqlite+aiosqlite:///{file}", create_tables=True)

    add(opened(), [{"role": "user", "content": str(number)} for number in range(3)])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE agent_messages SET created_at = '2020-01-01 00:00:00' WHERE id = 2")
    items = add(opened(), [{"role": "user", "content": "last"}])
    adopt(url, f"sqlite:///{file}")
    assert read(url, "a") == items
    assert (items[0]["content"] == "0") is (kind is SQLiteSession)


def test_session_of_another_source_or_a_changed_one_collides(url: str, file: Path) -> None:
    with Store(url) as store:
        store.create("mine", messages=[Message.user("hello")])
    add(SQLiteSession("mine", file), [{"role": "user", "content": "1"}])
    add(SQLiteSession("theirs", file), [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}])
    assert states(adopt(url, f"sqlite:///{file}")) == {"collided": 1, "imported": 1}
    theirs = SQLiteSession("theirs", file)
    asyncio.run(theirs.pop_item())
    theirs.close()
    reports = adopt(url, f"sqlite:///{file}")
    assert states(reports) == {"collided": 2}
    assert "changed or removed rows" in reports[1].skipped[0]
    assert read(url, "theirs") == [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}]
    assert len(read(url, "mine")) == 1


def test_damaged_items_are_reported_and_left_out(url: str, file: Path) -> None:
    add(SQLiteSession("a", file), [{"role": "user", "content": str(number)} for number in range(6)])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE agent_messages SET message_data = '{\"role\"' WHERE id = 2")
        connection.execute("UPDATE agent_messages SET message_data = x'ff00' WHERE id = 3")
        connection.execute("UPDATE agent_messages SET message_data = CAST(x'22ff22' AS TEXT) WHERE id = 4")
        connection.execute("UPDATE agent_messages SET message_data = '{\"x\": NaN}' WHERE id = 5")
        connection.execute("ALTER TABLE agent_messages ADD COLUMN rating")
        connection.execute("UPDATE agent_messages SET rating = 5 WHERE id = 6")
    (report,) = adopt(url, f"sqlite:///{file}")
    places = ["row 2 ", "row 3 ", "row 4 ", "openai-agents:5 "]
    assert [
        reason.startswith(f"table agent_messages, {place}")
        for reason, place in zip(report.skipped, places, strict=True)
    ]
    assert [item["content"] for item in read(url, "a")] == ["0", "5"]
    with Store(url) as store:
        assert store.conversation("a").messages()[-1].extra["adopted"] == {"rating": 5}
        assert store.conversation("a").find_message("openai-agents:6") is not None


def test_pages_of_noise_are_an_error(url: str, file: Path) -> None:
    from lango_store import InvalidFile

    write_sessions(lambda id: SQLiteSession(id, file), count=20)
    data = bytearray(file.read_bytes())
    data[8192:] = random.Random(1).randbytes(len(data) - 8192)
    file.write_bytes(data)
    with pytest.raises(InvalidFile):
        adopt(url, f"sqlite:///{file}")


def test_encrypted_items_stay_readable_with_the_key(url: str, file: Path) -> None:
    def encrypted(session: Any) -> Any:
        return EncryptedSession("a", session, "secret", ttl=600)

    add(encrypted(SQLiteSession("a", file)), [{"role": "user", "content": "q"}])
    (report,) = adopt(url, f"sqlite:///{file}")
    assert "EncryptedSession" in report.notes[0]

    async def decrypted() -> Any:
        async with LangoSession("a", url) as session:
            return await encrypted(session).get_items()

    assert asyncio.run(decrypted()) == [{"role": "user", "content": "q"}]


def test_tables_with_other_names_and_a_dry_run(url: str, file: Path) -> None:
    session = SQLiteSession("a", file, sessions_table="chats", messages_table="entries")
    items = add(session, [{"role": "user", "content": json.dumps(number)} for number in range(1200)])
    (report,) = adopt(url, f"sqlite:///{file}", dry_run=True)
    assert (report.state, report.messages, report.dry_run) == ("imported", 1200, True)
    with Store(url) as store:
        assert store.count() == 0
    adopt(url, f"sqlite:///{file}", source="openai-agents")
    assert read(url, "a") == items
