"""A search index whose bytes are damaged: found by who searches and by the doctor, detached, and made anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeDatabase, not_on_a_cluster
from factories import message
from postgres_server import PostgresServer

from lango_store import DamagedMessage, LangoStoreError, SearchUnavailable, Store, create_engine, schema

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


def filled(url: str) -> Store:
    store = Store(create_engine(url))
    schema.enable_search(url)
    store.create("a", messages=[message(f"oslo number{n} word{n}") for n in range(1_000)])
    assert len(store.search("oslo").items) == 20
    return store


def on_sqlite(make_sqlite: MakeDatabase) -> Iterator[Store]:
    url = make_sqlite()
    store = filled(url)
    store.engine.dispose()
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE lango_search_data SET block = x'ffffffffffffffffffffffffffffffff' WHERE id = 10")
    connection.close()
    yield store


def on_postgres() -> Iterator[Store]:
    server = PostgresServer()
    try:
        schema.upgrade(server.url())
        store = filled(server.url())
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("SELECT gin_clean_pending_list('ix_lango_search_entry')")
            connection.exec_driver_sql("CHECKPOINT")
            query = "SELECT current_setting('data_directory') || '/' || pg_relation_filepath('ix_lango_search_entry')"
            path = Path(connection.exec_driver_sql(query).scalar_one())
        store.engine.dispose()
        server.interrupt()
        with path.open("r+b") as file:
            for page in range(1, path.stat().st_size // 8192):
                file.seek(page * 8192 + 24)
                file.write(b"\xaa" * 8000)
        server.resume()
        yield store
    finally:
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def damaged(request: pytest.FixtureRequest, make_sqlite: MakeDatabase) -> Iterator[Store]:
    """A store of 1,000 messages, of which none waits for the index, and that was damaged in its file."""
    for store in on_sqlite(make_sqlite) if request.param == "sqlite" else on_postgres():
        yield store
        store.engine.dispose()


def test_a_search_of_a_damaged_index_says_what_to_do_and_costs_no_append(damaged: Store) -> None:
    (finding,) = [each for each in damaged.examine() if each.name == "search index"]
    assert "search rebuild" in finding.remedy
    with damaged.engine.connect() as connection:
        beside = [each for each in damaged.using(connection).examine() if each.name != "settings"]
    assert [each.name for each in beside] == ["search index"]
    with damaged.engine.connect() as connection, pytest.raises(LangoStoreError, match=r"is damaged|invalid page"):
        damaged.using(connection).search("number7")
    with pytest.raises(SearchUnavailable, match="search rebuild"):
        damaged.search("number7")
    assert schema.search_status(damaged.engine).state == "detached"
    assert damaged.append_message("a", message("oslo, still there")).seq == 1_001
    schema.rebuild_search(damaged.engine)
    assert [hit.seq for hit in damaged.search("still").items] == [1_001]
    assert [hit.seq for hit in damaged.search("number7").items] == [8]


def test_a_hit_whose_message_is_damaged_is_named(store: Store, url: str) -> None:
    schema.enable_search(url)
    store.create("k", messages=[message("bergen"), message("oslo")])
    damages = {"role": "nobody", "created_at": "x"} if store.engine.dialect.name == "sqlite" else {"role": "nobody"}
    for field, value in damages.items():
        with store.engine.begin() as connection:
            (before,) = connection.exec_driver_sql(f"SELECT {field} FROM lango_message WHERE seq = 1").one()
            connection.exec_driver_sql(f"UPDATE lango_message SET {field} = '{value}' WHERE seq = 2")
        assert [hit.seq for hit in store.search("bergen").items] == [1]
        with pytest.raises(DamagedMessage) as raised:
            store.search("oslo")
        assert (raised.value.key, raised.value.seq, raised.value.field) == ("k", 2, field)
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_message SET {field} = '{before}' WHERE seq = 2")


def test_an_error_that_is_not_the_indexes_leaves_it_alone_and_says_nothing_of_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        schema.enable_search(engine)
        store.create("k", messages=[message("oslo")])
        refusing = "BEFORE DELETE ON lango_message FOR EACH ROW"
        with engine.begin() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql(f"CREATE TRIGGER refuses {refusing} BEGIN SELECT RAISE(ABORT, 'no'); END")
            else:
                damage = "RAISE EXCEPTION ''no'' USING ERRCODE = ''data_corrupted''"  # of the messages themselves
                body = f"RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {damage}; END'"
                connection.exec_driver_sql(f"CREATE FUNCTION refuse() {body}")
                connection.exec_driver_sql(f"CREATE TRIGGER refuses {refusing} EXECUTE FUNCTION refuse()")
        with pytest.raises(LangoStoreError, match="no"):
            store.delete("k")
        assert [record.getMessage() for record in caplog.records if record.name == "lango_store"] == []
        assert schema.search_status(engine).state == "ready"
    engine.dispose()
