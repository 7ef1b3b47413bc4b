"""The SDK's conformance tests for session stores."""

from collections.abc import Callable
from typing import Any

import pytest
from claude_agent_sdk import SessionStore
from claude_agent_sdk.testing import run_session_store_conformance
from support.databases import MakeDatabase

from lango_store.integrations.claude_agent_sdk import LangoSessionStore

pytestmark = pytest.mark.one_database


def test_conformance_tests_of_sdk_pass(loop: Callable[..., Any], make_database: MakeDatabase) -> None:
    made: list[LangoSessionStore] = []

    def make_store() -> SessionStore:
        made.append(LangoSessionStore(make_database()))
        return made[-1]

    async def main() -> None:
        await run_session_store_conformance(make_store)
        for each in made:
            await each.close()

    loop(main)
    assert len(made) == 15  # one for each of the fourteen contracts, and one to ask which methods there are
