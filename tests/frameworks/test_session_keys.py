"""A "/" in an id of a framework does not become a level of the session key."""

from typing import Any

import pytest

from lango_store import Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.integrations.openai_agents import LangoSession

pytestmark = pytest.mark.anyio


def keys(store: Store) -> list[str]:
    return [info.key for info in store.iter_sessions()]


async def test_claude_subagent_is_a_child_of_its_session(store: Store) -> None:
    key: Any = {"project_key": "/p", "session_id": "a/b"}
    sessions = LangoSessionStore(store)
    await sessions.append(key, [{"type": "user"}])
    await sessions.append(key | {"subpath": "x/y"}, [{"type": "user"}])
    assert keys(store) == ["%2Fp:a%2Fb", "%2Fp:a%2Fb/x%2Fy"]
    assert [info.key for info in store.conversation("%2Fp:a%2Fb").children()] == ["%2Fp:a%2Fb/x%2Fy"]


async def test_adk_session_is_top_level(store: Store) -> None:
    await LangoSessionService(store).create_session(app_name="a/b", user_id="u/v", session_id="s/t")
    assert keys(store) == ["a%2Fb:u%2Fv:s%2Ft"]


async def test_slash_in_an_openai_session_id_is_escaped_but_a_slash_in_the_prefix_makes_a_child(store: Store) -> None:
    for prefix in ("", "parent/"):
        await LangoSession("a/b", store, prefix=prefix).add_items([{"role": "user", "content": "Hello"}])
    assert keys(store) == ["a%2Fb", "parent/a%2Fb"]
