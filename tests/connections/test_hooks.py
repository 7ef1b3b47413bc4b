"""Observing statements with `on_statement` and with the engine's log."""

import logging

import pytest
import sqlalchemy as sa
from support.factories import message, messages
from support.statements import watched

from lango_store import SessionNotFound, Store, create_engine

Seen = list[tuple[str, float]]


def methods(store: Store) -> None:
    store.create("k", messages=messages(2))
    store.append_message("k", message())
    store.conversation("k").append_messages(messages(2), replace_after=1)
    store.get("k")
    store.list_sessions()
    store.stats()
    with pytest.raises(SessionNotFound):
        store.append_message("nobody", message())


def is_ours(statement: str) -> bool:
    return statement.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


def shape(statement: str) -> str:
    """Return a statement without its values, because drivers report it with or without them."""
    return "".join(statement.split())[:25]


def test_on_statement_is_called_with_each_statement_that_reaches_the_driver(url: str) -> None:
    told: Seen = []
    engine = create_engine(url)
    with Store(engine, on_statement=lambda text, seconds: told.append((text, seconds))) as store:
        store.ping()
        with watched(engine) as seen:
            told.clear()
            methods(store)
            reached = [shape(each) for each in seen if is_ours(each)]
    assert len(reached) > 10
    hooked = [shape(text) for text, _ in told if is_ours(text)]
    assert sorted(set(hooked)) == sorted(set(reached))
    if engine.dialect.name == "postgresql":  # SQLite reports each row that executemany inserts
        assert hooked == reached
    assert all(0 <= seconds < 60 for _, seconds in told)


def test_on_statement_is_not_called_with_the_callers_own_statements(url: str) -> None:
    told: Seen = []
    engine = create_engine(url)
    store = Store(engine, on_statement=lambda text, seconds: told.append((text, seconds)))
    store.create("k")
    with engine.connect() as connection:
        mine = store.using(connection)
        mine.get("k")
        told.clear()
        connection.execute(sa.text("SELECT 42"))
        mine.append_message("k", message())
        connection.execute(sa.text("SELECT 43"))
        connection.commit()
    assert any("lango_message" in text for text, _ in told)
    assert not any("42" in text or "43" in text for text, _ in told)
    engine.dispose()


def test_engine_log_has_statement_and_time_but_no_content(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Store(url) as store:
        store.create("k")
        store.append_message("k", message("before"))
        assert not caplog.records
        with caplog.at_level(logging.INFO, "sqlalchemy.engine"):
            other = create_engine(url)
            with Store(other) as logged:
                logged.append_message("k", message("a secret"))
                logged.get("k")
            other.dispose()
    lines = [record.getMessage() for record in caplog.records]
    assert any("INSERT INTO lango_message" in line and line.endswith(" s]") for line in lines)
    assert any("SELECT" in line and "lango_message" in line for line in lines)
    assert not any("a secret" in line for line in lines)
