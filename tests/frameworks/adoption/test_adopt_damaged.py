"""Real databases of each framework with random damage: it is reported, and each undamaged session is adopted equal.

`LANGO_STORE_DAMAGE_ROUNDS=200` damages more copies of each source.
"""

import asyncio
import os
import random
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

pytest.importorskip("langgraph.checkpoint.sqlite")
pytest.importorskip("langchain_postgres")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the packages warn about Python and each other when imported
    import google.adk.agents.llm_agent  # noqa: F401
    from google.adk.events import Event, EventActions
    from google.adk.sessions import DatabaseSessionService
    from google.adk.sessions.schemas import v0
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.genai import types
    from langchain_community.chat_message_histories import SQLChatMessageHistory
from agents.extensions.memory import AdvancedSQLiteSession, SQLAlchemySession
from agents.usage import Usage
from frameworks.langgraph.graphs import asked, built, config
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from support.databases import MakeDatabase

from lango_store import Store, interchange
from lango_store.integrations.google_adk.service import Ids
from lango_store.integrations.langgraph import LangoSaver
from lango_store.interchange import Adopted

from .adopting import random_items

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

ROUNDS = int(os.environ.get("LANGO_STORE_DAMAGE_ROUNDS", 3))
SESSIONS = 8


def deep(levels: int) -> str:
    return '{"x":' * levels + "1" + "}" * levels


TEXTS = ["", "{", "[1]", "null", '"x"', "{}", deep(300), deep(900), deep(3000), '{"x": NaN}', "é", "-1", "9" * 30]
IN_SQLITE = ["NULL", "x'ff00'", "CAST(x'22ff22' AS TEXT)", "9e999", "1099511627776", "-1.5"]


# Sources


def asynchronous(url: str) -> str:
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    parsed = sa.make_url(url)
    return parsed.set(drivername=drivers[parsed.get_backend_name()]).render_as_string(hide_password=False)


def write_openai(url: str) -> None:
    chance = random.Random(1)

    async def write() -> None:
        for number in range(SESSIONS):
            session = SQLAlchemySession.from_url(f"s{number}", url=asynchronous(url), create_tables=True)
            for items in random_items(chance):
                await session.add_items(items)  # type: ignore[arg-type]
            await session.engine.dispose()

    asyncio.run(write())


def write_openai_branches(url: str) -> None:
    chance = random.Random(1)
    usage = type("Wrapper", (), {"usage": Usage(requests=1, input_tokens=10, output_tokens=3)})

    async def write() -> None:
        for number in range(SESSIONS):
            file = url.removeprefix("sqlite:///")
            session = AdvancedSQLiteSession(session_id=f"s{number}", db_path=file, create_tables=True)
            for items in random_items(chance):
                await session.add_items(items)  # type: ignore[arg-type]
                await session.store_run_usage(type("Result", (), {"context_wrapper": usage})())
            if number % 2:
                await session.create_branch_from_turn(1, "branch")
                await session.add_items([{"role": "user", "content": "another"}])
            session.close()

    asyncio.run(write())


async def write_events(service: Any) -> None:
    for number in range(SESSIONS):
        ids = {"app_name": f"app{number % 3}", "user_id": f"u{number}", "session_id": f"s{number}"}
        session = await service.create_session(**ids, state={"n": number, "app:n": number, "user:n": number})
        for position in range(4):
            call = types.FunctionCall(id=f"c{position}", name="f", args={"x": position})
            part = types.Part(text="Hello") if position % 2 else types.Part(function_call=call)
            event = Event(
                author="user",
                invocation_id=f"i{position}",
                content=types.Content(role="user", parts=[part]),
                actions=EventActions(state_delta={"p": position}),
                usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=position),
            )
            await service.append_event(session, event)
    if isinstance(service, DatabaseSessionService):
        await service.db_engine.dispose()


def write_adk_file(url: str) -> None:
    asyncio.run(write_events(SqliteSessionService(url.removeprefix("sqlite:///"))))


def write_adk(url: str) -> None:
    asyncio.run(write_events(DatabaseSessionService(asynchronous(url))))


def write_adk_first_schema(url: str) -> None:
    engine = sa.create_engine(url)
    v0.Base.metadata.create_all(engine)
    engine.dispose()
    write_adk(url)


def write_langgraph(url: str) -> None:
    if "sqlite" in url:
        opened: Any = SqliteSaver.from_conn_string(url.removeprefix("sqlite:///"))
    else:
        opened = PostgresSaver.from_conn_string(url.replace("+psycopg", ""))
    with opened as saver:
        saver.setup()
        for number in range(SESSIONS):
            for question in range(2):
                state: Any = {
                    "messages": [asked("Hello", f"q{question}")],
                    "plan": "tool wait" if number % 2 else "sub",
                }
                built(saver).invoke(state, config(f"s{number}"))


def write_langchain(url: str) -> None:
    engine = sa.create_engine(url)
    call: Any = {"name": "f", "args": {"x": 1}, "id": "c", "type": "tool_call"}
    for number in range(SESSIONS):
        history = SQLChatMessageHistory(f"s{number}", connection=engine)
        history.add_messages(
            [HumanMessage("Hello"), AIMessage("", tool_calls=[call]), ToolMessage("x", tool_call_id="c")]
        )
    engine.dispose()


SOURCES: dict[str, tuple[Callable[[str], None], list[str]]] = {
    "openai": (write_openai, ["sqlite", "postgresql"]),
    "branches": (write_openai_branches, ["sqlite"]),
    "adk-file": (write_adk_file, ["sqlite"]),
    "adk": (write_adk, ["sqlite", "postgresql"]),
    "adk-first-schema": (write_adk_first_schema, ["sqlite", "postgresql"]),
    "langgraph": (write_langgraph, ["sqlite", "postgresql"]),
    "langchain": (write_langchain, ["sqlite", "postgresql"]),
}


# Damage


def owner_of(table: str, row: dict[str, Any]) -> str:
    """Return the key of the session, or the scope of shared values, that a row belongs to."""
    if "app_name" in row:
        ids = Ids(*map(str, (row["app_name"], row.get("user_id", ""), row.get("session_id", row.get("id")))))
        scopes = {"app_states": ids.scopes["app:"], "user_states": ids.scopes["user:"]}
        return scopes.get(table, ids.key)
    return str(row.get("session_id", row.get("thread_id")))


def damage(connection: Any, chance: random.Random, count: int) -> set[str]:
    """Damage values and delete rows, and return the keys and scopes that these belonged to."""
    is_file = isinstance(connection, sqlite3.Connection)
    refused = (sqlite3.IntegrityError, psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError)
    damaged: set[str] = set()
    for _ in range(count):
        table = chance.choice(tables_of(connection))
        place = "rowid" if is_file else "ctid"
        cursor = connection.execute(f"SELECT {place} AS place, * FROM {table}")
        names = [each[0] for each in cursor.description]
        row = dict(zip(names, chance.choice(cursor.fetchall()), strict=True))
        text = "'" + chance.choice(TEXTS) + "'"
        value = chance.choice([text, text, *IN_SQLITE]) if is_file else chance.choice([text, text, "NULL"])
        change = (
            f"UPDATE {table} SET {chance.choice(names[1:])} = {value}"
            if chance.random() < 0.9
            else f"DELETE FROM {table}"
        )
        with suppress(*refused):  # the columns of PostgreSQL have types
            connection.execute(f"{change} WHERE {place} = '{row['place']}'")
            damaged.add(owner_of(table, row))
    return damaged


def tables_of(connection: Any) -> list[str]:
    if isinstance(connection, sqlite3.Connection):
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    else:
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    ignored = {"adk_internal_metadata", "checkpoint_migrations"}
    return sorted({name for (name,) in connection.execute(query)} - ignored)


# Checks


def stored(store: Store, reports: list[Adopted]) -> dict[str, Any]:
    """Return what a store has, by session key and scope."""
    found: dict[str, Any] = {}
    for info in store.iter_sessions():
        conversation = store.conversation(info.key)
        messages = [
            each.model_dump(exclude={"created_at", *(["id"] if each.name == "writes" else [])})
            for each in conversation.all_messages()
        ]
        found[info.key] = (messages, conversation.values.get(), [turn.usage for turn in conversation.turns.list()])
    scopes = {report.key for report in reports if report.state == "imported"} - found.keys()
    return found | {scope: store.shared_values(scope).get() for scope in scopes}


def adopted(url: str, source: str, damaged: set[str], expected: dict[str, Any]) -> dict[str, Any]:
    """Adopt a source twice, check the store, and return what it has."""
    with Store(url) as store:
        reports = interchange.adopt(store, source)
        found = stored(store, reports)
        whole = {key for key in expected if key not in damaged and key.partition("/")[0] not in damaged}
        assert {key: found.get(key) for key in whole} == {key: expected[key] for key in whole}
        assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
        if reports[0].source == "langgraph":
            assert len([*LangoSaver(store).list(None)]) == sum(each.messages for each in reports)
        repeated = interchange.adopt(store, source)
        assert {each.state for each in repeated} <= {"already there", "failed", "left out"}
        again = {each.key for each in repeated if each.skipped}
        assert [each.skipped for each in reports if each.skipped and each.key not in again] == []
        assert stored(store, reports) == found
    return found


def seeds(name: str) -> Iterator[random.Random]:
    """Yield generators of random numbers: the same ones in each run, unless there are many rounds."""
    for number in range(ROUNDS):
        yield random.Random(f"{name} {number}" if ROUNDS < 10 else None)


@pytest.mark.one_database
@pytest.mark.parametrize("name", [name for name, (_, kinds) in SOURCES.items() if "sqlite" in kinds])
def test_damage_in_a_file_is_reported(name: str, make_database: MakeDatabase, tmp_path: Path) -> None:
    write, _ = SOURCES[name]
    sound, file = tmp_path / "sound.db", tmp_path / "damaged.db"
    write(f"sqlite:///{sound}")
    with closing(sqlite3.connect(sound)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    expected = adopted(make_database(), f"sqlite:///{sound}", set(), {})
    for chance in seeds(name):
        shutil.copy(sound, file)
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.text_factory = lambda data: data.decode(errors="replace")
            damaged = damage(connection, chance, chance.randrange(1, 6))
        adopted(make_database(), f"sqlite:///{file}", damaged, expected)


@pytest.mark.parametrize("name", [name for name, (_, kinds) in SOURCES.items() if "postgresql" in kinds])
def test_damage_in_tables_of_postgresql_is_reported(
    name: str, make_postgres: MakeDatabase, make_database: MakeDatabase
) -> None:
    write, _ = SOURCES[name]
    source = make_postgres(migrated=False)
    write(source)
    expected = adopted(make_database(), source, set(), {})
    damaged: set[str] = set()
    for chance in seeds(name):
        with psycopg.connect(source.replace("+psycopg", ""), autocommit=True) as connection:
            damaged |= damage(connection, chance, chance.randrange(1, 4))
        adopted(make_database(), source, damaged, expected)
