"""Rewinds: the store shows as messages what ADK's model sees, and ADK still loads every event."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from frameworks.google_adk.adk_events import WHERE, answered, called, said, stored, texts
from google.adk.agents import LlmAgent
from google.adk.events import Event, EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field
from support.commands import run

from lango_store import Message, Store, schema
from lango_store.integrations.google_adk import LangoSessionService

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

KEY = "weather:ann:trip"
USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=5)


class Echo(BaseLlm):
    """A model that repeats the last text, and keeps the texts of each call in `seen`."""

    seen: list[list[str]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = [part.text or "" for content in llm_request.contents for part in content.parts or []]
        self.seen.append(contents)
        part = types.Part(text=f"answer to {contents[-1]}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=USAGE)


async def ask(runner: Runner, text: str) -> str:
    """Ask, and return the id of the invocation."""
    question = types.Content(role="user", parts=[types.Part(text=text)])
    asked = runner.run_async(user_id="ann", session_id="trip", new_message=question)
    return [event async for event in asked][-1].invocation_id


def shown(store: Store) -> list[Any]:
    return [message.content for message in store.conversation(KEY).messages()]


async def test_store_shows_what_the_model_sees_after_a_rewind(
    service: LangoSessionService, store: Store, url: str
) -> None:
    schema.enable_search(store.engine)
    model = Echo(model="echo")
    runner = Runner(app_name="weather", agent=LlmAgent(name="agent", model=model), session_service=service)
    session = await service.create_session(**WHERE, session_id="trip")
    await ask(runner, "Oslo")
    invocation = await ask(runner, "Hammerfest")
    before = (await stored(service, session)).events
    assert len(store.search("Hammerfest").items) == 2
    await runner.rewind_async(user_id="ann", session_id="trip", rewind_before_invocation_id=invocation)
    assert shown(store) == ["Oslo", "answer to Oslo"]
    assert not store.search("Hammerfest").items
    assert [entry["content"] for entry in store.conversation(KEY).history()] == ["Oslo", "answer to Oslo"]
    exported = run("export", KEY, "--format", "openai", "--to", "-", "--url", url)
    assert exported.returncode == 0, exported.stderr
    assert "answer to Oslo" in exported.stdout
    assert "Hammerfest" not in exported.stdout
    found = await stored(service, session)
    assert found.events[:-1] == before
    assert found.events[-1].actions.rewind_before_invocation_id == invocation
    await ask(runner, "Rome")
    assert model.seen[-1] == ["Oslo", "answer to Oslo", "Rome"]
    assert shown(store) == [*model.seen[-1], "answer to Rome"]
    assert store.conversation(KEY).total_usage() == {"prompt_token_count": 21, "candidates_token_count": 15}
    assert store.conversation(KEY).info().message_count == 4


async def test_later_rewind_brings_back_what_an_earlier_rewind_dropped(
    service: LangoSessionService, store: Store
) -> None:
    session = await service.create_session(**WHERE, session_id="trip")
    paid = said("two", author="agent", usage_metadata=USAGE)
    paid.invocation_id = "i-2"
    call, answer = called(), answered(celsius=-3)
    call.invocation_id = answer.invocation_id = "i-2"
    for event in (said("one"), paid, call, answer):
        await service.append_event(session, event)
    before = store.conversation(KEY).messages()
    await service.append_event(session, rewind("i-2", "r-1"))
    assert shown(store) == ["one"]
    await service.append_event(session, paid)  # a retry
    assert shown(store) == ["one"]
    await service.append_event(session, rewind("r-1", "r-2"))
    assert store.conversation(KEY).messages() == before
    assert (await stored(service, session)).events == session.events


async def test_message_of_another_program_is_rewound_too(service: LangoSessionService, store: Store) -> None:
    session = await service.create_session(**WHERE, session_id="trip")
    await service.append_event(session, said("one"))
    store.append_message(KEY, Message.user("by hand", name="ann", extra={"a": 1}))
    before = (await stored(service, session)).events
    await service.append_event(session, rewind("i-1", "r-1"))
    assert shown(store) == []
    assert (await stored(service, session)).events[:2] == before


def rewind(before: str, id: str) -> Event:
    actions = EventActions(rewind_before_invocation_id=before)
    return Event(author="user", invocation_id=id, actions=actions)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 4)), max_size=10))
def test_messages_are_the_events_that_adk_keeps(
    service: LangoSessionService, store: Store, steps: list[tuple[bool, int, int]]
) -> None:
    rewinds = pytest.importorskip("google.adk.events._rewind_events")

    async def main() -> None:
        session = await service.create_session(**WHERE)
        key = f"weather:ann:{session.id}"
        for number, (is_rewind, own, target) in enumerate(steps):
            event = rewind(f"i-{target}", f"i-{own}") if is_rewind else said(str(number))
            event.invocation_id = f"i-{own}"
            await service.append_event(session, event)
            kept = [each.content.parts[0].text for each in rewinds._apply_rewinds(session.events)]
            assert [message.content for message in store.conversation(key).messages()] == kept
        found = await stored(service, session)
        assert found.events == session.events
        assert texts(found) == texts(session)

    asyncio.run(main())
