"""What a trigger or a policy on the messages keeps as it is: no edit says it was written, and none is counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import message, messages

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

EATS = {
    "sqlite": [
        "CREATE TRIGGER eats_update BEFORE UPDATE ON lango_message BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER eats_delete BEFORE DELETE ON lango_message BEGIN SELECT RAISE(IGNORE); END",
    ],
    "postgresql": [
        "CREATE FUNCTION eat() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER eats BEFORE UPDATE OR DELETE ON lango_message FOR EACH ROW EXECUTE FUNCTION eat()",
    ],
}


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
    store: Store, url: str, edit: Callable[[Conversation], object]
) -> None:
    conversation = filled(store)
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in EATS[engine.dialect.name]:
            connection.exec_driver_sql(statement)
    engine.dispose()
    expect_refused(conversation, edit)


@each_edit
def test_an_edit_that_no_policy_allows_is_an_error_and_changes_nothing(
    make_postgres: MakeDatabase, administrator: sa.Engine, edit: Callable[[Conversation], object]
) -> None:
    url = make_postgres()
    owner = create_engine(url)
    with Store(owner) as store:
        filled(store)
    with administrator.connect() as connection, suppress(sa.exc.ProgrammingError):
        connection.exec_driver_sql("CREATE ROLE lango_reader NOLOGIN")
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
