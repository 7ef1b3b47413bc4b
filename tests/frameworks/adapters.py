"""One interface to the adapters of all frameworks, for tests of what they have in common."""

import json
from collections.abc import Callable
from typing import Any, Final

from agents import Runner
from frameworks.claude_agent_sdk import transcripts
from frameworks.google_adk import adk_events
from frameworks.langgraph.graphs import config, weather_turn, with_messages
from frameworks.openai_agents import responses, scripted
from frameworks.openai_agents.sessions import said, texts
from frameworks.pydantic_ai import talking
from google.genai.types import GenerateContentResponseUsageMetadata
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessagesTypeAdapter

from lango_store.integrations.claude_agent_sdk import LangoSessionStore
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.integrations.langgraph import LangoSaver
from lango_store.integrations.openai_agents import LangoSession
from lango_store.integrations.pydantic_ai import LangoConversationStore


class Framework:
    """An adapter with one session of the user `ann`, in which a tool reports the weather in Oslo."""

    key: str
    make: Callable[..., Any]
    """Make the adapter for a store or a URL."""
    shown: tuple[str, ...] = ("Oslo", "get_weather")
    """Words of the session that `fill` writes."""
    seq = 3
    damage: tuple[Any, ...]
    """Values in the `extra` of the message with this `seq` that do not fit it."""
    writes_times = True
    """True if the framework's JSON has the time and the usage of a message."""

    async def fill(self, adapter: Any) -> None:
        """Write the session, or write to the session if `say` has created it."""
        raise NotImplementedError

    async def load(self, adapter: Any) -> Any:
        """Load the session as the framework has it; None if there is none."""
        raise NotImplementedError

    async def say(self, adapter: Any, text: str) -> None:
        """Append a message of the user, to a new session if there is none."""
        raise NotImplementedError

    async def texts(self, adapter: Any) -> list[Any]:
        raise NotImplementedError

    def json(self, loaded: Any) -> str:
        """Return a loaded session as the framework's JSON."""
        raise NotImplementedError


class ClaudeAgentSdk(Framework):
    key = f"{transcripts.KEY['project_key']}:{transcripts.KEY['session_id']}"
    seq = 6
    damage = ({"calls": [1, 2]}, 5)

    @staticmethod
    def make(store: Any) -> LangoSessionStore:
        return LangoSessionStore(store, user_id="ann")

    async def fill(self, adapter: Any) -> None:
        await adapter.append(transcripts.KEY, transcripts.written())

    async def load(self, adapter: Any) -> Any:
        return await adapter.load(transcripts.KEY)

    async def say(self, adapter: Any, text: str) -> None:
        await adapter.append(transcripts.KEY, [{"type": "user", "message": {"role": "user", "content": text}}])

    async def texts(self, adapter: Any) -> list[Any]:
        return [entry["message"]["content"] for entry in await self.load(adapter) or []]

    def json(self, loaded: Any) -> str:
        return "".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in loaded)


class GoogleAdk(Framework):
    key = "weather:ann:trip"
    make = LangoSessionService
    damage = (
        5,
        {"timestamp": []},
        {"timestamp": "soon"},
        {"content": []},
        {"content": {"parts": [{}, None, None]}},
        {"content": {"parts": [None, {}]}},
    )

    async def fill(self, adapter: Any) -> None:
        state = {"app:version": 1, "user:name": "Ann"}
        session = await self.load(adapter)
        session = session or await adapter.create_session(**adk_events.WHERE, session_id="trip", state=state)
        usage = GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=5)
        for event in (
            adk_events.said("How warm is it in Oslo, and shall I take an umbrella with me when I go out?"),
            adk_events.called("get_weather", city="Oslo"),
            adk_events.answered("get_weather", celsius=-3),
            adk_events.said("It has -3 degrees.", author="agent", usage_metadata=usage),
            adk_events.changed(done=None, **{"user:city": "Oslo"}),
        ):
            await adapter.append_event(session, event)

    async def load(self, adapter: Any) -> Any:
        return await adapter.get_session(**adk_events.WHERE, session_id="trip")

    async def say(self, adapter: Any, text: str) -> None:
        session = await self.load(adapter)
        if session is None:
            session = await adapter.create_session(**adk_events.WHERE, session_id="trip")
        await adapter.append_event(session, adk_events.said(text))

    async def texts(self, adapter: Any) -> list[Any]:
        session = await self.load(adapter)
        return [] if session is None else adk_events.texts(session)

    def json(self, loaded: Any) -> str:
        return "".join(event.model_dump_json(exclude_none=True) for event in loaded.events)


class LangGraph(Framework):
    key = "c"
    make = LangoSaver
    damage = ({"type": "nothing"}, {"type": "tool", "status": 5}, 5)
    writes_times = False

    async def fill(self, adapter: Any) -> None:
        adapter.store.open("c", user_id="ann")
        await with_messages(adapter).aupdate_state(config("c"), {"messages": weather_turn()}, as_node="answer")

    async def load(self, adapter: Any) -> Any:
        return [each async for each in adapter.alist(config("c"))] or None

    async def say(self, adapter: Any, text: str) -> None:
        await with_messages(adapter).aupdate_state(config("c"), {"messages": [("user", text)]}, as_node="answer")

    async def texts(self, adapter: Any) -> list[Any]:
        state = await with_messages(adapter).aget_state(config("c"))
        return [message.content for message in state.values.get("messages", [])]

    def json(self, loaded: Any) -> str:
        return json.dumps([(each.checkpoint, each.metadata) for each in loaded], default=dict)


class OpenAIAgents(Framework):
    key = "c"
    damage = ([{}], [{}, {}], 5)
    writes_times = False

    @staticmethod
    def make(store: Any) -> LangoSession:
        return LangoSession("c", store)

    async def fill(self, adapter: Any) -> None:
        adapter.store.open("c", user_id="ann")
        agent = scripted.agent(scripted.asks("Oslo", "Rome"), scripted.says("Cold in Oslo."))
        await Runner.run(agent, "Weather in Oslo?", session=adapter)
        await adapter.add_items([*said("Is it warm enough for a walk?"), *responses.EXCHANGE] * 5)

    async def load(self, adapter: Any) -> Any:
        return await adapter.get_items() or None

    async def say(self, adapter: Any, text: str) -> None:
        await adapter.add_items([{"role": "user", "content": text}])

    async def texts(self, adapter: Any) -> list[Any]:
        return texts(await adapter.get_items())

    def json(self, loaded: Any) -> str:
        return json.dumps(loaded, separators=(",", ":"))


class PydanticAI(Framework):
    key = "c"
    make = LangoConversationStore
    seq = 8
    damage = (
        {"parts": [["nothing"]]},
        {"parts": [[1, 2, 3, 4]]},
        {"item": {"timestamp": "noon"}, "parts": []},
    )

    async def fill(self, adapter: Any) -> None:
        """Save two runs, the second one on a branch."""
        talk = (await talking.weather_agent().run("Oslo?", conversation=Conversation(conversation_id="c"))).conversation
        await adapter.save(talk, scope="ann")
        talk = await adapter.branch("c", at=1, expected_revision=talk.revision)
        await adapter.save(await talking.weather_agent().run("And now?", conversation=talk), scope="ann")

    async def load(self, adapter: Any) -> Any:
        loaded = await adapter.load("c", scope="ann")
        if loaded is None:
            return None
        record = await adapter.read_record("c")
        return loaded.messages, record, [await adapter.read_history(branch) for branch in record.branches]

    async def say(self, adapter: Any, text: str) -> None:
        talk = await adapter.load("c") or Conversation(conversation_id="c")
        talk.messages.append(talking.asked(text))
        await adapter.save(talk)

    async def texts(self, adapter: Any) -> list[Any]:
        talk = await adapter.load("c")
        return [] if talk is None else talking.texts(talk.messages)

    def json(self, loaded: Any) -> str:
        messages, _, branches = loaded
        left = [entry.message for branch in branches for entry in branch if entry.message not in messages]
        return ModelMessagesTypeAdapter.dump_json([*messages, *left]).decode()


FRAMEWORKS: Final = [ClaudeAgentSdk(), GoogleAdk(), LangGraph(), OpenAIAgents(), PydanticAI()]
