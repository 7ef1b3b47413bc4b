"""States that undo and earlier logs show around changes of turns, compactions and counters."""

import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import contents, message, messages, seqs
from support.turns import messages_of

from lango_store import DatabaseBusy, Message, Store
from lango_store.testing import Clock

LARGE = "a large string " * 5_000


def test_log_as_of_the_seq_of_a_compaction_includes_the_summary(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(3))
    conversation.compact(lambda window: Message.system("summary"), discard=True)
    (change,) = conversation.versions.changes()
    assert contents(conversation.get(as_of=change.seq).messages) == ["summary"]
    assert contents(conversation.fork(as_of=change.seq).messages()) == ["summary"]
    assert len(conversation.get(as_of=change.seq - 1).messages) == 3


def test_log_as_of_the_seq_of_a_replace_after_call_has_its_new_messages(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(3))
    conversation.append_messages([message("new"), message("newer")], replace_after=1)
    (change,) = conversation.versions.changes()
    assert contents(conversation.get(as_of=change.seq).messages) == ["message 0", "new", "newer"]


def test_undo_of_an_edit_made_during_a_turn_leaves_the_message_in_the_turn(keeping: Store) -> None:
    conversation = keeping.open("k")
    with conversation.turn("t") as turn:
        first = turn.append(message("a"))
        conversation.edits.update(first.seq, message("b"))
        turn.append(message("c"))
    conversation.versions.undo()
    (saved,) = conversation.turns.list()
    assert contents(messages_of(conversation, saved)) == ["a", "c"]


def test_undo_of_an_edit_does_not_change_last_consolidated(keeping: Store) -> None:
    conversation = keeping.open("k", messages=messages(6))
    conversation.edits.update(1, message("new"))
    conversation.update(last_consolidated=6)
    conversation.versions.undo()
    assert conversation.info().last_consolidated == 6


def test_undo_of_a_clear_that_removed_no_message_restores_last_consolidated(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("be kind", role="system")])
    conversation.save_turn([message("be brief", role="system")])
    conversation.update(last_consolidated=2)
    conversation.clear(keep_system=True)
    assert conversation.info().last_consolidated == 0
    conversation.versions.undo()
    assert conversation.info().last_consolidated == 2
    conversation.versions.redo()
    assert conversation.info().last_consolidated == 0


def test_undo_does_not_take_back_drop_sent(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message("a", sent="as sent")])
    conversation.edits.update(1, message("b", sent="as sent"))
    conversation.edits.drop_sent(before=2)
    undone = conversation.versions.undo()
    assert undone is not None
    assert undone.change.kind == "update"
    assert contents(conversation.messages()) == ["a"]


def test_stats_and_examine_include_payloads_of_removed_messages(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message(LARGE)])
    conversation.truncate(after=0)
    assert keeping.stats().payload_bytes == len(LARGE)
    with keeping.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM lango_payload"))
    assert "missing payload" in [finding.name for finding in keeping.maintenance.examine()]


def test_transaction_begun_before_a_payload_was_moved_cannot_delete_the_payload(
    make_postgres: MakeDatabase,
) -> None:
    postgres_url = make_postgres()
    with Store(postgres_url, payload_threshold=None) as plain:
        plain.create("k", messages=[message(LARGE), message("b")])
    with Store(postgres_url) as store:
        store.append_message("k", message(LARGE))
        engine = store.engine.execution_options(isolation_level="REPEATABLE READ")
        with engine.connect() as connection:
            host = store.using(connection).conversation("k")
            assert len(host.messages()) == 3
            assert store.maintenance.move_payloads() == 1
            try:
                host.edits.delete(3)
                connection.commit()
            except DatabaseBusy:
                connection.rollback()
        assert store.conversation("k").messages()[0].content == LARGE


def test_expire_deletes_messages_kept_for_an_old_change_but_not_for_a_later_change(
    keeping: Store, clock: Clock
) -> None:
    conversation = keeping.open("k", messages=messages(3))
    conversation.edits.delete(1)
    clock.move(days=20)
    conversation.edits.delete(2)
    clock.move(days=15)
    keeping.expire()
    assert [change.undo_until is None for change in conversation.versions.changes()] == [True, False]
    assert seqs(conversation.get(as_of=4).messages) == [2, 3]
