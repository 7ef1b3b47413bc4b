"""google-adk: `DatabaseSessionService`, which appends one event per call."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.contender import OverEngine, Said


class AdkService(OverEngine):
    """Events of one app and one user; the session object lives as long as its conversation, as in a runner."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "adk")
        from google.adk.sessions import DatabaseSessionService

        self._service = DatabaseSessionService(db_engine=self.engine)
        self._sessions: dict[str, Any] = {}

    def create(self, key: str) -> None:
        created = self._service.create_session(app_name="bench", user_id="u", session_id=key)
        self._sessions[key] = self.wait(created)

    def append(self, key: str, message: dict[str, Any]) -> None:
        self.wait(self._service.append_event(self._sessions[key], _event(message)))

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.append(key, message)

    def load(self, key: str) -> list[Any]:
        return self._events(key, None)

    def last(self, key: str, n: int) -> list[Any]:
        from google.adk.sessions.base_session_service import GetSessionConfig

        return self._events(key, GetSessionConfig(num_recent_events=n))

    def _events(self, key: str, config: Any) -> list[Any]:
        found = self._service.get_session(app_name="bench", user_id="u", session_id=key, config=config)
        return list(self.wait(found).events)


def _event(message: dict[str, Any]) -> Any:
    from google.adk.events import Event
    from google.genai import types

    parts = [types.Part(text=message["content"])]
    for call in message.get("tool_calls", ()):
        made = types.FunctionCall(id=call["id"], name=call["name"], args=call["arguments"])
        parts.append(types.Part(function_call=made))
    role = "user" if message["role"] == "user" else "model"
    return Event(author=message.get("author", message["role"]), content=types.Content(role=role, parts=parts))


def said_by_event(event: Any) -> Said:
    """Read an event: the text is its first part, the calls are the others."""
    text, *calls = event.content.parts
    return text.text, [(part.function_call.name, part.function_call.args) for part in calls]
