"""What a session of ADK's is in the store: shown, searched, exported, copied; and what ADK's tools make of us."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from frameworks.google_adk.adk_events import WHERE, answered, called, changed, in_a_loop, said
from google.adk.cli.service_registry import get_service_registry, load_services_module
from google.adk.cli.utils.service_factory import create_session_service_from_options
from google.adk.sessions import InMemorySessionService, Session
from google.genai import types
from support.commands import run
from support.databases import MakeDatabase

from lango_store import AsyncStore, Store
from lango_store.archive import Archive
from lango_store.backup.copying import copy
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.testing import Clock

KEY = "weather:ann:trip"
USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=5)


async def filled(service: LangoSessionService) -> Session:
    session = await service.create_session(**WHERE, session_id="trip", state={"app:version": 1, "user:name": "Ann"})
    for event in (
        said("How warm is it in Trondheim?"),
        called(city="Trondheim"),
        answered(celsius=-3),
        said("It has -3 degrees.", author="agent", usage_metadata=USAGE),
        changed(done=None, **{"user:city": "Trondheim"}),
    ):
        await service.append_event(session, event)
    return session


def read(service: LangoSessionService, id: str = "trip") -> Session | None:
    found: Session | None = asyncio.run(service.get_session(**WHERE, session_id=id))
    return found


@pytest.fixture
def session(service: LangoSessionService) -> Session:
    made: Session = asyncio.run(filled(service))
    return made


def lango(url: str, *words: str) -> str:
    done = run(*words, environment={"LANGO_STORE_URL": url})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lists_show_the_app_and_the_user_and_show_prints_the_conversation(url: str, session: Session) -> None:
    listed = lango(url, "sessions", "list", "--agent", "weather", "--user", "ann")
    assert [line.split("\t")[:6] for line in listed.splitlines()] == [[KEY, "", "weather", "ann", "4", "5"]]
    shown = lango(url, "sessions", "show", KEY)
    for words in ("How warm is it in Trondheim?", "forecast", '"celsius"', "It has -3 degrees."):
        assert words in shown


def test_an_archive_finds_what_was_said_and_gives_the_session_back(
    service: LangoSessionService, session: Session, tmp_path: Path
) -> None:
    file = tmp_path / "cold.db"
    service.store.expire(older_than=timedelta(0), archive=file)
    assert read(service) is None
    with Archive(file) as archive:
        assert {hit["key"] for hit in archive.search("Trondheim")} == {KEY}
    service.store.restore(file, KEY)
    assert read(service) == session


def test_a_backup_brings_the_session_and_all_state_into_another_database(
    url: str, session: Session, tmp_path: Path, make_sqlite: MakeDatabase
) -> None:
    lango(url, "export", "--all", "--to", str(tmp_path / "backup"), "--format", "jsonl")
    other = make_sqlite()
    lango(other, "import", str(tmp_path / "backup"))
    with Store(other) as store:
        assert read(LangoSessionService(store)) == session


@pytest.mark.parametrize("target", ["sqlite", "postgresql"])
def test_after_a_copy_to_the_other_database_adk_reads_the_same(
    service: LangoSessionService,
    session: Session,
    target: str,
    make_sqlite: MakeDatabase,
    make_postgres: MakeDatabase,
) -> None:
    with Store(make_sqlite() if target == "sqlite" else make_postgres()) as other:
        copy(service.store, other)
        there = LangoSessionService(other)
        assert read(there) == session
        assert asyncio.run(there.list_sessions(**WHERE)) == asyncio.run(service.list_sessions(**WHERE))
        assert asyncio.run(there.get_user_state(**WHERE)) == {"name": "Ann", "city": "Trondheim"}
        assert other.conversation(KEY).total_usage() == service.store.conversation(KEY).total_usage()
        asyncio.run(there.append_event(session, said("And now?")))
        assert read(there) == session


def test_a_fork_is_a_session_of_its_own(service: LangoSessionService, session: Session) -> None:
    service.store.conversation(KEY).fork("weather:ann:branch", upto=4)
    branch = read(service, "branch")
    assert branch is not None
    assert branch.events == session.events[:4]
    assert branch.state == session.state
    asyncio.run(service.append_event(branch, changed(done=True)))
    assert read(service) == session
    assert read(service, "branch") == branch


def test_a_user_is_forgotten_with_their_sessions_and_what_these_shared(
    service: LangoSessionService, session: Session
) -> None:
    asyncio.run(service.create_session(app_name="weather", user_id="bob", state={"user:name": "Bob"}))
    assert service.store.delete_where(user_id="ann") == 1
    service.store.drop_shared_values("google_adk/weather:ann")
    assert read(service) is None
    assert asyncio.run(service.get_user_state(**WHERE)) == {}
    assert asyncio.run(service.get_user_state(app_name="weather", user_id="bob")) == {"name": "Bob"}


def test_a_purge_takes_the_state_of_what_has_expired_and_leaves_what_is_shared(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        service = LangoSessionService(store)
        asyncio.run(filled(service))
        clock.move(hours=2)
        assert store.expire().sessions == 1
        assert store.shared_values("google_adk/weather")
        assert store.shared_values("google_adk/weather:ann")
        assert read(service) is None


# What it is made of


@in_a_loop
async def test_what_is_given_stays_open_and_what_is_made_is_closed(url: str) -> None:
    async with AsyncStore(url) as store:
        async with LangoSessionService(store) as service:
            await filled(service)
        assert await store.exists(KEY)
    given = {"sqlite": "sqlite+aiosqlite", "postgresql+psycopg": "postgresql+asyncpg"}
    scheme, _, rest = url.partition("://")
    async with LangoSessionService(f"{given[scheme]}://{rest}") as service:
        assert await service.get_session(**WHERE, session_id="trip") is not None
    with pytest.raises(Exception, match="closed"):
        await service.get_session(**WHERE, session_id="trip")


@pytest.mark.parametrize("both", [True, False])
def test_a_store_or_a_uri_is_needed_and_not_both(url: str, both: bool) -> None:
    with pytest.raises(TypeError, match="give a store or a uri"):
        LangoSessionService(url if both else None, uri=url if both else None)


SERVICES_YAML = """\
services:
  - scheme: {scheme}
    type: session
    class: lango_store.integrations.google_adk.LangoSessionService
"""


def test_adks_command_line_makes_it_of_a_uri(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"lango+{url}".replace("+psycopg", "")
    (tmp_path / "services.yaml").write_text(SERVICES_YAML.format(scheme=uri.partition(":")[0]))
    monkeypatch.syspath_prepend(tmp_path)  # as load_services_module does, and leaves it
    load_services_module(str(tmp_path))
    made = create_session_service_from_options(base_dir=tmp_path, session_service_uri=uri)
    assert isinstance(made, LangoSessionService)

    async def use(service: Any) -> None:
        async with service:
            session = await filled(service)
            assert await service.get_session(**WHERE, session_id="trip") == session

    asyncio.run(use(made))
    assert get_service_registry().create_session_service("sqlite://") is not None


@in_a_loop
async def test_it_gives_what_adks_service_in_memory_gives(service: LangoSessionService) -> None:
    theirs, ours = InMemorySessionService(), service
    outcomes = []
    for each in (theirs, ours):
        one: Session = await each.create_session(**WHERE, session_id=" 1 ", state={"a": 1, "app:b": [2], "user:c": 3})
        two: Session = await each.create_session(**WHERE, session_id="2", state={"a": None})
        for number in range(4):
            event = said(f"{number}", timestamp=1e9 + number, id=f"{number}")
            event.actions.state_delta = {"a": {"n": number}, "app:b": number, "temp:d": number}
            await each.append_event(one if number % 2 else two, event)
        found = [await each.get_session(**WHERE, session_id=id) for id in ("1", "2", "3")]
        listed = await each.list_sessions(app_name="weather")
        outcomes.append((one, two, found, listed, await each.get_user_state(**WHERE)))
    assert outcomes[0] == outcomes[1]
