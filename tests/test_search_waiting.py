"""What was written since the last search: found at once, by everybody, and indexed by who may write."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase, not_on_a_cluster
from factories import message
from searches import ASKED, found

from lango_store import Store, create_engine, schema
from lango_store.engine import read_only_engine

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


@pytest.fixture
def indexed(make_postgres: MakeDatabase) -> Iterator[Store]:
    """A store on PostgreSQL with a search index, of which nobody waits for a lock."""
    url = f"{make_postgres()}&options=-clock_timeout%3D1000"
    schema.enable_search(url)
    with Store(url) as store:
        yield store


def waiting(store: Store) -> int:
    return schema.search_status(store.engine).waiting


def findings(store: Store) -> list[str]:
    return [each.detail for each in store.examine() if each.name == "search index"]


def test_what_waits_is_found_like_what_is_indexed(store: Store, url: str) -> None:
    schema.enable_search(url)
    texts = ["Weather in Oslo?", "The refund (no. 4711) for Oslo.", "In Oslo, weather is cold", "weather/bergen-42"]
    with store.engine.connect() as connection:
        inside = store.using(connection)
        inside.create("a", messages=[message(text) for text in texts])
        inside.append_message("a", message("Oslo weather", role="record"))
        assert {words: sorted(hit.seq for hit in inside.search(words).items) for words in ASKED} == ASKED
        connection.rollback()


def test_what_was_just_written_is_found_where_nothing_can_be_written(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo"), message("bergen")])
    engine = read_only_engine(indexed.engine.url)
    with Store(engine) as reader:
        assert found(reader, "oslo") == [("a", 1)]
        assert waiting(indexed) == 2
        assert found(indexed, "oslo") == [("a", 1)]
        assert waiting(indexed) == 0
        assert found(reader, "bergen") == [("a", 2)]
    engine.dispose()


def test_a_search_in_a_callers_transaction_locks_no_message(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo"), message("bergen")])
    with indexed.engine.connect() as connection:
        inside = indexed.using(connection)
        assert len(inside.search("oslo").items) == 1
        assert inside.delete_where(user_id="nobody") == 0
        indexed.pop_message("a")
        assert found(indexed, "bergen") == []
        assert waiting(indexed) == 0


def test_a_search_waits_for_nobody_who_deletes_and_finds_what_is_there_until_then(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo"), message("oslo")])
    with indexed.engine.connect() as connection:
        indexed.using(connection).pop_message("a")
        assert found(indexed, "oslo") == [("a", 1), ("a", 2)]
        assert waiting(indexed) == 1
        connection.commit()
    assert found(indexed, "oslo") == [("a", 1)]
    assert (waiting(indexed), findings(indexed)) == (0, [])


def test_a_message_that_is_being_changed_is_found_by_its_old_words_and_then_by_its_new_ones(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo")])
    with indexed.engine.connect() as connection:
        indexed.using(connection).update_message("a", 1, message("bergen"))
        assert (found(indexed, "oslo"), found(indexed, "bergen")) == ([("a", 1)], [])
        connection.commit()
    for _ in range(2):
        assert (found(indexed, "oslo"), found(indexed, "bergen")) == ([], [("a", 1)])
    assert findings(indexed) == []


@pytest.mark.parametrize("way", ["update", "delete"])
def test_a_transaction_that_sees_an_older_index_leaves_no_words_in_it(indexed: Store, way: str) -> None:
    indexed.create("a", messages=[message("oslo"), message("weather")])
    with indexed.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lango_message")
        assert found(indexed, "oslo") == [("a", 1)]
        if way == "update":
            indexed.using(connection).update_message("a", 1, message("bergen"))
        else:
            indexed.using(connection).delete_message("a", 1)
        connection.commit()
    engine = read_only_engine(indexed.engine.url)
    with Store(engine) as reader:
        assert (found(reader, "oslo"), found(reader, "weather")) == ([], [("a", 2)])
    engine.dispose()
    for _ in range(2):
        assert (found(indexed, "oslo"), found(indexed, "weather")) == ([], [("a", 2)])
    assert (waiting(indexed), findings(indexed)) == (0, [])


def test_expire_indexes_what_waits_for_those_who_never_search(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo")])
    assert waiting(indexed) == 1
    indexed.expire()
    assert waiting(indexed) == 0
    assert found(indexed, "oslo") == [("a", 1)]


def test_an_index_that_fails_while_it_takes_what_waits_is_detached_and_told_of(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo")])
    with indexed.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE lango_search RENAME COLUMN seq TO number")
    assert indexed.append_message("a", message("oslo")).seq == 2
    indexed.expire()
    assert schema.search_status(indexed.engine).state == "detached"
    assert findings(indexed)
    schema.rebuild_search(indexed.engine)
    assert found(indexed, "oslo") == [("a", 1), ("a", 2)]


def test_searches_beside_writers_find_what_is_there_and_the_index_is_whole(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo")])
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set() or number < 20:
            number += 1
            seq = indexed.append_message("a", message(f"oslo {number}")).seq
            if number % 3 == 0:
                indexed.update_message("a", seq, message("bergen"))
            if number % 5 == 0:
                indexed.delete_message("a", seq)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for each in writers:
        each.start()
    for _ in range(20):
        assert ("a", 1) in found(indexed, "oslo", limit=1_000)
    ended.set()
    for each in writers:
        each.join()
    there = [("a", each.seq) for each in indexed.all_messages("a") if str(each.content).startswith("oslo")]
    assert found(indexed, "oslo", limit=1_000) == there[:1_000]
    assert findings(indexed) == []


def test_of_very_much_that_is_found_the_newest_is_ranked_and_pages_hold_each_once(
    indexed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lango_store.dialect.gin.RANKED_BYTES", 60)
    for number in range(20):
        indexed.append_message("a", message("oslo oslo" if number in (2, 17) else "oslo"), create=True)
    pages = [indexed.search("oslo", limit=7)]
    while (cursor := pages[-1].next) is not None:
        pages.append(indexed.search("oslo", limit=7, cursor=cursor))
    hits = [hit for page in pages for hit in page.items]
    assert sorted(hit.seq for hit in hits) == list(range(1, 21))
    ranked = [hit.seq for hit in hits if hit.rank > 0]
    assert ranked[0] == 18
    assert sorted(ranked) == list(range(21 - len(ranked), 21))
    assert 3 not in ranked
    assert [hit.seq for hit in hits[len(ranked) :]] == list(range(20 - len(ranked), 0, -1))


def test_a_search_is_not_compiled_and_leaves_a_callers_settings(indexed: Store) -> None:
    settings: list[str] = []

    def look(connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
        if "lango_search_entry_at" in statement:
            cursor = connection.connection.cursor()
            cursor.execute("SHOW jit")
            settings.extend(cursor.fetchone() or ())

    indexed.create("a", messages=[message("oslo")])
    sa.event.listen(indexed.engine, "before_cursor_execute", look)
    with indexed.engine.connect() as connection:
        connection.exec_driver_sql("SET LOCAL jit = on")
        inside = indexed.using(connection)
        assert len(inside.search("oslo").items) == 1
        inside.examine()
        kept = [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in ("jit", "enable_seqscan")]
    assert (settings[0], kept) == ("off", ["on", "on"])


def test_the_doctor_finds_an_index_with_other_words_than_the_messages(indexed: Store) -> None:
    indexed.create("a", messages=[message(f"oslo {number}") for number in range(5)])
    assert len(found(indexed, "oslo")) == 5
    with indexed.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # no trigger sees it
        connection.exec_driver_sql("UPDATE lango_message SET text = 'bergen' WHERE seq <= 2")
    assert ["2 of" in each for each in findings(indexed)] == [True]


EARLIER = """
CREATE TABLE lango_search_state (one BOOLEAN PRIMARY KEY DEFAULT true, configuration TEXT, state TEXT, reason TEXT);
INSERT INTO lango_search_state (configuration, state) VALUES ('simple', 'ready');
CREATE TABLE lango_search (session_key TEXT COLLATE "C", seq BIGINT, words TSVECTOR, PRIMARY KEY (session_key, seq));
CREATE INDEX ix_lango_search_words ON lango_search USING gin (words);
CREATE FUNCTION lango_search_words(c regconfig, a text, b text, d text, e text) RETURNS tsvector LANGUAGE sql
AS 'SELECT to_tsvector(c, a)';
CREATE FUNCTION lango_search_follow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
  INSERT INTO lango_search SELECT session_key, seq, lango_search_words(''simple'', text, null, null, null) FROM added;
  RETURN NULL;
END';
CREATE TRIGGER lango_search_added AFTER INSERT ON lango_message REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION lango_search_follow();
"""


def test_an_index_in_the_form_of_an_earlier_version_is_told_of_and_made_anew(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(EARLIER))
    with Store(engine) as store:
        store.create("a", messages=[message("oslo")])
        assert "an earlier version made it" in str(schema.search_status(engine).reason)
        assert findings(store)
        assert schema.rebuild_search(engine).state == "ready"
        assert found(store, "oslo") == [("a", 1)]
        assert findings(store) == []
        schema.disable_search(engine)
        left = "SELECT proname FROM pg_proc WHERE starts_with(proname::text, 'lango_search')"
        with engine.connect() as connection:
            assert connection.exec_driver_sql(left).all() == []
    engine.dispose()
