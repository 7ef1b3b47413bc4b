"""google-adk: `DatabaseSessionService`, which appends one event per call, to the session as it was read before."""

import asyncio
from typing import Any

import sqlalchemy as sa
from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.genai import types

from benchmarks.proof.adapter import Adapter


class Service(Adapter):
    """Sessions of one app and one user. An event whose id is stored is refused."""

    can = frozenset({"ids"})

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url)
        driver = {"sqlite": "sqlite+aiosqlite"}.get(parsed.get_backend_name(), "postgresql+asyncpg")
        url = parsed.set(drivername=driver).render_as_string(hide_password=False)
        self._loop = asyncio.new_event_loop()
        self._service = DatabaseSessionService(url)

    def open(self, key: str) -> None:
        created = self._service.create_session(app_name="proof", user_id="u", session_id=key)
        self._loop.run_until_complete(created)

    def append(self, key: str, texts: list[str]) -> None:
        session = self._load(key)
        for text in texts:
            content = types.Content(role="user", parts=[types.Part(text=text)])
            event = Event(id=text, author="user", content=content)
            self._loop.run_until_complete(self._service.append_event(session, event))

    def read(self, key: str) -> list[str]:
        return [event.content.parts[0].text for event in self._load(key).events]

    def _load(self, key: str) -> Any:
        found = self._service.get_session(app_name="proof", user_id="u", session_id=key)
        return self._loop.run_until_complete(found)
