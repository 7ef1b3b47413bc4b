"""Saves of nanobot: rows written, several processes, expiry."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from nanobot.session.manager import Session, SessionManager
from support.nanobots import KEY, talk
from support.processes import Program
from support.statements import watched

from lango_store import Conflict, InvalidMessage, Store
from lango_store.integrations.nanobot import LangoSessionStore
from lango_store.testing import Clock


def rows_written(statements: list[str]) -> int:
    return sum("INSERT INTO lango_message" in statement for statement in statements)


def test_new_message_in_long_session_writes_one_row(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(1_000):
        session.add_message("user", f"message {number}")
    sessions.save(session)
    before = store.conversation(KEY).info().last_seq
    session.add_message("user", "one more")
    with watched(store.engine) as statements:
        sessions.save(session)
    assert rows_written(statements) == 1
    assert not any("DELETE" in statement for statement in statements)
    assert store.conversation(KEY).info().last_seq == before + 1


def test_save_without_changes_sends_no_statement(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    loaded = start()
    again = loaded.get_or_create(KEY)
    with watched(store.engine) as statements:
        sessions.save(session)
        loaded.save(again, fsync=True)
        assert sessions.flush_all() == 1
    assert statements == []


def test_save_stores_messages_again_from_the_first_changed_one(
    start: Callable[[], SessionManager], store: Store
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(100):
        session.add_message("user", f"message {number}")
    sessions.save(session)
    session.messages[90]["content"] = "changed"
    session.add_message("user", "one more")
    sessions.save(session)
    assert [each.seq for each in store.conversation(KEY).all_messages()] == [*range(1, 91), *range(102, 113)]
    assert start().get_or_create(KEY) == session


def test_save_of_metadata_writes_no_message(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    session.metadata["runtime_checkpoint"] = {"pending": True}
    before = store.conversation(KEY).info().last_seq
    sessions.save_runtime_checkpoint(session)
    assert store.conversation(KEY).info().last_seq == before
    assert start().get_or_create(KEY).metadata["runtime_checkpoint"] == {"pending": True}


def test_save_with_an_invalid_message_writes_nothing(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    session.add_message("user", "fine")
    session.add_message("user", float("nan"))
    with pytest.raises(InvalidMessage):
        sessions.save(session)
    assert store.conversation(KEY).info().message_count == 4
    del session.messages[-1]
    sessions.save(session)
    assert store.conversation(KEY).info().message_count == 5


# Several processes


def test_save_does_not_overwrite_messages_of_another_process(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.add_message("user", "hello")
    ours.save(session)
    other = theirs.get_or_create(KEY)
    other.add_message("assistant", "hi")
    theirs.save(other)
    session.add_message("user", "are you there?")
    with pytest.raises(Conflict) as conflict:
        ours.save(session)
    assert (conflict.value.expected, conflict.value.last_seq) == (1, 2)
    assert [each.content for each in store.conversation(KEY).messages()] == ["hello", "hi"]
    session = ours.get_or_create(KEY)  # the cache has dropped the outdated session
    session.add_message("user", "are you there?")
    ours.save(session)
    assert [each.content for each in store.conversation(KEY).messages()] == ["hello", "hi", "are you there?"]


def test_concurrent_first_saves_do_not_overwrite_each_other(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session, other = ours.get_or_create(KEY), theirs.get_or_create(KEY)
    session.add_message("user", "first")
    other.add_message("user", "second")
    ours.save(session)
    with pytest.raises(Conflict):
        theirs.save(other)
    assert [each.content for each in store.conversation(KEY).messages()] == ["first"]


def test_save_of_a_stale_session_conflicts_although_a_fresh_copy_was_read(
    start: Callable[[], SessionManager], store: Store
) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.add_message("user", "hello")
    ours.save(session)
    other = theirs.get_or_create(KEY)
    other.add_message("assistant", "hi")
    theirs.save(other)
    snapshot = ours.read_session_snapshot(KEY)
    assert snapshot is not None
    assert len(snapshot.messages) == 2
    session.add_message("user", "stale")
    with pytest.raises(Conflict):
        ours.save(session)
    assert store.conversation(KEY).info().message_count == 2


def test_metadata_changes_of_two_processes_are_merged(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.metadata |= {"a": 1, "b": 1, "c": 1}
    ours.save(session)
    other = theirs.get_or_create(KEY)
    other.metadata["b"] = 2
    del other.metadata["c"]
    other.add_message("user", "hello")
    theirs.save(other)
    session.metadata["a"] = 3
    ours.save(session)
    assert store.conversation(KEY).info().metadata == {"a": 3, "b": 2}
    assert store.conversation(KEY).info().message_count == 1
    session.metadata["d"] = 4
    ours.save(session)
    assert store.conversation(KEY).info().metadata == {"a": 3, "b": 2, "d": 4}
    session.metadata["b"] = 5
    with pytest.raises(Conflict, match="metadata 'b'"):
        ours.save(session)
    assert store.conversation(KEY).info().metadata == {"a": 3, "b": 2, "d": 4}


WRITER = """
import sys
from pathlib import Path
from lango_store import Conflict, Store
from lango_store.integrations.nanobot import LangoSessionStore
from nanobot.session.manager import SessionManager

url, folder, name = sys.argv[1:]
ours = LangoSessionStore(Store(url))
sessions = SessionManager(Path(folder) / "workspace", store=ours, sessions_root=Path(folder) / "sessions")
ours.on_conflict = sessions.invalidate
for number in range(25):
    while True:
        session = sessions.get_or_create("shared")
        session.add_message("user", f"{name} {number}")
        try:
            sessions.save(session)
            break
        except Conflict:
            del session
"""


@pytest.mark.slow
def test_two_processes_on_one_session_lose_no_message(url: str, store: Store, tmp_path: Path) -> None:
    running = [Program(WRITER, url, tmp_path / name, name) for name in ("ann", "bob")]
    assert [process.communicate(120) for process in running] == [("", "")] * 2
    assert [process.returncode for process in running] == [0, 0]
    contents = [each.content for each in store.conversation("shared").all_messages()]
    for name in ("ann", "bob"):
        assert [each for each in contents if each.startswith(name)] == [f"{name} {number}" for number in range(25)]
    assert len(contents) == 50


def test_save_recreates_session_deleted_elsewhere(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    store.delete(KEY)
    session.add_message("user", "still here")
    sessions.save(session)
    assert start().get_or_create(KEY) == session


def test_save_of_session_recreated_elsewhere_is_a_conflict(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.add_message("user", "first life")
    ours.save(session)
    theirs.delete_session(KEY)
    other = theirs.get_or_create(KEY)
    other.add_message("user", "second life")
    theirs.save(other)
    session.add_message("user", "late")
    with pytest.raises(Conflict):
        ours.save(session)
    assert [each.content for each in store.conversation(KEY).messages()] == ["second life"]


# Expiry


def test_expired_session_does_not_exist_for_nanobot(url: str, clock: Clock, tmp_path: Path) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        sessions = LangoSessionStore(store)
        session = Session(KEY)
        session.add_message("user", "hello")
        sessions.save(session)
        clock.move(minutes=50)
        session.add_message("user", "slides")
        sessions.save(session)
        clock.move(minutes=50)
        assert sessions.read(KEY) is not None
        clock.move(minutes=20)
        assert sessions.load(KEY) is None
        assert sessions.list_sessions() == []
        fresh = Session(KEY)
        fresh.add_message("user", "a new life")
        sessions.save(fresh)
        assert [each.content for each in store.conversation(KEY).messages()] == ["a new life"]
