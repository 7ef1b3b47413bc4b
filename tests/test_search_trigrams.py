"""Three characters of a text are found in the middle of it: for languages without spaces, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from commands import run
from conftest import MakeDatabase, not_on_a_cluster
from factories import message, messages
from searches import found

from lango_store import Message, Store, ToolCall, create_engine, schema

pytestmark = [pytest.mark.pg_trgm, not_on_a_cluster("a search index is refused on distributed tables")]


@pytest.fixture
def searched(store: Store, url: str) -> Store:
    """An empty store with an index of trigrams."""
    if store.engine.dialect.name == "postgresql":
        with store.engine.begin() as connection:
            connection.exec_driver_sql("CREATE EXTENSION pg_trgm")
    schema.enable_search(url, configuration="trigram")
    return store


ASKED = {
    "東京": [],
    "東京タ": [1, 2],
    "タワー": [1, 2],
    "東京タワー 大阪城": [2],
    '"タワーと大"': [2],
    "東京タワー -大阪城": [1],
    "東京タワー -大阪": [1, 2],
    "東京タワー 大阪": [1, 2],
    "東京タ*": [1, 2],
    "京都府": [],
    "OSLO": [3, 4],
    "slo": [3, 4],
    '"o (osl"': [4],
    "100%": [4],
    "100_": [],
    "50\\": [3],
    "ab": [],
    "-東京タワー": [],
}
TEXTS = ["明日は東京タワーに行きます", "東京タワーと大阪城", "Nach Oslo: 50\\50", "no (Oslo), 100%"]


def test_any_three_characters_are_found_and_fewer_say_nothing(searched: Store) -> None:
    searched.create("a", messages=[message(text) for text in TEXTS])
    assert {words: [seq for _, seq in found(searched, words)] for words in ASKED} == ASKED


def test_what_waits_is_found_by_three_characters_too(searched: Store) -> None:
    with searched.engine.connect() as connection:
        inside = searched.using(connection)
        inside.create("a", messages=[message(text) for text in TEXTS])
        assert {words: sorted(hit.seq for hit in inside.search(words).items) for words in ASKED} == ASKED
        connection.rollback()


def test_a_hit_shows_the_characters_in_their_places(searched: Store) -> None:
    searched.append_message("a", message("明日は東京タワーに、来週も東京タワーに行きます"), create=True)
    (hit,) = searched.search("東京タワー").items
    assert hit.rank > 0
    assert [hit.snippet[at:end] for at, end in hit.places] == ["東京タワー"] * 2


def test_what_was_said_counts_more_than_blocks_tools_and_outputs(searched: Store) -> None:
    answer = ToolCall(id="1", name="other", output={"cities": ["東京タワー"]})
    searched.create(
        "a",
        messages=[
            message(None, role="tool", tool_calls=[answer]),
            message(None, role="assistant", tool_calls=[ToolCall(id="1", name="東京タワー")]),
            message([{"type": "text", "text": "東京タワー"}]),
            message("東京タワー"),
        ],
    )
    assert [hit.seq for hit in searched.search("東京タワー").items] == [4, 3, 2, 1]


def test_the_index_follows_every_write_and_the_doctor_finds_it_whole(searched: Store) -> None:
    searched.create("a", messages=[*messages(30), message("東京タワー"), message("大阪城です"), message("ab")])
    assert found(searched, "東京タワー") == [("a", 31)]
    searched.update_message("a", 31, message("京都府です"))
    assert (found(searched, "東京タワー"), found(searched, "京都府")) == ([], [("a", 31)])
    searched.delete_message("a", 32)
    assert found(searched, "大阪城") == []
    assert [each for each in searched.examine() if each.name == "search index"] == []


def test_a_store_changes_to_three_characters_and_back(searched: Store) -> None:
    searched.append_message("a", Message.user("Oslo"), create=True)
    assert found(searched, "slo") == [("a", 1)]
    done = run("search", "rebuild", "--configuration", "simple", "--url", searched.engine.url.render_as_string(False))
    assert (done.returncode, "(simple, " in done.stdout) == (0, True)
    assert (found(searched, "slo"), found(searched, "oslo")) == ([], [("a", 1)])
    schema.rebuild_search(searched.engine, configuration="trigram")
    assert found(searched, "slo") == [("a", 1)]


def test_the_doctor_finds_trigrams_that_no_message_has(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres())
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE EXTENSION pg_trgm")
    schema.enable_search(engine, configuration="trigram")
    with Store(engine) as store:
        store.create("a", messages=[message(text) for text in TEXTS])
        store.search("oslo")
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # no trigger sees it
            connection.exec_driver_sql("UPDATE lango_message SET text = '京都府です' WHERE seq = 1")
        (finding,) = [each for each in store.examine() if each.name == "search index"]
        assert "1 of" in finding.detail
    engine.dispose()


def test_a_database_without_the_extension_says_which_and_how_to_get_it(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with pytest.raises(ValueError, match="run `CREATE EXTENSION pg_trgm`"):
        schema.enable_search(url, configuration="trigram")
    assert schema.search_status(url).state == "disabled"
    done = run("search", "enable", "--configuration", "trigram", "--url", url)
    assert (done.returncode, "CREATE EXTENSION pg_trgm" in done.stderr) == (1, True)


@pytest.fixture
def in_ascii(administrator: sa.Engine) -> Iterator[sa.Engine]:
    """A database that knows no letters but those of ASCII."""
    with administrator.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE lango_ascii TEMPLATE template0 LOCALE 'C'")
    engine = create_engine(administrator.url.set(database="lango_ascii"))
    yield engine
    engine.dispose()
    with administrator.connect() as connection:
        connection.exec_driver_sql("DROP DATABASE lango_ascii")


def test_a_locale_without_other_letters_is_refused(in_ascii: sa.Engine) -> None:
    schema.upgrade(in_ascii)
    with in_ascii.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA elsewhere; CREATE EXTENSION pg_trgm SCHEMA elsewhere")
    with pytest.raises(ValueError, match="knows no letters but those of ASCII"):
        schema.enable_search(in_ascii, configuration="trigram")
