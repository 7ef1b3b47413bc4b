"""Fixtures for nanobot on the store, and for nanobot's own store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nanobot.session.manager import JsonlSessionStore, SessionManager

from lango_store import Store
from lango_store.integrations.nanobot import LangoSessionStore
from lango_store.testing import Clock


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate home, so that no installed nanobot is touched."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def start(store: Store, tmp_path: Path) -> Callable[[], SessionManager]:
    """Start nanobot's session manager, as at the start of a process."""

    def started() -> SessionManager:
        ours = LangoSessionStore(store)
        sessions = SessionManager(tmp_path / "workspace", store=ours, sessions_root=tmp_path / "sessions")
        ours.on_conflict = sessions.invalidate
        return sessions

    return started


@pytest.fixture
def files(tmp_path: Path) -> JsonlSessionStore:
    """nanobot's own store."""
    return JsonlSessionStore(tmp_path / "other workspace", sessions_root=tmp_path / "files")
