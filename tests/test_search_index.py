"""The search index through its life: made, filled beside writers, damaged, detached, made anew, dropped."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from conftest import Clock, MakeDatabase, not_on_a_cluster
from factories import message, messages
from searches import found

from lango_store import SearchUnavailable, Store, create_engine, schema

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


@pytest.fixture
def filled(url: str, clock: Clock) -> Iterator[Store]:
    """Thirty messages of three sessions, and no index."""
    with Store(url, clock=clock) as store:
        for number in range(3):
            store.create(f"chat:{number}", messages=[message(f"oslo {n} in {number}") for n in range(10)])
        yield store


def names(engine: sa.Engine) -> set[str]:
    """What a database has of the search index, whatever it is."""
    query = {
        "sqlite": "SELECT name FROM sqlite_master WHERE name LIKE 'lango@_search%' ESCAPE '@'",
        "postgresql": "SELECT relname::text FROM pg_class WHERE starts_with(relname::text, 'lango_search') "
        "UNION SELECT proname::text FROM pg_proc WHERE starts_with(proname::text, 'lango_search') "
        "UNION SELECT tgname::text FROM pg_trigger WHERE starts_with(tgname::text, 'lango_search')",
    }[engine.dialect.name]
    with engine.connect() as connection:
        return set(connection.exec_driver_sql(query).scalars())


def test_what_was_there_before_is_found_too(filled: Store) -> None:
    assert schema.search_status(filled.engine).state == "disabled"
    made = schema.enable_search(filled.engine)
    assert (made.state, made.configuration, made.indexed, made.waiting) == ("ready", "simple", 30, 0)
    assert made.bytes > 0
    assert len(found(filled, "oslo", limit=100)) == 30
    assert schema.search_status(filled.engine) == made == schema.enable_search(filled.engine)


def test_disabled_it_leaves_nothing_and_no_message_is_touched(filled: Store) -> None:
    before = [filled.get(f"chat:{number}") for number in range(3)]
    schema.enable_search(filled.engine)
    assert names(filled.engine)
    assert schema.disable_search(filled.engine)
    assert not names(filled.engine)
    assert not schema.disable_search(filled.engine)
    assert [filled.get(f"chat:{number}") for number in range(3)] == before


class Killed(BaseException):
    """A process that is killed where it stands."""


def test_a_killed_fill_is_reported_and_goes_on_where_it_was(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lango_store.schema.searching._FIRST", 5)

    def kill(progress: schema.Progress) -> None:
        if progress.rows >= 10:
            raise Killed

    with pytest.raises(Killed):
        schema.enable_search(filled.engine, on_progress=kill)
    filled.append_message("chat:0", message("oslo afterwards"))
    with pytest.raises(SearchUnavailable, match="search enable"):
        filled.search("oslo")
    (finding,) = [each for each in filled.examine() if each.name == "search index"]
    assert "search enable" in finding.remedy
    seen: list[schema.Progress] = []
    made = schema.enable_search(filled.engine, on_progress=seen.append)
    assert (made.state, made.indexed + made.waiting) == ("ready", 31)
    assert 0 < seen[0].total < 30
    assert len(found(filled, "oslo", limit=100)) == 31


def test_it_is_filled_beside_writers_and_misses_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lango_store.schema.searching._FIRST", 7)
    monkeypatch.setattr("lango_store.schema.searching._LARGEST", 7)
    with Store(url) as store:
        store.create("a", messages=[message(f"oslo {number}") for number in range(100)])
        store.create("b", messages=[message(f"oslo {number}") for number in range(100)])
        ended = threading.Event()
        written: list[int] = []

        def write() -> None:
            while not ended.is_set() or len(written) < 20:
                written.append(store.append_message("a", message("oslo meanwhile")).seq)
                store.pop_message("b")

        writer = threading.Thread(target=write)
        writer.start()
        schema.enable_search(url)
        ended.set()
        writer.join()
        there = {("a", each.seq) for each in store.all_messages("a")} | {
            ("b", each.seq) for each in store.all_messages("b")
        }
        pages = [store.search("oslo", limit=1_000)]
        while (cursor := pages[-1].next) is not None:
            pages.append(store.search("oslo", limit=1_000, cursor=cursor))
        assert {(hit.key, hit.seq) for page in pages for hit in page.items} == there
        assert [each for each in store.examine() if each.name == "search index"] == []


def test_in_a_callers_transaction_it_is_made_with_it_or_not_at_all(filled: Store) -> None:
    with filled.engine.connect() as connection:
        assert schema.enable_search(connection).indexed == 30
        connection.rollback()
    assert not names(filled.engine)
    with filled.engine.begin() as connection:
        schema.enable_search(connection)
    assert len(found(filled, "oslo", limit=100)) == 30


def test_another_configuration_needs_a_rebuild_and_an_unknown_one_is_refused(filled: Store) -> None:
    with pytest.raises(ValueError, match="simple"):
        schema.enable_search(filled.engine, configuration="klingon")
    assert not names(filled.engine)
    other = "trigram" if filled.engine.dialect.name == "sqlite" else "english"
    filled.append_message("chat:0", message("she was running"))
    schema.enable_search(filled.engine)
    with pytest.raises(ValueError, match="search rebuild"):
        schema.enable_search(filled.engine, configuration=other)
    assert found(filled, "run") == []
    assert schema.rebuild_search(filled.engine, configuration=other).configuration == other
    assert found(filled, "run") == [("chat:0", 11)]
    assert schema.rebuild_search(filled.engine).configuration == other


DAMAGES = {
    "sqlite": [
        "UPDATE lango_search_data SET block = zeroblob(20) WHERE id > 10",
        "UPDATE lango_search_data SET block = x'00' WHERE id = 10",
        "DELETE FROM lango_search_data",
        "DROP TABLE lango_search_data",
        "DROP TABLE lango_search_docsize",
        "DROP TABLE lango_search",
        "DROP TRIGGER lango_search_added",
        "UPDATE lango_search_config SET v = 99",
        "DELETE FROM lango_search_state",
    ],
    "postgresql": [
        "DROP TABLE lango_search",
        "DROP INDEX ix_lango_search_entry",
        "DROP TABLE lango_search_waiting",
        "DROP FUNCTION lango_search_take(integer)",
        "DROP FUNCTION lango_search_entry_at(text, bigint) CASCADE",
        "DROP FUNCTION lango_search_json(json) CASCADE",
        "ALTER TABLE lango_message DISABLE TRIGGER lango_search_added",
        "UPDATE lango_search_state SET configuration = 'gone'",
        "DELETE FROM lango_search_state",
        "DROP TABLE lango_search_state",
    ],
}


def test_a_damaged_index_costs_no_append_is_reported_and_a_rebuild_finds_what_a_fresh_one_does(
    filled: Store,
) -> None:
    schema.enable_search(filled.engine)
    seq = 10
    for damage in DAMAGES[filled.engine.dialect.name]:
        filled.engine.dispose()  # FTS5 would write down again what it has in memory
        with filled.engine.begin() as connection:
            connection.exec_driver_sql(damage)
        filled.engine.dispose()
        for _ in range(5):
            seq += 1
            assert filled.append_message("chat:0", message("oslo, still there")).seq == seq, damage
        with filled.engine.begin() as connection:
            assert filled.using(connection).append_message("chat:1", message("oslo")).seq, damage
        assert filled.pop_message("chat:1"), damage
        with suppress(SearchUnavailable):  # of lost bytes FTS5 itself may know nothing, the doctor does
            filled.search("oslo")
        state = schema.search_status(filled.engine).state
        assert state == "disabled" or "search index" in {each.name for each in filled.examine()}, damage
        assert schema.rebuild_search(filled.engine, configuration="simple").state == "ready", damage
        hits = {(hit.key, hit.seq) for hit in filled.search("oslo", limit=1_000).items}
        assert hits == {(f"chat:{n}", each.seq) for n in range(3) for each in filled.all_messages(f"chat:{n}")}, damage
        assert [each for each in filled.examine() if each.name == "search index"] == []


REPLACING: dict[str, Callable[[Store], object]] = {
    "append_message": lambda store: store.append_message("old", message("new"), create=True),
    "append_messages": lambda store: store.append_messages("old", messages(2), create=True),
    "save_turn": lambda store: store.conversation("old").save_turn([message("new")], create=True),
    "get_or_create": lambda store: store.get_or_create("old", renew=True),
    "open": lambda store: store.open("old", renew=True),
}


@pytest.mark.parametrize("verb", REPLACING)
def test_an_expired_session_is_replaced_despite_a_damaged_index(filled: Store, clock: Clock, verb: str) -> None:
    damage = {"sqlite": "DROP TABLE lango_search_docsize", "postgresql": "DROP TABLE lango_search"}
    schema.enable_search(filled.engine)
    filled.create("old", messages=[message("oslo")], ttl=timedelta(seconds=60))
    filled.search("oslo")
    clock.move(seconds=61)
    filled.engine.dispose()
    with filled.engine.begin() as connection:
        connection.exec_driver_sql(damage[filled.engine.dialect.name])
    REPLACING[verb](filled)
    assert "oslo" not in [each.content for each in filled.messages("old")]


def test_the_doctor_finds_messages_that_the_index_does_not_know(filled: Store) -> None:
    schema.enable_search(filled.engine)
    table = "lango_search_docsize" if filled.engine.dialect.name == "sqlite" else "lango_search"
    with filled.engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM {table}")
    assert {each.name for each in filled.examine()} >= {"search index"}


def test_an_index_that_somebody_holds_is_not_taken_for_a_damaged_one(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args={"options": "-c lock_timeout=200ms"})
    with Store(engine) as store, engine.connect() as holder:
        schema.enable_search(engine)
        store.create("k", messages=[message("oslo")])
        store.search("oslo")
        holder.exec_driver_sql("LOCK TABLE lango_search IN ACCESS EXCLUSIVE MODE")
        names = {each.name for each in store.examine()}
        assert "check failed" in names
        assert "search index" not in names
    engine.dispose()


def in_file(path: Path, word: str) -> bool:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return word.encode() in path.read_bytes()


def test_words_that_are_deleted_leave_the_file(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    path = Path(url.removeprefix("sqlite:///"))
    engine = create_engine(url)  # as most builds of SQLite do by themselves, with messages too
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA secure_delete = ON"))
    schema.enable_search(engine)
    ways = (
        "truncate",
        "clear",
        "delete",
        "update",
        "redact",
        "pop",
        "replace",
        "delete_message",
        "delete_where",
        "expire",
    )
    with Store(engine) as store:
        for number, way in enumerate(ways):
            store.create(way, user_id=way, messages=[*messages(30), message(f"qzx{number}secret")])
        store.search("secret")
        assert all(in_file(path, f"qzx{number}secret") for number in range(len(ways)))
        store.truncate("truncate", after=5)
        store.clear("clear")
        store.delete("delete")
        store.update_message("update", 31, message("nothing"))
        store.redact_message("redact", 31)
        store.pop_message("pop")
        store.append_messages("replace", [message("nothing")], replace_after=30)
        store.delete_message("delete_message", 31)
        store.delete_where(user_id="delete_where")
        store.touch("expire", ttl=timedelta(microseconds=1))
        store.expire()
    assert [way for number, way in enumerate(ways) if in_file(path, f"qzx{number}secret")] == []


def test_a_hosts_autogenerate_and_our_own_check_know_the_index_as_ours(filled: Store) -> None:
    schema.enable_search(filled.engine)
    assert schema.check(filled.engine) == []
    with filled.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": schema.include_name})
        assert compare_metadata(context, sa.MetaData()) == []


def test_a_downgrade_to_nothing_takes_the_index_along(filled: Store) -> None:
    schema.enable_search(filled.engine)
    schema.downgrade(filled.engine, "base")
    assert not names(filled.engine)
    schema.upgrade(filled.engine)
    assert schema.search_status(filled.engine).state == "disabled"


def test_a_vacuum_changes_no_answer(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite())
    with Store(engine) as store:
        store.create("a", messages=[message(f"oslo {number}") for number in range(50)])
        store.create("b", messages=[message("bergen")])
        schema.enable_search(engine)
        store.truncate("a", after=3)
        before = found(store, "oslo")
        with engine.connect() as connection:
            connection.connection.driver_connection.execute("VACUUM")  # type: ignore[union-attr]
        assert found(store, "oslo") == before
        assert found(store, "bergen") == [("b", 1)]
    engine.dispose()
