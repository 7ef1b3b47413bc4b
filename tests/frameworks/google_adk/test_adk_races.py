"""Several services on one session, in separate processes and threads."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from frameworks.google_adk.adk_events import WHERE, changed, said, texts
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from support.databases import MakeDatabase

from lango_store import Message, Store
from lango_store.integrations.google_adk import LangoSessionService, StaleSessionError
from lango_store.testing import Clock

pytestmark = pytest.mark.anyio

SERVICES, APPENDS = 8, 25


def at_once(run: Callable[[int], None]) -> None:
    """Run a coroutine function eight times at once, each in a thread with a separate event loop."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(SERVICES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    if errors:
        raise errors[0]


def test_concurrent_appends_of_eight_services_lose_no_event_and_no_state(url: str) -> None:
    async def append(number: int) -> None:
        async with LangoSessionService(url) as service:
            session = await service.get_session(**WHERE, session_id="trip")
            assert session is not None
            for each in range(APPENDS):
                delta = {f"s{number}": each, f"user:u{number}": each, f"app:a{number}": each, "last": number}
                await service.append_event(session, said(f"{number}-{each}", actions={"state_delta": delta}))

    async def main() -> None:
        async with LangoSessionService(url) as service:
            await service.create_session(**WHERE, session_id="trip")
            await asyncio.to_thread(at_once, lambda number: asyncio.run(append(number)))
            found = await service.get_session(**WHERE, session_id="trip")
            told = texts(found)
            assert len(told) == SERVICES * APPENDS
            for number in range(SERVICES):
                own = [text for text in told if text.startswith(f"{number}-")]
                assert own == [f"{number}-{each}" for each in range(APPENDS)]
            assert found is not None
            last = found.state.pop("last")
            assert last == int(told[-1].split("-")[0])
            kinds = ("s{}", "user:u{}", "app:a{}")
            assert found.state == {kind.format(n): APPENDS - 1 for n in range(SERVICES) for kind in kinds}

    asyncio.run(main())


def test_one_of_eight_creators_creates_the_session(url: str) -> None:
    made: list[Session] = []

    async def create(number: int) -> None:
        async with LangoSessionService(url) as service:
            try:
                made.append(await service.create_session(**WHERE, session_id="trip", state={"by": number}))
            except AlreadyExistsError:
                return

    at_once(lambda number: asyncio.run(create(number)))
    (one,) = made
    with Store(url) as store:
        assert store.conversation("weather:ann:trip").values.get() == one.state


async def test_check_stale_refuses_the_second_writer(store: Store) -> None:
    service, other = LangoSessionService(store, check_stale=True), LangoSessionService(store)
    mine = await service.create_session(**WHERE, session_id="trip", state={"n": 0})
    for text in ("one", "two"):
        await service.append_event(mine, said(text))
    theirs = await other.get_session(**WHERE, session_id="trip")
    assert theirs is not None
    await other.append_event(theirs, changed(n=1))
    late = said("late", actions={"state_delta": {"n": 2, "temp:t": 1}})
    with pytest.raises(StaleSessionError, match="read the session again"):
        await service.append_event(mine, late)
    assert texts(mine) == ["one", "two"]
    assert mine.state == {"n": 0}
    again = await service.get_session(**WHERE, session_id="trip")
    assert again is not None
    assert (texts(again), again.state) == (["one", "two"], {"n": 1})
    await service.append_event(again, late)
    found = await service.get_session(**WHERE, session_id="trip")
    assert (texts(found), again.state) == (["one", "two", "late"], {"n": 2, "temp:t": 1})


async def test_check_stale_detects_event_appended_by_another_service(store: Store) -> None:
    service, other = LangoSessionService(store, check_stale=True), LangoSessionService(store)
    mine = await other.create_session(**WHERE, session_id="trip")
    await service.append_event(mine, said("one"))
    await service.append_event(mine, said("two"))
    theirs = await other.get_session(**WHERE, session_id="trip")
    assert theirs is not None
    await other.append_event(theirs, said("three"))
    with pytest.raises(StaleSessionError):
        await service.append_event(mine, said("late"))
    await service.append_event(theirs, said("four"))
    assert texts(theirs) == ["one", "two", "three", "four"]
    assert texts(await other.get_session(**WHERE, session_id="trip")) == texts(theirs)
    await other.delete_session(**WHERE, session_id="trip")
    for session in (mine, theirs):
        with pytest.raises((SessionNotFoundError, StaleSessionError)):
            await service.append_event(session, said("later"))


async def test_check_stale_allows_append_to_session_read_without_events(store: Store) -> None:
    service = LangoSessionService(store, check_stale=True)
    await service.append_event(await service.create_session(**WHERE, session_id="trip"), said("one"))
    config = GetSessionConfig(num_recent_events=0)
    mine, theirs = [await service.get_session(**WHERE, session_id="trip", config=config) for _ in range(2)]
    assert mine is not None
    assert theirs is not None
    await service.append_event(theirs, said("two"))
    with pytest.raises(StaleSessionError):
        await service.append_event(mine, said("late"))
    await service.append_event(theirs, said("three"))
    assert texts(await service.get_session(**WHERE, session_id="trip")) == ["one", "two", "three"]


async def test_check_stale_accepts_a_repeated_append_of_the_same_event(store: Store) -> None:
    service = LangoSessionService(store, check_stale=True)
    session = await service.create_session(**WHERE, session_id="trip")
    before = session.model_copy(deep=True)
    event = said("one")
    await service.append_event(session, event)
    await service.append_event(before, event)  # a retry after a lost acknowledgement
    assert texts(before) == ["one"]
    for each in (session, before):
        current = said(f"from {id(each)}")
        if each is session:
            await service.append_event(each, current)
        else:
            with pytest.raises(StaleSessionError):
                await service.append_event(each, current)


async def test_check_stale_starts_a_new_session_after_expiry(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        service = LangoSessionService(store, check_stale=True)
        session = await service.create_session(**WHERE, session_id="trip")
        await service.append_event(session, said("old"))
        for text in ("new", "newer"):
            clock.move(hours=2)
            await service.append_event(session, said(text))
            await service.append_event(session, said(f"after {text}"))
            assert texts(await service.get_session(**WHERE, session_id="trip")) == [text, f"after {text}"]


async def test_append_does_not_recreate_an_expired_session_that_is_deleted_meanwhile(
    make_postgres: MakeDatabase, clock: Clock
) -> None:
    url = make_postgres()  # on SQLite, the append has locked the file

    def delete_user(statement: str, _: float) -> None:
        if statement.startswith("ROLLBACK TO SAVEPOINT"):  # the append has found the session expired
            other.delete_where(user_id="ann")

    with (
        Store(url, clock=clock) as other,
        Store(url, clock=clock, default_ttl=timedelta(hours=1), on_statement=delete_user) as store,
    ):
        service = LangoSessionService(store)
        session = await service.create_session(**WHERE, session_id="trip")
        await service.append_event(session, said("old"))
        clock.move(hours=2)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, said("late", actions={"state_delta": {"user:a": 1}}))
        assert not other.exists("weather:ann:trip")
        assert other.shared_values("google_adk/weather:ann").get() == {}


def test_check_stale_accepts_exactly_one_of_eight_concurrent_writers(url: str) -> None:
    outcome: list[str] = []
    barrier = threading.Barrier(SERVICES)

    async def append(number: int) -> None:
        async with LangoSessionService(url, check_stale=True) as service:
            session = await service.get_session(**WHERE, session_id="trip")
            assert session is not None
            barrier.wait(60)
            try:
                await service.append_event(session, said(str(number)))
                outcome.append("won")
            except StaleSessionError:
                outcome.append("lost")

    async def main() -> None:
        async with LangoSessionService(url) as service:
            await service.create_session(**WHERE, session_id="trip")
            await asyncio.to_thread(at_once, lambda number: asyncio.run(append(number)))
            assert sorted(outcome) == ["lost"] * (SERVICES - 1) + ["won"]
            assert len(texts(await service.get_session(**WHERE, session_id="trip"))) == 1

    asyncio.run(main())


async def test_read_of_a_session_that_is_being_recreated_never_mixes_old_and_new_data(store: Store) -> None:
    service = LangoSessionService(store)
    stop = threading.Event()
    made = threading.Event()

    def remake() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = "weather:ann:trip"
            store.delete(key)
            batch = [Message.user(str(number))] * 5
            with store.transaction() as tx:
                tx.conversation(key).append_messages(batch, create=True)
                tx.conversation(key).values.set({"life": str(number)})
            made.set()

    thread = threading.Thread(target=remake)
    thread.start()
    try:
        assert made.wait(30)
        seen = 0
        for _ in range(30_000):
            found = await service.get_session(**WHERE, session_id="trip")
            if found is not None:
                seen += 1
                assert texts(found) == [found.state["life"]] * 5
            if seen == 50:
                break
        assert seen == 50
    finally:
        stop.set()
        thread.join()
