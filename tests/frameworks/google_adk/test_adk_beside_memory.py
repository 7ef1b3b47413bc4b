"""Random calls: the service returns the same results as ADK's in-memory service.

Ids with blanks, repeated events and events for a deleted session are left out: the in-memory service of 2.10
treats them differently.
"""

import asyncio
import copy
import itertools
from typing import Any

import pytest
from frameworks.google_adk.adk_events import said
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lango_store import Store
from lango_store.integrations.google_adk import LangoSessionService

pytestmark = pytest.mark.one_database

names = st.sampled_from(["a", "b"])
keys = st.sampled_from(["n", "m", "app:n", "user:n", "user:m", "temp:n"])
states = st.dictionaries(keys, st.none() | st.booleans() | st.integers(0, 2) | st.just({"deep": [1]}), max_size=3)
places = [("a", "a", "1"), ("a", "a", "2"), ("a", "b", "1"), ("b", "a", "1")]
where = st.sampled_from([dict(zip(("app_name", "user_id", "session_id"), place, strict=True)) for place in places])
configs = st.none() | st.builds(
    GetSessionConfig,
    num_recent_events=st.none() | st.integers(0, 3),
    after_timestamp=st.none() | st.integers(999, 1006).map(float),
)
steps = st.one_of(
    st.tuples(st.just("create"), where, states),
    st.tuples(st.just("append"), where, states),
    st.tuples(st.just("append"), where, states),
    st.tuples(st.just("delete"), where),
    st.tuples(st.just("get"), where, configs),
    st.tuples(st.just("list"), names, st.none() | names),
    st.tuples(st.just("user"), names, names),
)


STARTED = [
    ("create", {"app_name": "a", "user_id": "a", "session_id": "1"}, {"n": 0}),
    *(("append", {"app_name": "a", "user_id": "a", "session_id": "1"}, {"m": number}) for number in range(3)),
]
"""The first steps of each script."""


class Caller:
    """A caller of a service, with the session objects that it holds."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.sessions: dict[tuple[str, ...], Session] = {}
        self._times = itertools.count(1000)

    async def outcome(self, step: tuple[Any, ...]) -> Any:
        """Run a step, and return its result without the times of sessions that have no events."""
        try:
            found = await getattr(self, step[0])(*copy.deepcopy(step[1:]))
        except (AlreadyExistsError, SessionNotFoundError) as error:
            return type(error)
        return _timeless(found)

    async def create(self, where: dict[str, str], state: dict[str, Any]) -> Session:
        made: Session = await self.service.create_session(**where, state=state)
        self.sessions[_ids(where)] = made
        return made

    async def append(self, where: dict[str, str], delta: dict[str, Any]) -> Session | None:
        session = self.sessions.get(_ids(where))
        if session is not None:
            number = next(self._times)
            event = said(str(number), id=str(number), timestamp=float(number), actions={"state_delta": delta})
            await self.service.append_event(session, event)
        return session

    async def delete(self, where: dict[str, str]) -> None:
        await self.service.delete_session(**where)
        self.sessions.pop(_ids(where), None)

    async def get(self, where: dict[str, str], config: GetSessionConfig | None) -> Any:
        found = await self.service.get_session(**where, config=config)
        if found is not None and config is None:
            self.sessions[_ids(where)] = found
        return found

    async def list(self, app_name: str, user_id: str | None) -> Any:
        return await self.service.list_sessions(app_name=app_name, user_id=user_id)

    async def user(self, app_name: str, user_id: str) -> Any:
        return await self.service.get_user_state(app_name=app_name, user_id=user_id)


def _ids(where: dict[str, str]) -> tuple[str, ...]:
    return tuple(where.values())


def _timeless(found: Any) -> Any:
    """Leave out the times and the order of sessions without events: each service takes them from its clock."""
    if isinstance(found, Session):
        return _without_time(found)
    if hasattr(found, "sessions"):
        return sorted(map(_without_time, found.sessions), key=lambda each: (each.app_name, each.user_id, each.id))
    return copy.deepcopy(found)


def _without_time(session: Session) -> Session:
    return session.model_copy(deep=True, update={} if session.last_update_time < 2000 else {"last_update_time": 0.0})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(script=st.lists(steps, min_size=5, max_size=25))
def test_random_calls_return_same_results_as_in_memory_service(store: Store, script: list[tuple[Any, ...]]) -> None:
    for app in ("a:", "b:"):
        store.delete_where(key_prefix=app)
    for scope in ("a", "b", "a:a", "a:b", "b:a", "b:b"):
        store.shared_values(f"google_adk/{scope}").delete()

    async def run() -> None:
        ours, theirs = Caller(LangoSessionService(store)), Caller(InMemorySessionService())
        for step in [*STARTED, *script]:
            assert await ours.outcome(step) == await theirs.outcome(step), step

    asyncio.run(run())
