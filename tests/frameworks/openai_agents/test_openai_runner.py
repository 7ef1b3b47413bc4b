"""The framework's runner on `LangoSession`: a run with a tool that is killed and continued, and its usage."""

import asyncio
import json
import signal
from datetime import timedelta
from typing import Any, cast

import pytest
from agents import (
    AgentsException,
    GuardrailFunctionOutput,
    RunConfig,
    Runner,
    RunState,
    Usage,
    function_tool,
    output_guardrail,
)
from agents.memory import SessionSettings
from agents.testing import UnexpectedModelCall
from support.databases import MakeDatabase
from support.processes import Program, run_program

from lango_store import AsyncStore, Message, SessionNotFound, Store
from lango_store.integrations.openai_agents import LangoSession
from lango_store.testing import Clock

from .scripted import Item, agent, asks, says, total, weather_tool, words

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

ASKED = ["Weather?", "get_weather?call_Oslo", "get_weather?call_Rome", "call_Oslo=-3 in Oslo", "call_Rome=-3 in Rome"]


async def spoken(
    session: LangoSession, question: Any, *steps: Any, streamed: bool = False, **options: Any
) -> list[Any]:
    """Run an agent, and return the input of each model call."""
    seen: list[list[Item]] = []
    asked = agent(*steps, seen=seen.append)
    if streamed:
        running = Runner.run_streamed(asked, question, session=session, **options)
        async for _ in running.stream_events():
            pass
    else:
        await Runner.run(asked, question, session=session, **options)
    return [words(each) for each in seen]


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
async def test_model_sees_earlier_items_once_and_in_order(store: Store, streamed: bool) -> None:
    session = LangoSession("k", store)
    seen = await spoken(session, "Weather?", asks("Oslo", "Rome"), says("Cold."), streamed=streamed)
    assert seen == [ASKED[:1], ASKED]
    seen = await spoken(LangoSession("k", store), "And now?", says("Still."), streamed=streamed)
    assert seen == [[*ASKED, "Cold.", "And now?"]]
    assert words(await session.get_items()) == [*ASKED, "Cold.", "And now?", "Still."]


async def test_session_settings_of_a_run_limit_the_history(store: Store) -> None:
    session = LangoSession("k", store)
    await spoken(session, "Weather?", asks("Oslo", "Rome"), says("Cold."))
    limited = RunConfig(session_settings=SessionSettings(limit=1))
    assert await spoken(session, "And now?", says("Still."), run_config=limited) == [["Cold.", "And now?"]]


async def test_turn_repeated_after_a_failed_run_asks_its_question_once(store: Store) -> None:
    async def answer(*steps: Any) -> list[Any]:
        seen: list[list[Item]] = []
        async with AsyncStore(store) as a_store, (await a_store.open("k")).turn("request-1") as turn:
            await turn.append(Message.user("Weather?"))
            session = LangoSession("k", a_store).in_turn(turn)
            await Runner.run(agent(*steps, seen=seen.append), [], session=session)
        return [words(each) for each in seen]

    with pytest.raises(UnexpectedModelCall):
        await answer(asks("Oslo", "Rome"))
    assert await answer(says("Cold.")) == [ASKED]
    assert words(await LangoSession("k", store).get_items()) == [*ASKED, "Cold."]


# Usage


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
async def test_usage_of_run_is_stored_with_its_turns(store: Store, streamed: bool) -> None:
    session = LangoSession("k", store)
    await spoken(session, "Weather?", asks("Oslo", cost=10), asks("Rome", cost=11), says("Cold."), streamed=streamed)
    conversation = store.conversation("k")
    assert conversation.total_usage() == total(10, 11, 20)
    assert [turn.usage for turn in conversation.turns.list()] == [total(10), total(11), total(20)]
    assert [turn.last_seq for turn in conversation.turns.list()] == [3, 5, 6]
    await spoken(session, "And now?", says("Still.", cost=30), streamed=streamed)
    assert conversation.total_usage() == total(10, 11, 20, 30)


async def test_usage_in_the_store_equals_the_usage_of_the_runs(store: Store) -> None:
    whole = Usage()
    for key, steps in (("a", (asks("Oslo", cost=10), says("Cold."))), ("b", (says("Still.", cost=30),))):
        result = await Runner.run(agent(*steps), "Weather?", session=LangoSession(key, store))
        whole.add(result.context_wrapper.usage)
    (row,) = store.usage()
    assert (row.input_tokens, row.output_tokens) == (whole.input_tokens, whole.output_tokens) == (60, 6)
    assert row.cached_tokens == whole.input_tokens_details.cached_tokens == 9
    assert row.reasoning_tokens == whole.output_tokens_details.reasoning_tokens == 3
    assert row.usage["requests"] == whole.requests


async def test_usage_grouped_by_model_uses_the_model_of_the_item_or_else_of_the_session(store: Store) -> None:
    store.create("k", model="of the session")
    for model, cost in (("large", 10), ("small", 20), (None, 30)):
        source = {} if model is None else {"provider_data": {"model": model}}  # as LiteLLM's models return it
        await spoken(LangoSession("k", store), "Weather?", says("Cold.", cost, **source))
    rows = store.usage(["model"], prices={"large": {"input_tokens": 1e6}, "small": {"input_tokens": 2e6}})
    assert [(row.model, row.input_tokens, row.cost_usd) for row in rows] == [
        ("large", 10, 10),
        ("of the session", 30, None),
        ("small", 20, 40),
    ]


class Run:
    """The part of the framework's run that a session uses."""

    def __init__(self) -> None:
        self.usage = Usage()


async def test_usage_of_a_run_is_counted_once_despite_concurrent_writes(store: Store) -> None:
    session, run = LangoSession("k", store), Run()
    wrapper: Any = run
    await session.get_items(wrapper=wrapper)
    run.usage.add(Usage(requests=1, input_tokens=7))
    item: Any = {"role": "user", "content": "a"}
    await asyncio.gather(*(session.add_items([item], wrapper=wrapper) for _ in range(5)))
    assert store.conversation("k").total_usage() == {"requests": 1, "input_tokens": 7}
    assert store.conversation("k").info().message_count == 5


async def test_items_without_usage_create_no_turn(store: Store) -> None:
    session, wrapper = LangoSession("k", store), cast(Any, Run())
    await session.add_items([{"role": "user", "content": "a"}], wrapper=wrapper)
    assert await session.pop_item(wrapper=wrapper) == {"role": "user", "content": "a"}
    await session.clear_session(wrapper=wrapper)
    assert store.conversation("k").turns.list() == []


async def test_usage_is_kept_when_items_are_popped(store: Store) -> None:
    session = LangoSession("k", store)
    await spoken(session, "Weather?", says("Cold."))
    assert [words([await session.pop_item()]) for _ in range(2)] == [["Cold."], ["Weather?"]]
    assert store.conversation("k").total_usage() == total(20)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in the same process", "in another process"])
async def test_usage_of_a_run_resumed_after_approval_is_counted_once(store: Store, elsewhere: bool) -> None:
    tool = weather_tool(needs_approval=True)
    asking = agent(asks("Oslo", cost=10), asks("Rome", cost=11), says("Cold."), tool=tool)
    session = LangoSession("k", store)
    await spoken(session, "Hello", says("Hi!", cost=5))
    result = await Runner.run(asking, "Weather?", session=session)
    for _ in range(2):
        state: Any = result.to_state()
        if elsewhere:
            session = LangoSession("k", store)
            state = await RunState.from_json(asking, json.loads(json.dumps(state.to_json())))
        for interruption in state.get_interruptions():
            state.approve(interruption)
        result = await Runner.run(asking, state, session=session)
    assert result.final_output == "Cold."
    assert words(await session.get_items()) == [
        "Hello",
        "Hi!",
        "Weather?",
        "get_weather?call_Oslo",
        "call_Oslo=-3 in Oslo",
        "get_weather?call_Rome",
        "call_Rome=-3 in Rome",
        "Cold.",
    ]
    assert store.conversation("k").total_usage() == total(5, 10, 11, 20)


def resumed(*costs: int) -> Any:
    """Return a resumed run whose requests had these costs."""
    run = Run()
    for cost in costs:
        run.usage.add(Usage(requests=1, input_tokens=cost, total_tokens=cost))
    return run


@pytest.mark.parametrize("reads", [True, False], ids=["it reads first", "it writes first"])
@pytest.mark.parametrize(
    ("stored", "costs", "counted"),
    [
        ([[5], [10]], [10], 15),
        ([[5], [10]], [10, 11], 26),
        ([[5], [10, 11]], [10, 11, 12], 38),
        ([[5], [10], [11]], [10, 11], 26),
        ([[10], [10]], [10, 10, 10], 30),
    ],
)
async def test_resumed_run_counts_only_unstored_usage(
    store: Store, stored: list[list[int]], costs: list[int], counted: int, reads: bool
) -> None:
    item: Any = {"role": "user", "content": "a"}
    for turn in stored:
        usage = {"requests": len(turn), "input_tokens": sum(turn), "total_tokens": sum(turn)}
        store.conversation("k").save_turn([Message.user("a")], usage, create=True)
    session, run = LangoSession("k", store), resumed(*costs)
    if reads:
        await session.get_items(1, wrapper=run)
    for _ in range(2):
        await session.add_items([item], wrapper=run)
    assert store.conversation("k").total_usage()["input_tokens"] == counted
    run.usage.add(Usage(requests=1, input_tokens=100, total_tokens=100))
    await session.add_items([item], wrapper=run)
    assert store.conversation("k").total_usage()["input_tokens"] == counted + 100


async def test_usage_after_a_resume_is_counted_although_another_run_was_stored(store: Store) -> None:
    for cost in (10, 3):  # the run, and another one
        usage = {"requests": 1, "input_tokens": cost, "total_tokens": cost}
        store.conversation("k").save_turn([Message.user("a")], usage, create=True)
    session, run = LangoSession("k", store), resumed(10)
    await session.get_items(1, wrapper=run)
    run.usage.add(Usage(requests=1, input_tokens=100, total_tokens=100))
    await session.add_items([{"role": "user", "content": "a"}], wrapper=run)
    assert store.conversation("k").total_usage()["input_tokens"] == 113


# Killed runs


PROGRAM = """
import asyncio, json, os, signal, sys
import agents
from agents import Runner
from frameworks.openai_agents.scripted import agent, asks, says, words
from lango_store.integrations.openai_agents import LangoSession
from lango_store.testing import Clock

agents.set_tracing_disabled(True)
url, question, killed = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "killed"
calls = []

def seen(items):
    calls.append(items)
    print(json.dumps(words(items)), flush=True)
    if killed and len(calls) == 2:  # the tool has answered, the model has not
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with LangoSession("k", url) as session:
        steps = [asks("Oslo", "Rome"), says("Never said.")] if killed else [says("Cold.")]
        result = await Runner.run(agent(*steps, seen=seen), question, session=session)
        print(json.dumps([result.final_output]))

asyncio.run(main())
"""


def test_another_process_continues_a_run_killed_after_the_tool_result(make_database: MakeDatabase) -> None:
    url = make_database()
    with Program(PROGRAM, url, json.dumps("Weather?"), "killed") as program:
        out, error = program.communicate()
        assert program.wait() == -signal.SIGKILL, error
    assert [json.loads(line) for line in out.splitlines()] == [ASKED[:1], ASKED]

    ended = run_program(PROGRAM, url, json.dumps([]), "goes on")
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line) for line in ended.stdout.splitlines()] == [ASKED, ["Cold."]]

    with Store(url) as store:
        assert words(asyncio.run(LangoSession("k", store).get_items())) == [*ASKED, "Cold."]
        assert store.conversation("k").total_usage() == total(10, 20)


@pytest.mark.parametrize("new", [False, True], ids=["stored session", "new session"])
async def test_run_does_not_create_a_session_again_that_was_deleted_during_the_run(store: Store, new: bool) -> None:
    session = LangoSession("k", store)
    if not new:
        await spoken(session, "Hello", says("Hi."))
    seen: list[list[Item]] = []

    def delete(items: list[Item]) -> None:
        seen.append(items)
        store.delete("k")

    with pytest.raises(SessionNotFound):
        await Runner.run(agent(asks("Oslo"), says("Cold."), seen=delete), "Weather?", session=session)
    assert not store.exists("k")
    await spoken(session, "Again", says("Yes."))
    assert words(await session.get_items()) == ["Again", "Yes."]


async def test_run_during_which_a_session_expires_stores_its_items(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        store.create("k", ttl=timedelta(minutes=1))
        session = LangoSession("k", store)
        steps = (asks("Oslo"), says("Cold."))
        await Runner.run(agent(*steps, seen=lambda _: clock.move(minutes=2)), "Weather?", session=session)
        assert words(await session.get_items())[-1] == "Cold."


@output_guardrail
async def refuse(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)


@function_tool(failure_error_function=None)
def get_weather(city: str) -> str:
    raise ConnectionError(city)


async def run_to_end(asked: Any, session: LangoSession, *, streamed: bool) -> None:
    if not streamed:
        await Runner.run(asked, "Weather?", session=session)
        return
    async for _ in Runner.run_streamed(asked, "Weather?", session=session).stream_events():
        pass


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
@pytest.mark.parametrize("fault", ["tool", "guardrail"])
async def test_rest_of_the_usage_of_a_failed_run_can_be_stored(store: Store, fault: str, streamed: bool) -> None:
    asked = agent(asks("Oslo"), says("Cold."), tool=get_weather if fault == "tool" else weather_tool())
    asked.output_guardrails = [refuse] if fault == "guardrail" else []
    session = LangoSession("k", store)
    with pytest.raises(AgentsException) as failed:
        await run_to_end(asked, session, streamed=streamed)
    assert failed.value.run_data is not None
    context = failed.value.run_data.context_wrapper
    before = words(await session.get_items())
    for _ in range(2):
        await session.add_items([], wrapper=context)
    assert store.conversation("k").total_usage() == total(*([10] if fault == "tool" else [10, 20]))
    assert words(await session.get_items()) == before
    with pytest.raises(AgentsException):
        await Runner.run(agent(asks("Oslo"), tool=get_weather), "Weather?", session=session)
    assert store.conversation("k").total_usage() == total(*([10] if fault == "tool" else [10, 20]))


async def test_rest_of_the_usage_of_a_cancelled_run_can_be_stored(store: Store) -> None:
    session = LangoSession("k", store)
    run = Runner.run_streamed(agent(asks("Oslo"), says("Cold.")), "Weather?", session=session)
    async for event in run.stream_events():
        if event.type == "run_item_stream_event" and event.name == "tool_called":
            run.cancel()
    await session.add_items([], wrapper=run.context_wrapper)
    assert run.context_wrapper.usage.requests > 0
    assert store.conversation("k").total_usage()["requests"] == run.context_wrapper.usage.requests
