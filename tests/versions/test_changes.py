"""The table of changes: each seq used by a session belongs to a message or to a row of changes."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages
from support.session_checks import assert_sound, unexplained

from lango_store import Conversation, MessageNotFound, SessionExpired, SessionNotFound, Store
from lango_store._operations.binds import CHANGE
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy
from lango_store.interchange.draft import Part, SessionDraft
from lango_store.interchange.importing import import_draft
from lango_store.testing import Clock

CHANGES: dict[str, tuple[Callable[[Conversation], object], tuple[str, int]]] = {
    "truncate": (lambda c: c.truncate(after=2), ("truncate", 2)),
    "replace_after": (lambda c: c.append_messages(messages(2), replace_after=1), ("truncate", 1)),
    "clear": (lambda c: c.clear(), ("clear", 0)),
    "clear with keep_system": (lambda c: c.clear(keep_system=True), ("clear", 0)),
    "pop": (lambda c: c.pop_message(), ("pop", 4)),
    "delete": (lambda c: c.edits.delete(2), ("delete", 2)),
    "update": (lambda c: c.edits.update(3, message("new")), ("update", 3)),
    "redact": (lambda c: c.edits.redact(3), ("redact", 3)),
    "compact": (lambda c: c.compact(lambda window: messages(2)), ("compact", 4)),
    "discard": (lambda c: c.compact(lambda window: messages(2), discard=True), ("discard", 4)),
}


def changes(store: Store, key: str = "k") -> list[tuple[int, str, int]]:
    """Return seq, kind and `after_seq` of each change of a session."""
    columns = (CHANGE.c.seq, CHANGE.c.kind, CHANGE.c.after_seq)
    query = sa.select(*columns).where(CHANGE.c.session_key == key).order_by(CHANGE.c.seq)
    with store.engine.connect() as connection:
        return [(seq, kind, after) for seq, kind, after in connection.execute(query)]


def unexplained_seqs(store: Store, key: str = "k") -> set[int]:
    with store.engine.connect() as connection:
        return unexplained(connection, key)


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_change_is_recorded_with_its_seq(
    store: Store, clock: Clock, change: Callable[[Conversation], object], expected: tuple[str, int]
) -> None:
    conversation = store.open("k", messages=messages(4))
    clock.move(seconds=5)
    change(conversation)
    assert changes(store) == [(5, *expected)]
    assert unexplained_seqs(store) == set()
    with store.engine.connect() as connection:
        assert connection.execute(sa.select(CHANGE.c.changed_at, CHANGE.c.changed_by)).all() == [(clock.time, None)]


def test_no_change_is_recorded_for_an_append_or_a_refused_change(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.save_turn(messages(2))
    conversation.values.set({"a": 1})
    conversation.update(title="t")
    assert conversation.truncate(after=4) == 0
    with pytest.raises(MessageNotFound):
        conversation.edits.delete(9)
    assert changes(store) == []


def test_changes_lists_a_change_of_an_empty_session(store: Store) -> None:
    conversation = store.open("k")
    conversation.clear()
    assert [(each.seq, each.kind) for each in conversation.versions.changes()] == [(1, "clear")]


def test_changes_of_a_missing_or_expired_session_are_refused(store: Store, clock: Clock) -> None:
    conversation = changed_session(store)
    clock.move(days=1)
    with pytest.raises(SessionExpired):
        conversation.versions.changes()
    with pytest.raises(SessionNotFound):
        store.conversation("missing").versions.changes()


def changed_session(store: Store) -> Conversation:
    """Open a session with three changes: a deletion, a compaction and a pop."""
    conversation = store.open("k", ttl=timedelta(hours=1), messages=messages(6))
    conversation.edits.delete(2)
    conversation.compact(lambda window: messages(1))
    conversation.append_messages(messages(3))
    conversation.pop_message()
    return conversation


@pytest.mark.slow
def test_changes_are_kept_by_fork_export_copy_archive_and_restore(
    store: Store, clock: Clock, make_database: MakeDatabase, tmp_path: Path
) -> None:
    changed_session(store)
    before = changes(store)
    assert [kind for _, kind, _ in before] == ["delete", "compact", "pop"]
    store.conversation("k").fork("f")
    assert changes(store, "f") == before
    export(store, tmp_path / "out", "backup", everything=True)
    for transfer in (lambda other: import_path(other, tmp_path / "out"), lambda other: copy(store, other)):
        with Store(make_database(), clock=clock) as other:
            transfer(other)
            assert changes(other) == before
            assert_sound(other)
    clock.move(days=1)
    store.expire(archive=tmp_path / "cold.db")
    assert changes(store) == []
    store.restore("k", tmp_path / "cold.db")
    assert changes(store) == before
    assert unexplained_seqs(store) == set()


def test_every_seq_of_a_fork_with_upto_belongs_to_a_message_or_a_change(store: Store) -> None:
    original = changed_session(store)
    for upto in range(1, 13):
        original.fork(f"f{upto}", upto=upto).append_message(message("new"))
        assert (upto, unexplained_seqs(store, f"f{upto}")) == (upto, set())
    assert_sound(store)


@pytest.mark.slow
def test_examine_repairs_last_seq_below_the_seq_of_a_change(store: Store) -> None:
    last_seq = changed_session(store).info().last_seq
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_session SET last_seq = {last_seq - 1}")
    (finding,) = [each for each in store.maintenance.examine() if each.name != "settings"]
    assert (finding.name, "last_seq" in finding.detail) == ("wrong counters", True)
    store.maintenance.examine(repair=True)
    assert store.conversation("k").info().last_seq == last_seq


def test_imported_compaction_is_recorded_as_change(store: Store) -> None:
    parts = [Part(messages=messages(2)), Part(kind="compaction", messages=messages(1))]
    with store._context.transaction() as connection:
        now = store._context.now(connection)
        import_draft(connection, now, SessionDraft("k", parts=parts), ttl=None, encode=store._context.batch)
    assert changes(store) == [(3, "compact", 2)]
    assert unexplained_seqs(store) == set()
