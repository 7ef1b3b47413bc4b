"""Errors and tracebacks never show stored or searched text."""

import functools
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from support.factories import message

from lango_store import LangoStoreError, Store, UniqueViolation, create_engine, schema

SECRET = "wombat4711"


def host_engine(url: str) -> sa.Engine:
    """Make an engine as a host does, with SQLAlchemy's defaults."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    return engine


@pytest.fixture(params=[create_engine, host_engine], ids=["own engine", "host's engine"])
def engine(request: pytest.FixtureRequest, url: str) -> Iterator[sa.Engine]:
    made = request.param(url)
    yield made
    made.dispose()


def refused(call: Callable[[], Any]) -> LangoStoreError:
    """Return the error of a call, after checking that neither it nor its traceback contains the secret."""
    with pytest.raises(LangoStoreError) as caught:
        call()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.fact} {pickle.dumps(caught.value)!r}"
    return caught.value


def change(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


BEFORE = {
    "NOT NULL": {
        "postgresql": [
            "ALTER TABLE lango_message ADD COLUMN mood TEXT DEFAULT '' NOT NULL",
            "ALTER TABLE lango_message ALTER COLUMN mood DROP DEFAULT",
        ],
        "sqlite": [
            "CREATE TABLE copy (mood TEXT NOT NULL, text TEXT)",
            "CREATE TRIGGER copy AFTER INSERT ON lango_message BEGIN INSERT INTO copy VALUES (NULL, new.text); END",
        ],
    },
    "CHECK": {
        "postgresql": ["ALTER TABLE lango_message ADD CHECK (length(text) < 5)"],
        "sqlite": [
            "CREATE TABLE copy (text TEXT CHECK (length(text) < 5))",
            "CREATE TRIGGER copy AFTER INSERT ON lango_message BEGIN INSERT INTO copy VALUES (new.text); END",
        ],
    },
    "EXCLUDE": {
        "postgresql": ["ALTER TABLE lango_message ADD EXCLUDE USING btree (text WITH =)"],
        "sqlite": ["CREATE UNIQUE INDEX one ON lango_message (text || '')"],
    },
    "UNIQUE": {
        "postgresql": ["CREATE UNIQUE INDEX one ON lango_message (text)"],
        "sqlite": ["CREATE UNIQUE INDEX one ON lango_message (text)"],
    },
}
WRITES: list[Callable[[Store], Any]] = [
    lambda store: store.append_message("k", message(SECRET)),
    lambda store: store.append_message("new", message(SECRET), create=True),
    lambda store: store.conversation("k").append_messages([message(SECRET)], replace_after=0),
    lambda store: store.conversation("k").save_turn([message(SECRET)], {"note": SECRET}, id="t"),
    lambda store: store.create("new", title=SECRET, messages=[message(SECRET)]),
]


@pytest.mark.parametrize("constraint", BEFORE)
def test_error_for_a_violated_constraint_shows_no_stored_text(engine: sa.Engine, constraint: str) -> None:
    statements = BEFORE[constraint][engine.dialect.name]
    with Store(engine) as store:
        store.create("k", messages=[message("1")])
        if constraint in ("UNIQUE", "EXCLUDE"):
            store.create("other", messages=[message(SECRET)])
        change(engine, *statements)
        for write in WRITES:
            error = refused(functools.partial(write, store))
            assert isinstance(error, UniqueViolation) == ("UNIQUE" in statements[0])
            with engine.begin() as connection:
                refused(functools.partial(write, store.using(connection)))
                connection.rollback()


def test_error_of_a_failed_statement_shows_no_parameters(url: str) -> None:
    engine = create_engine(url)
    statement = sa.text("SELECT * FROM missing WHERE a = :a")
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as caught:
        connection.execute(statement, {"a": SECRET})
    engine.dispose()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_error_of_a_failed_search_shows_no_search_words(engine: sa.Engine) -> None:
    schema.enable_search(engine)
    with Store(engine) as store:
        store.create("k", messages=[message(f"about {SECRET}")])
        assert len(store.search(SECRET).items) == 1
        damage = {
            "postgresql": "ALTER TABLE lango_search RENAME entry TO gone",
            "sqlite": "UPDATE lango_search_data SET block = x'00'",
        }
        change(engine, damage[engine.dialect.name])
        refused(lambda: store.search(SECRET))
        with engine.begin() as connection:
            refused(lambda: store.using(connection).search(SECRET))
            connection.rollback()
