"""Copies of removed messages: they are deleted with their session and after their time, and are nowhere else."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import contents, message, messages
from support.payloads import LARGE, bodies
from support.session_checks import assert_sound

from lango_store import Conversation, NotKept, Store
from lango_store._rooms.versions.tables import REMOVED_MESSAGE, REMOVED_TURN
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy
from lango_store.testing import Clock


def copies(store: Store, key: str = "k") -> list[tuple[str, int, int]]:
    """Return the table of each copy, its number in the session and the seq of its change."""
    found = []
    with store.engine.connect() as connection:
        for name, table, number in (("message", REMOVED_MESSAGE, "seq"), ("turn", REMOVED_TURN, "turn_no")):
            query = sa.select(table.c[number], table.c.removed_at).where(table.c.session_key == key)
            found += [(name, *row) for row in connection.execute(query.order_by(table.c.removed_at, table.c[number]))]
    return found


# Deletion


def session_with_copies(store: Store, **fields: Any) -> Conversation:
    """Create a session of which only copies have the large string and the turn."""
    conversation = store.open("k", messages=[message("a")], **fields)
    conversation.save_turn([message(LARGE)], {"tokens": 1})
    conversation.truncate(after=1)
    assert copies(store) == [("message", 2, 3), ("turn", 1, 3)]
    assert bodies(store) == [LARGE]
    return conversation


@pytest.mark.slow
def test_deletion_of_a_session_deletes_copies_of_removed_messages(keeping: Store) -> None:
    session_with_copies(keeping)
    keeping.delete("k")
    assert (copies(keeping), bodies(keeping)) == ([], [])
    conversation = keeping.open("k", messages=[message("new")])
    assert (conversation.versions.changes(), conversation.versions.undo()) == ([], None)
    assert_sound(keeping)


def test_purge_and_renewal_of_an_expired_session_delete_copies_of_removed_messages(
    keeping: Store, clock: Clock
) -> None:
    for delete in (keeping.expire, lambda: keeping.open("k", renew=True)):
        session_with_copies(keeping, ttl=timedelta(hours=1))
        clock.move(hours=2)
        delete()
        assert (copies(keeping), bodies(keeping)) == ([], [])
        keeping.delete("k")


@pytest.mark.slow
def test_expire_deletes_copies_of_removed_messages_after_undo_until(keeping: Store, clock: Clock) -> None:
    conversation = session_with_copies(keeping)
    clock.move(days=1)
    conversation.append_message(message("b"))
    conversation.pop_message()
    clock.move(days=29, microseconds=-1)
    keeping.expire()
    assert len(copies(keeping)) == 3
    clock.move(microseconds=1)
    keeping.expire(dry_run=True)
    assert len(copies(keeping)) == 3
    assert keeping.expire().sessions == 0
    assert (copies(keeping), bodies(keeping)) == ([("message", 4, 5)], [])
    assert [each.undo_until is None for each in conversation.versions.changes()] == [True, False]
    assert conversation.versions.undo() is not None
    with pytest.raises(NotKept):
        conversation.versions.undo()
    assert contents(conversation.messages()) == ["a", "b"]
    assert_sound(keeping)


def test_expire_with_now_deletes_copies_of_removed_messages_of_several_sessions(keeping: Store, clock: Clock) -> None:
    for number in range(3):
        keeping.open(f"k{number}", messages=messages(2)).pop_message()
    keeping.expire(now=clock() + timedelta(days=30))
    assert [copies(keeping, f"k{number}") for number in range(3)] == [[]] * 3
    with pytest.raises(NotKept):
        keeping.conversation("k1").versions.undo()


@pytest.mark.slow
def test_expire_after_an_undo_keeps_copies_that_earlier_logs_and_redo_need(keeping: Store, clock: Clock) -> None:
    conversation = keeping.open("k", messages=[message("a"), message(LARGE)])
    conversation.pop_message()
    clock.move(days=10)
    conversation.versions.undo()
    clock.move(days=20)
    keeping.expire()
    assert copies(keeping) == [("message", 2, 3)]  # only the copy of the pop has expired
    assert contents(conversation.get(as_of=3).messages) == ["a"]
    assert conversation.versions.redo() is not None
    assert contents(conversation.messages()) == ["a"]
    assert conversation.versions.undo() is not None
    assert contents(conversation.messages()) == ["a", LARGE]
    clock.move(days=10)
    keeping.expire()
    assert copies(keeping) == [("message", 2, 6)]
    clock.move(days=20)
    keeping.expire()
    assert (copies(keeping), bodies(keeping)) == ([], [LARGE])
    assert contents(conversation.messages()) == ["a", LARGE]
    assert_sound(keeping)


# Other places


@pytest.mark.slow
def test_fork_contains_no_text_or_payload_of_a_removed_message(keeping: Store) -> None:
    conversation = session_with_copies(keeping)
    for key, options in {"f": {}, "g": {"upto": 1}, "h": {"as_of": 3}}.items():
        conversation.fork(key, **options)  # type: ignore[arg-type]
        assert (copies(keeping, key), bodies(keeping, key)) == ([], [])
    assert bodies(keeping) == [LARGE]
    assert_sound(keeping)


@pytest.mark.slow
def test_backup_contains_no_text_or_payload_of_a_removed_message(
    keeping: Store, make_database: MakeDatabase, tmp_path: Path
) -> None:
    session_with_copies(keeping)
    keeping.create("other", messages=[message(LARGE)])
    export(keeping, tmp_path / "backup.jsonl", "backup", everything=True)
    assert (tmp_path / "backup.jsonl").read_text().count(LARGE) == 1
    with Store(make_database()) as target:
        assert {each.error for each in import_path(target, tmp_path / "backup.jsonl")} == {None}
        assert_has_no_copies(target)


def assert_has_no_copies(target: Store) -> None:
    """Check a copy of the session `k`."""
    conversation = target.conversation("k")
    assert (copies(target), bodies(target), bodies(target, "other")) == ([], [], [LARGE])
    assert contents(conversation.all_messages()) == ["a"]
    assert [(each.kind, each.undo_until) for each in conversation.versions.changes()] == [("truncate", None)]
    with pytest.raises(NotKept):
        conversation.versions.undo()
    assert_sound(target)


@pytest.mark.slow
def test_copied_store_contains_no_text_or_payload_of_a_removed_message(
    keeping: Store, make_database: MakeDatabase
) -> None:
    session_with_copies(keeping)
    keeping.create("other", messages=[message(LARGE)])
    with Store(make_database()) as target:
        assert copy(keeping, target).complete
        assert_has_no_copies(target)
        assert copy(keeping, target).differing == []


@pytest.mark.slow
def test_archive_contains_no_text_or_payload_of_a_removed_message(keeping: Store, clock: Clock, tmp_path: Path) -> None:
    session_with_copies(keeping)
    cold = tmp_path / "cold.db"
    clock.move(hours=1)
    keeping.expire(older_than=timedelta(0), archive=cold)
    assert LARGE[:1_000].encode() not in cold.read_bytes()  # a page holds no longer part
    keeping.restore("k", cold)
    keeping.create("other", messages=[message(LARGE)])
    assert_has_no_copies(keeping)
