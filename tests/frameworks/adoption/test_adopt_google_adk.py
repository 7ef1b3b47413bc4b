"""Adoption of ADK's sessions: afterwards, `LangoSessionService` returns what ADK's own service returned."""

import asyncio
import pickle
import random
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ADK and Google's client warn about Python and each other when imported
    import google.adk.agents.llm_agent  # noqa: F401
    from google.adk.events import Event, EventActions
    from google.adk.sessions import DatabaseSessionService, Session
    from google.adk.sessions.schemas import v0
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.genai import types

    from lango_store.integrations.google_adk import LangoSessionService
from support.databases import MakeDatabase

from lango_store import Message, MessageRole, Store

from .adopting import adopt, kill_adoption, random_text, states

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")]

Sessions = list[Session]


def random_event(chance: random.Random, number: int) -> Event:
    """Return an event: a text, an image, calls, responses, a change of state, with usage or without content."""
    text = random_text(chance).replace("\x00", "").replace("\ud800", "")  # ADK cannot write them to PostgreSQL
    kind = chance.choice(["text", "image", "call", "response", "none"])
    part = {
        "text": types.Part(text=text),
        "image": types.Part(inline_data=types.Blob(mime_type="image/png", data=chance.randbytes(2000))),
        "call": types.Part(function_call=types.FunctionCall(id=f"c{number}", name="weather", args={"city": text})),
        "response": types.Part(
            function_response=types.FunctionResponse(id=f"c{number}", name="weather", response={"sky": text})
        ),
    }.get(kind)
    role = chance.choice(["user", "model"])
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=number, candidates_token_count=5)
    delta = {"n": number, "app:n": number, "user:deep": {"x": [text]}} if chance.random() < 0.3 else {}
    return Event(
        author=role,
        invocation_id=f"i-{number // 3}",
        content=None if part is None else types.Content(role=role, parts=[part, types.Part(text="…")]),
        usage_metadata=usage if chance.random() < 0.4 else None,
        actions=EventActions(state_delta=delta),
        long_running_tool_ids={f"c{number}"} if kind == "call" else None,
        timestamp=1_700_000_000 + number + chance.random(),
    )


async def write_sessions(service: Any, count: int = 50, events: int = 12) -> None:
    chance = random.Random(count)
    for number in range(count):
        session = await service.create_session(
            app_name="weather", user_id=f"user:{number % 3}", session_id=f"s/{number}", state={"first": number}
        )
        for position in range(chance.randrange(events)):
            await service.append_event(session, random_event(chance, position))


async def read_sessions(service: Any) -> Sessions:
    listed = (await service.list_sessions(app_name="weather")).sessions
    sessions = [
        await service.get_session(app_name=each.app_name, user_id=each.user_id, session_id=each.id) for each in listed
    ]
    return sorted(sessions, key=lambda session: session.id)


def check_killed_and_repeated(url: str, source: str, written: Sessions) -> None:
    chance = random.Random(1)
    for _ in range(2):
        kill_adoption(url, source, chance.randrange(1, 25))
    reports = adopt(url, source)
    assert [each.skipped for each in reports if each.skipped] == []
    assert states(reports).keys() <= {"imported", "continued", "already there"}
    check_equal(url, written)
    assert states(adopt(url, source)) == {"already there": len(reports)}


def check_equal(url: str, written: Sessions) -> None:
    async def read() -> Sessions:
        async with LangoSessionService(url) as service:
            return await read_sessions(service)

    for found, expected in zip(asyncio.run(read()), written, strict=True):
        assert found.model_dump(exclude={"last_update_time"}) == expected.model_dump(exclude={"last_update_time"})
        assert found.last_update_time == pytest.approx(expected.last_update_time, abs=1e-6)  # a column of microseconds


def run(open_service: Callable[[], Any], work: Callable[[Any], Any]) -> Any:
    async def main() -> Any:
        service = open_service()
        result = await work(service)
        if isinstance(service, DatabaseSessionService):
            await service.db_engine.dispose()
        return result

    return asyncio.run(main())


async def write_and_read(service: Any) -> Sessions:
    await write_sessions(service)
    return await read_sessions(service)


def asynchronous(url: str) -> str:
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    parsed = sa.make_url(url)
    return parsed.set(drivername=drivers[parsed.get_backend_name()]).render_as_string(hide_password=False)


def make_first_schema(url: str) -> None:
    """Create the tables of the schema with pickled actions, which ADK then uses."""
    engine = sa.create_engine(url)
    v0.Base.metadata.create_all(engine)
    engine.dispose()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "adk.db"


def test_sessions_of_sqlite_session_service_are_equal_after_kills(url: str, file: Path) -> None:
    written = run(lambda: SqliteSessionService(str(file)), write_and_read)
    before = file.read_bytes()
    check_killed_and_repeated(url, f"sqlite:///{file}", written)
    assert file.read_bytes() == before


def test_sessions_of_database_session_service_are_equal_after_kills(url: str, make_database: MakeDatabase) -> None:
    source = make_database(migrated=False)
    written = run(lambda: DatabaseSessionService(asynchronous(source)), write_and_read)
    check_killed_and_repeated(url, source, written)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sessions_with_pickled_actions_are_equal_after_kills(url: str, make_database: MakeDatabase) -> None:
    source = make_database(migrated=False)
    make_first_schema(source)
    written = run(lambda: DatabaseSessionService(asynchronous(source)), write_and_read)
    check_killed_and_repeated(url, source, written)


def test_source_and_target_may_be_one_database(url: str) -> None:
    written = run(lambda: DatabaseSessionService(asynchronous(url)), write_and_read)
    check_killed_and_repeated(url, url, written)


class Foreign:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


@pytest.mark.one_database
def test_foreign_code_in_pickled_actions_is_not_run(
    url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_first_schema(f"sqlite:///{file}")
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO sessions VALUES ('weather', 'ann', 's', '{}', 0, 0)")
        connection.execute(
            "INSERT INTO events (id, app_name, user_id, session_id, invocation_id, author, actions, timestamp) "
            "VALUES ('e', 'weather', 'ann', 's', 'i', 'user', ?, 0)",
            [pickle.dumps(Foreign())],
        )
    (report,) = adopt(url, f"sqlite:///{file}")
    assert "Refusing to load" in report.skipped[0]
    assert not Path("executed").exists()


async def talk(service: Any, *events: Event, session_id: str = "s") -> Session:
    where = {"app_name": "weather", "user_id": "ann", "session_id": session_id}
    session = await service.get_session(**where) or await service.create_session(**where)
    for event in events:
        await service.append_event(session, event)
    found: Session = await service.get_session(**where)
    return found


def said(text: str, **fields: Any) -> Event:
    return Event(
        author="user",
        invocation_id=f"i-{text}",
        content=types.Content(role="user", parts=[types.Part(text=text)]),
        **fields,
    )


def test_source_that_grew_is_continued_with_its_state(url: str, file: Path) -> None:
    def work(number: int) -> Any:
        actions = EventActions(state_delta={"n": number, "app:n": number, "user:n": number})
        return lambda service: talk(service, said(str(number), actions=actions))

    run(lambda: SqliteSessionService(str(file)), work(1))
    adopt(url, f"sqlite:///{file}")
    written = run(lambda: SqliteSessionService(str(file)), work(2))
    reports = adopt(url, f"sqlite:///{file}")
    assert [(each.state, each.messages) for each in reports] == [("continued", 1), ("imported", 0), ("imported", 0)]
    check_equal(url, [written])

    run(lambda: LangoSessionService(url), lambda service: closed(service, work(3)))
    assert states(adopt(url, f"sqlite:///{file}")) == {"already there": 3}
    run(lambda: SqliteSessionService(str(file)), work(4))
    reports = adopt(url, f"sqlite:///{file}")
    assert "values have changed" in reports[0].skipped[0]
    assert [each.state for each in reports[1:]] == ["collided", "collided"]
    with Store(url) as store:
        assert store.conversation("weather:ann:s").values.get() == {"n": 3}


async def closed(service: Any, work: Any) -> Any:
    async with service:
        return await work(service)


def test_rewound_events_become_records(url: str, file: Path) -> None:
    actions = EventActions(rewind_before_invocation_id="i-2")
    events = [said("1"), said("2"), Event(author="user", invocation_id="r", actions=actions), said("3")]
    written = run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, *events))
    adopt(url, f"sqlite:///{file}")
    check_equal(url, [written])
    with Store(url) as store:
        assert [each.content for each in store.conversation("weather:ann:s").messages()] == ["1", "3"]


def test_damaged_rows_and_columns_without_a_field_are_reported_or_kept(url: str, file: Path) -> None:
    run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, *map(said, "123")))
    run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, said("4"), session_id="t"))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE events SET event_data = '{' WHERE invocation_id = 'i-2'")
        connection.execute("UPDATE sessions SET state = '[' WHERE id = 't'")
        connection.execute("ALTER TABLE events ADD COLUMN rating")
        connection.execute("ALTER TABLE sessions ADD COLUMN label")
        connection.execute("UPDATE events SET rating = 5 WHERE invocation_id = 'i-1'")
        connection.execute("UPDATE sessions SET label = 'x'")
    first, second = adopt(url, f"sqlite:///{file}")[:2]
    assert (first.state, first.messages, len(first.skipped)) == ("imported", 2, 1)
    assert "its state is damaged" in second.skipped[0]
    with Store(url) as store:
        conversation = store.conversation(first.key)
        assert [each.content for each in conversation.messages()] == ["1", "3"]
        assert conversation.messages()[0].extra["adopted"] == {"rating": 5}
        assert (conversation.info().metadata or {})["adopted"]["columns"] == {"label": "x"}


def test_existing_session_collides(url: str, file: Path) -> None:
    run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, said("1")))
    with Store(url) as store:
        store.create("weather:ann:s", messages=[Message(role=MessageRole.USER, content="mine")])
    assert adopt(url, f"sqlite:///{file}")[0].state == "collided"
    with Store(url) as store:
        assert [each.content for each in store.conversation("weather:ann:s").messages()] == ["mine"]


def test_damaged_state_of_an_app_is_reported_and_the_rest_is_adopted(url: str, file: Path) -> None:
    actions = EventActions(state_delta={"n": 1, "app:n": 1, "user:n": 1})
    run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, said("1", actions=actions)))
    run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, said("2"), session_id="t"))
    deep = '{"x":' * 300 + "1" + "}" * 300
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO app_states VALUES ('a', '{', 0), ('b', ?, 0), ('c', '[1]', 0)", [deep])
        connection.execute("INSERT INTO user_states VALUES ('a', x'ff', '{}', 0)")
        connection.execute("UPDATE sessions SET state = ? WHERE id = 's'", [deep])
    for dry_run, state in ((True, "imported"), (False, "imported"), (False, "already there")):
        reports = {each.key: each for each in adopt(url, f"sqlite:///{file}", dry_run=dry_run)}
        first, second = (reports[f"weather:ann:{id}"] for id in "st")
        assert (first.state, second.state, second.skipped) == (state, state, [])
        assert "its state cannot be stored" in first.skipped[0]
        failed = {key: each.skipped[0] for key, each in reports.items() if each.state == "failed"}
        assert failed.keys() == {"a", "c", "a:b'\\xff'", "google_adk/b"}
        assert failed["a"].startswith("table app_states, app_name a: the row is damaged")
    with Store(url) as store:
        assert [each.content for each in store.conversation("weather:ann:s").messages()] == ["1"]
        assert store.conversation("weather:ann:s").values.get() == {}
        assert store.shared_values("google_adk/weather:ann").get() == {"n": 1}


def test_sessions_cannot_have_a_prefix(url: str, file: Path) -> None:
    run(lambda: SqliteSessionService(str(file)), lambda service: talk(service, said("1")))
    with pytest.raises(ValueError, match="sessions of google-adk cannot have a prefix"):
        adopt(url, f"sqlite:///{file}", prefix="x/")
