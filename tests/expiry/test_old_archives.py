"""An archive outlives releases: one made before a column was there takes new sessions, and gives its old ones back."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from support.factories import message, messages
from support.session_checks import assert_sound

from lango_store import Session, Store
from lango_store._operations import row_validation
from lango_store._operations.binds import SESSION
from lango_store.archive import Archive
from lango_store.tables import SCHEMA_REVISION
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
LATER = [
    ("sessions", "last_turn_no"),
    ("sessions", "record_count"),
    ("sessions", "extra"),
    ("turns", "extra"),
    ("messages", "extra"),
]


def archived(store: Store, clock: Clock, cold: Path, key: str) -> Session:
    """Archive a session with turns, a compaction and a turn number that was used and is gone."""
    conversation = store.open(key, ttl=HOUR)
    conversation.save_turn(messages(2, tokens=3), {"tokens": 1})
    conversation.compact(lambda window: [message("summary")])
    conversation.save_turn([message("gone")])
    conversation.pop_message()
    before = conversation.get()
    clock.move(hours=2)
    assert store.expire(archive=cold).sessions == 1
    return before


@pytest.fixture
def old(store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Session]:
    """An archive as it was made before some columns and the values were there, and the session in it."""
    monkeypatch.setitem(row_validation._COLUMNS_SINCE, (SESSION.name, "last_turn_no"), SCHEMA_REVISION)
    cold = tmp_path / "cold.db"
    before = archived(store, clock, cold, "old")
    connection = sqlite3.connect(cold)
    for table, column in LATER:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.execute("DROP TABLE session_values")
    connection.commit()
    connection.close()
    return cold, before


def test_a_session_comes_back_from_an_old_archive(store: Store, clock: Clock, old: tuple[Path, Session]) -> None:
    cold, before = old
    restored = store.restore(cold, "old")
    anew = {"ttl_seconds": None, "expires_at": None, "updated_at": clock.time, "revision": restored.revision}
    assert restored == before.model_copy(update=anew) == store.get("old")
    conversation = store.open("old")
    assert [turn.turn_no for turn in conversation.turns()] == [1, 2]
    assert conversation.save_turn([message()]).turn_no == 3
    assert_sound(store)


def test_an_old_archive_takes_new_sessions(store: Store, clock: Clock, old: tuple[Path, Session]) -> None:
    cold, _ = old
    store.create("new", ttl=HOUR)
    store.set_values("new", {"a": None})
    before = archived(store, clock, cold, "new")
    assert store.restore(cold, "new").messages == before.messages
    assert [m.content for m in store.restore(cold, "old").messages] == ["summary"]
    assert (store.values("new"), store.values("old")) == ({"a": None}, {})
    assert store.open("new").save_turn([message()]).turn_no == 4
    assert store.open("old").save_turn([message()]).turn_no == 3
    with Archive(cold) as archive:
        assert [found["key"] for found in archive.search("summary")] == ["old", "new"]
