"""Rows that a trigger or a policy withholds: the call is an error, and nothing of it was written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import message, messages
from triggers import eat

from lango_store import Conversation, DatabaseUnavailable, Store, create_engine

EDITS: dict[str, Callable[[Conversation], object]] = {
    "pop": lambda c: c.pop_message(),
    "pop records": lambda c: c.pop_message(records=True),
    "update_message": lambda c: c.update_message(3, message("new", tokens=5)),
    "update_message expect": lambda c: c.update_message(3, message("new"), expect=c.info().revision),
    "delete_message": lambda c: c.delete_message(3),
    "redact_message": lambda c: c.redact_message(3),
}
each_edit = pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())


def filled(store: Store) -> Conversation:
    conversation = store.open("k", messages=messages(1))
    conversation.save_turn([message("two", tokens=2), message("three", tokens=3)], {"tokens": 1})
    return conversation


def expect_refused(conversation: Conversation, edit: Callable[[Conversation], object]) -> None:
    before = conversation.get(), conversation.turns()
    with pytest.raises(DatabaseUnavailable, match=r"message 3 of session 'k'.*trigger.*policy on lango_message"):
        edit(conversation)
    assert (conversation.get(), conversation.turns()) == before


@each_edit
def test_an_edit_that_a_trigger_eats_is_an_error_and_changes_nothing(
    store: Store, edit: Callable[[Conversation], object]
) -> None:
    conversation = filled(store)
    for event in ("UPDATE", "DELETE"):
        eat(store.engine, event, "lango_message")
    expect_refused(conversation, edit)


@each_edit
def test_an_edit_whose_session_a_trigger_keeps_as_it_is_names_the_session_and_changes_nothing(
    store: Store, edit: Callable[[Conversation], object]
) -> None:
    conversation = filled(store)
    before = conversation.get(), conversation.turns()
    eat(store.engine, "UPDATE", "lango_session")
    with pytest.raises(DatabaseUnavailable, match=r"session 'k' is there .*policy on lango_session "):
        edit(conversation)
    assert (conversation.get(), conversation.turns()) == before


@each_edit
def test_an_edit_that_no_policy_allows_is_an_error_and_changes_nothing(
    make_postgres: MakeDatabase, administrator: sa.Engine, edit: Callable[[Conversation], object]
) -> None:
    url = make_postgres()
    owner = create_engine(url)
    with Store(owner) as store:
        filled(store)
    with administrator.connect() as connection, suppress(sa.exc.ProgrammingError):
        connection.exec_driver_sql("CREATE ROLE lango_reader LOGIN")
    with owner.begin() as connection:
        for statement in (
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO lango_reader",
            "ALTER TABLE lango_message ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY seen ON lango_message FOR SELECT USING (true)",
            "CREATE POLICY added ON lango_message FOR INSERT WITH CHECK (true)",
        ):
            connection.exec_driver_sql(statement)
    owner.dispose()
    with Store(f"{url}&options=-crole%3Dlango_reader") as appender:
        expect_refused(appender.open("k"), edit)


# Rows that an append writes

FOURTH = "NEW.seq = 4"
AN_INSERT: dict[str, tuple[str, str, Callable[[Store], object]]] = {
    "message": ("lango_message", FOURTH, lambda store: store.append_message("k", message())),
    "message with an id": ("lango_message", FOURTH, lambda store: store.append_message("k", message(id="i"))),
    "message compared": ("lango_message", FOURTH, lambda store: store.append_message("k", message(), after=3)),
    "message or session": ("lango_message", FOURTH, lambda store: store.append_message("k", message(), create=True)),
    "one of several": ("lango_message", FOURTH, lambda store: store.append_messages("k", messages(3))),
    "message of a turn": ("lango_message", FOURTH, lambda store: store.conversation("k").save_turn(messages(2))),
    "turn": ("lango_turn", "NEW.turn_no = 2", lambda store: store.conversation("k").save_turn(messages(2))),
    "turn without messages": ("lango_turn", "", lambda store: store.conversation("k").save_turn([], {"tokens": 1})),
    "session that an append makes": (
        "lango_session",
        "NEW.key = 'new'",
        lambda store: store.append_message("new", message(), create=True),
    ),
    "first message": (
        "lango_message",
        "NEW.session_key = 'new'",
        lambda store: store.append_message("new", message(), create=True),
    ),
    "one of those created with": (
        "lango_message",
        "NEW.session_key = 'new' AND NEW.seq = 2",
        lambda store: store.create("new", messages=messages(3)),
    ),
    "summary": ("lango_message", "", lambda store: store.conversation("k").compact(lambda _: message("short"))),
}


def everything(store: Store) -> object:
    kept = [(info, store.all_messages(info.key), store.values(info.key)) for info in store.iter_sessions()]
    return kept, store.conversation("k").turns()


@pytest.mark.parametrize("using", [False, True])
@pytest.mark.parametrize(("table", "condition", "write"), AN_INSERT.values(), ids=list(AN_INSERT))
def test_a_row_that_a_trigger_eats_is_an_error_and_nothing_is_written(
    store: Store, table: str, condition: str, write: Callable[[Store], object], using: bool
) -> None:
    filled(store)
    before = everything(store)
    eat(store.engine, "INSERT", table, condition)
    with store.engine.connect() as connection:
        with pytest.raises(DatabaseUnavailable, match=rf"trigger.*policy on {table} "):
            write(store.using(connection) if using else store)
        connection.commit()
    assert everything(store) == before


# Rows that a cut takes away

CUTS: dict[str, Callable[[Conversation], object]] = {
    "truncate": lambda c: c.truncate(after=1),
    "clear": lambda c: c.clear(),
    "clear but for the system's": lambda c: c.clear(keep_system=True),
    "replace": lambda c: c.append_messages(messages(1), replace_after=1),
    "compact": lambda c: c.compact(lambda _: message("short"), discard=True),
}


@pytest.mark.parametrize("table", ["lango_message", "lango_turn"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=list(CUTS))
def test_a_row_that_a_trigger_keeps_from_a_cut_is_an_error_and_all_stays(
    store: Store, cut: Callable[[Conversation], object], table: str
) -> None:
    conversation = filled(store)
    before = everything(store)
    eat(store.engine, "DELETE", table, "OLD.seq = 3" if table == "lango_message" else "")
    with pytest.raises(DatabaseUnavailable, match=rf"trigger.*policy on {table} "):
        cut(conversation)
    assert everything(store) == before


@pytest.mark.parametrize("event", ["UPDATE", "DELETE"])
def test_a_pop_whose_turn_a_trigger_keeps_as_it_is_changes_nothing(store: Store, event: str) -> None:
    conversation = filled(store)
    if event == "DELETE":
        conversation.pop_message()  # one message of the turn is left
    before = everything(store)
    eat(store.engine, event, "lango_turn")
    with pytest.raises(DatabaseUnavailable, match=r"message [23] of session 'k'.*policy on lango_turn "):
        conversation.pop_message()
    assert everything(store) == before
