"""ADK events, and helpers to call its services."""

from typing import Any, ParamSpec

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from lango_store.integrations.google_adk import LangoSessionService

P = ParamSpec("P")

WHERE: dict[str, Any] = {"app_name": "weather", "user_id": "ann"}


def content(*parts: types.Part, role: str = "model") -> types.Content:
    return types.Content(role=role, parts=list(parts))


def said(text: str = "Hello", author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    return Event(author=author, invocation_id="i-1", content=content(types.Part(text=text), role=role), **fields)


def called(name: str = "forecast", id: str = "call-1", **arguments: Any) -> Event:
    call = types.FunctionCall(id=id, name=name, args=arguments)
    return Event(author="agent", invocation_id="i-1", content=content(types.Part(function_call=call)))


def answered(name: str = "forecast", id: str = "call-1", **response: Any) -> Event:
    part = types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response))
    return Event(author="agent", invocation_id="i-1", content=content(part, role="user"))


def changed(**delta: Any) -> Event:
    return Event(author="agent", invocation_id="i-1", actions=EventActions(state_delta=delta))


def texts(session: Session | None) -> list[str]:
    assert session is not None
    return ["".join(part.text or "" for part in event.content.parts or []) for event in session.events if event.content]


async def stored(service: LangoSessionService, session: Session, **config: Any) -> Session:
    found = await service.get_session(
        app_name=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
        config=GetSessionConfig(**config) if config else None,
    )
    assert found is not None
    return found
