"""Full-text search: queries, hits, filters and pages."""

from datetime import datetime, timedelta
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message
from support.searches import findings, found
from support.statements import watched

from lango_store import (
    InvalidCursor,
    InvalidMessage,
    SearchUnavailable,
    SessionExpired,
    SessionNotFound,
    Store,
    ToolCall,
    schema,
)
from lango_store._rooms.search.query import matcher, parse_query
from lango_store.testing import Clock

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


@pytest.fixture
def searched(store: Store, url: str) -> Store:
    """Return an empty store with a search index."""
    schema.enable_search(url)
    return store


SEQS_BY_QUERY = {
    "oslo": [1, 2, 3],
    "OSLO weather": [1, 3],
    '"weather in oslo"': [1],
    '"oslo in weather"': [],
    "oslo -weather": [2],
    'oslo -"weather in"': [2, 3],
    "wea*": [1, 3, 4],
    "refund*": [2],
    "-oslo": [],
    "nowhere": [],
    "oslo nowhere": [],
    "get_weather": [],
    "!?": [],
    "oslo !?": [1, 2, 3],
    "4711": [2],
    "42": [4],
    '"': [],
    '""*': [],
    "a" * 5_000: [],
    "a b " * 2_000: [],
    "-a " * 500: [],
    "NEAR(oslo weather)": [],
    "said:oslo": [],
    "oslo OR bergen": [],
    "oslo {": [1, 2, 3],
    "oslo \\ & | ! <-> :* ^": [1, 2, 3],
}


@pytest.mark.parametrize("ranked", [True, False], ids=["ranked", "newest"])
def test_query_syntax_has_only_words_phrases_exclusions_and_prefixes(
    searched: Store, monkeypatch: pytest.MonkeyPatch, ranked: bool
) -> None:
    if not ranked:
        monkeypatch.setattr("lango_store._rooms.search.hits._ranked", cancel)
        monkeypatch.setattr("lango_store._rooms.search.hits._is_small", lambda _: False)
    texts = ["Weather in Oslo?", "The refund (no. 4711) for Oslo.", "In Oslo, weather is cold", "weather/bergen-42"]
    searched.create("a", messages=[message(text) for text in texts])
    assert {words: [seq for _, seq in found(searched, words)] for words in SEQS_BY_QUERY} == SEQS_BY_QUERY


@pytest.mark.slow
def test_search_with_too_many_matches_to_rank_returns_the_newest(
    searched: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched.create("old", user_id="ann", messages=[message("rare oslo"), message("oslo", role="assistant")])
    clock.move(seconds=1)
    searched.create("empty")
    searched.create("new", user_id="bob", messages=[message(f"oslo {number}") for number in range(3_000)])
    assert len(found(searched, "rare")) == 1  # drains the queue
    monkeypatch.setattr("lango_store._rooms.search.hits._RANKING", 0.0)
    monkeypatch.setattr("lango_store._rooms.search.hits._NEWEST", 3_001)
    first = searched.search("oslo -2997", limit=2)
    assert ([hit.seq for hit in first.items], first.next, first.newest) == ([3_000, 2_999], "2", 4)
    second = searched.search("oslo -2997", limit=2, cursor=first.next)
    assert ([hit.seq for hit in second.items], [hit.rank for hit in second.items]) == ([2_997, 2_996], [0, 0])
    assert [hit.seq for hit in searched.conversation("new").search("oslo", limit=1).items] == [3_000]
    # Without this, the following searches would be ranked in time.
    monkeypatch.setattr("lango_store._rooms.search.hits._ranked", cancel)
    monkeypatch.setattr("lango_store._rooms.search.hits._NEWEST", 100)
    limited = searched.search("oslo nowhere")
    assert (limited.items, limited.next, limited.newest) == ([], None, 100)
    filtered = searched.search("oslo", user_id="ann", role="assistant")
    assert ([(hit.key, hit.seq) for hit in filtered.items], filtered.newest) == ([("old", 2)], None)


@pytest.mark.one_database  # PostgreSQL sorts a small table
@pytest.mark.parametrize("alternatives", [False, True])
def test_newest_messages_are_read_in_the_order_of_an_index(
    searched: Store, monkeypatch: pytest.MonkeyPatch, alternatives: bool
) -> None:
    monkeypatch.setattr("lango_store._rooms.search.hits._ranked", cancel)
    monkeypatch.setattr("lango_store._rooms.search.hits._is_small", lambda _: False)
    with watched(searched.engine) as statements:
        searched.search("oslo", alternatives=alternatives)
    (statement,) = [each for each in statements if "ORDER BY lango_session" in each]
    with searched.engine.connect() as connection:
        plan = [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")]
    assert "ix_lango_session_updated_bucket" in plan[0]
    assert "USE TEMP B-TREE FOR ORDER BY" not in plan


@pytest.mark.slow
def test_search_of_a_small_store_is_always_ranked(searched: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [message(f"oslo and {number} other words") for number in range(3_000)]
    searched.create("k", messages=[message("oslo oslo oslo"), *others])
    assert len(found(searched, "other")) > 1  # drains the queue
    monkeypatch.setattr("lango_store._rooms.search.hits._RANKING", 0.0)
    page = searched.search("oslo", limit=1)
    assert ([hit.seq for hit in page.items], page.newest) == ([1], None)
    monkeypatch.setattr("lango_store._rooms.search.hits._NEWEST", 3_000)
    assert [hit.seq for hit in searched.search("oslo", limit=1).items] == [3_001]


def cancel(*_: object) -> NoReturn:
    """Raise as if there were too many matches to rank."""
    raise TimeoutError


def test_search_keeps_statement_timeout_of_the_callers_transaction(
    make_postgres: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(make_postgres()) as store:
        schema.enable_search(store.engine)
        store.create("a", messages=[message("oslo")])
        monkeypatch.setattr("lango_store._rooms.search.hits._is_small", lambda _: False)
        with store.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = '7s'")
            for _ in range(2):
                store.using(connection).search("oslo")
                assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "7s"
                monkeypatch.setattr("lango_store._rooms.search.hits._ranked", cancel)


def test_hit_names_its_message_and_has_a_snippet(searched: Store, clock: Clock) -> None:
    searched.create("a", title="Travels")
    text = "long before " * 50 + "the weather in Oslo is fine" + " long after" * 50
    searched.append_message("a", message(text, role="assistant", author="guide"))
    (hit,) = searched.search("oslo weather").items
    assert (hit.key, hit.seq, hit.role, hit.author, hit.title) == ("a", 1, "assistant", "guide", "Travels")
    assert hit.created_at == clock.time
    assert hit.snippet in text
    assert len(hit.snippet) <= 200
    assert {hit.snippet[at:end] for at, end in hit.places} == {"weather", "Oslo"}
    assert hit.rank > 0


def test_text_ranks_above_tool_names_and_outputs(searched: Store) -> None:
    call = ToolCall(id="1", name="oslo")
    answer = ToolCall(id="1", name="other", output={"cities": ["oslo"]})
    searched.create(
        "a",
        messages=[
            message("oslo"),
            message(None, role="assistant", tool_calls=[call]),
            message(None, role="tool", tool_calls=[answer]),
            message([{"type": "text", "text": "oslo"}, {"type": "image"}]),
        ],
    )
    assert {hit.seq for hit in searched.search("oslo", limit=2).items} == {1, 4}


def test_search_finds_tool_names_and_outputs(searched: Store) -> None:
    call = ToolCall(id="1", name="get_weather", arguments={"city": "Bergen"})
    searched.create(
        "a",
        messages=[
            message(None, role="assistant", tool_calls=[call]),
            message({"sky": ["cloudy", {"deep": "drizzle"}]}, role="tool", name="get_weather", tool_call_id="1"),
            message("sunny", role="tool", tool_call_id="2"),
        ],
    )
    assert found(searched, "get_weather") == [("a", 1), ("a", 2)]
    assert found(searched, "cloudy drizzle") == [("a", 2)]
    assert found(searched, "sunny") == [("a", 3)]
    (hit,) = searched.search("drizzle").items
    assert [hit.snippet[at:end] for at, end in hit.places] == ["drizzle"]


@pytest.mark.slow
@given(st.text(max_size=60))
def test_any_text_is_a_valid_query(searched: Store, words: str) -> None:
    searched.search(words)


CONTENTS = [
    "oslo " * 200_000,
    "oslo " + " ".join(f"word{number}" for number in range(200_000)),
    "a NUL \0 here oslo",
    "half \ud800 oslo",
    {"text": "back \\u0000 \\\0 slash oslo"},
    [{"text": "\udfff\\ oslo"}],
]


@pytest.mark.slow
def test_search_finds_words_in_content_of_any_form(searched: Store) -> None:
    seqs = [each.seq for each in searched.create("a", messages=[message(each) for each in CONTENTS]).messages]
    assert [seq for _, seq in found(searched, "oslo")] == seqs
    for seq in seqs:
        searched.conversation("a").edits.update(seq, message("bergen"))
    assert found(searched, "oslo") == []


def test_search_does_not_find_messages_with_role_record(searched: Store) -> None:
    searched.create("a", messages=[message("oslo", role="record"), message("oslo")])
    assert found(searched, "oslo") == [("a", 2)]


def test_search_filters_by_the_model_of_a_message(searched: Store) -> None:
    said = [message("oslo", model=model) for model in ("claude-opus-5-5", None, "gpt-6", "claude-opus-5")]
    searched.create("a", messages=said)
    assert found(searched, "oslo", model="claude-opus-5") == [("a", 4)]
    assert [hit.seq for hit in searched.conversation("a").search("oslo", model="gpt-6").items] == [3]
    assert found(searched, "oslo", model="gpt") == []


@pytest.mark.slow
def test_search_filters_by_user_id_agent_id_key_role_and_time(searched: Store, clock: Clock) -> None:
    for number, user in enumerate(("ann", "bob")):
        searched.create(f"chat:{number}", user_id=user, agent_id=f"agent {number}")
        searched.append_message(f"chat:{number}", message("oslo", role="model"))
        clock.move(days=1)
        searched.append_message(f"chat:{number}", message("oslo"))
    first, second, third, fourth = [("chat:0", 1), ("chat:0", 2), ("chat:1", 1), ("chat:1", 2)]
    assert found(searched, "oslo", user_id="ann") == [first, second]
    assert found(searched, "oslo", agent_id="agent 1") == [third, fourth]
    assert found(searched, "oslo", key_prefix="chat:1") == [third, fourth]
    assert found(searched, "oslo", key_prefix="hat") == []
    assert found(searched, "oslo", role="assistant") == [first, third]
    assert found(searched, "oslo", since=clock.time) == [fourth]
    assert found(searched, "oslo", until=clock.time) == [first, second, third]
    assert found(searched, "oslo", user_id="ann", role="user") == [second]


def test_pages_of_a_search_contain_each_hit_once_with_the_best_first(searched: Store) -> None:
    searched.create("a", messages=[message("oslo " + "and more " * number) for number in range(25)])
    pages = [searched.search("oslo", limit=10)]
    while (cursor := pages[-1].next) is not None:
        pages.append(searched.search("oslo", limit=10, cursor=cursor))
    hits = [hit for page in pages for hit in page.items]
    assert [len(page.items) for page in pages] == [10, 10, 5]
    assert sorted(hit.seq for hit in hits) == list(range(1, 26))
    assert searched.search("oslo", limit=1_000).items == hits
    assert [hit.rank for hit in hits] == sorted((hit.rank for hit in hits), reverse=True)


def test_hits_of_equal_rank_are_sorted_by_time(searched: Store, clock: Clock) -> None:
    for key in ("b", "a", "c"):
        searched.create(key, messages=[message("oslo"), message("oslo")])
        clock.move(days=1)
    searched.create("d", messages=[message("oslo")])
    hits = searched.search("oslo").items
    assert len({hit.rank for hit in hits}) == 1
    assert [(hit.key, hit.seq) for hit in hits] == [
        ("d", 1),
        ("c", 2),
        ("c", 1),
        ("a", 2),
        ("a", 1),
        ("b", 2),
        ("b", 1),
    ]


@pytest.mark.parametrize("limit", [0, 1_001])
def test_search_refuses_a_limit_that_is_out_of_range(searched: Store, limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit={limit}"):
        searched.search("oslo", limit=limit)


@pytest.mark.parametrize("cursor", ["", "-1", " 1", "1.0", "1e3", "\u0661", str(2**63), "9" * 5_000, 10])
def test_search_refuses_text_that_is_not_its_cursor(searched: Store, cursor: Any) -> None:
    with pytest.raises(InvalidCursor, match="not a cursor of search"):
        searched.search("oslo", cursor=cursor)
    with pytest.raises(InvalidCursor, match="not a cursor of search"):
        searched.open("k").search("oslo", cursor=cursor)


def test_search_refuses_the_cursor_of_a_list_of_sessions(searched: Store) -> None:
    searched.create("a")
    searched.create("b")
    with pytest.raises(InvalidCursor):
        searched.search("oslo", cursor=searched.list_sessions(limit=1).next)


def test_page_after_the_last_hit_is_empty(searched: Store) -> None:
    page = searched.search("oslo", cursor=str(2**62))
    assert (page.items, page.next) == ([], None)


@pytest.mark.parametrize(
    "filters", [{"since": datetime(2026, 11, 21)}, {"role": "nobody"}, {"user_id": "a\0"}], ids=str
)
def test_search_refuses_invalid_filter_for_any_query(searched: Store, filters: dict[str, Any]) -> None:
    for words in ("oslo", "", "-oslo"):
        with pytest.raises((ValueError, InvalidMessage)):
            searched.search(words, **filters)


def test_search_finds_no_expired_session(searched: Store, clock: Clock) -> None:
    searched.create("a", ttl=timedelta(hours=1), messages=[message("oslo")])
    assert found(searched, "oslo") == [("a", 1)]
    clock.move(hours=1)
    assert found(searched, "oslo") == []
    with pytest.raises(SessionExpired):
        searched.conversation("a").search("oslo")
    searched.touch("a", ttl=timedelta(hours=1))
    assert found(searched, "oslo") == [("a", 1)]


@pytest.mark.slow
def test_search_finds_messages_only_by_their_current_text(searched: Store, url: str, clock: Clock) -> None:
    searched.create("a", messages=[message(f"oslo {number}", id=f"m{number}") for number in range(10)])
    assert len(found(searched, "oslo")) == 10
    searched.conversation("a").edits.update(1, message("bergen"))
    searched.conversation("a").edits.redact(2)
    searched.conversation("a").edits.delete(3)
    searched.conversation("a").pop_message()
    searched.conversation("a").append_messages([message("oslo again", id="new")], replace_after=6)
    assert found(searched, "oslo") == [("a", 4), ("a", 5), ("a", 6), ("a", searched.conversation("a").info().last_seq)]
    fork = searched.conversation("a").fork("b")
    searched.conversation("a").truncate(after=4)
    assert found(searched, "oslo", key_prefix="a") == [("a", 4)]
    assert len(found(searched, "oslo", key_prefix=fork.key)) == 4
    searched.conversation("b").clear()
    assert found(searched, "oslo") == [("a", 4)]
    searched.delete("a")
    assert found(searched, "oslo") == []
    searched.create("c", ttl=timedelta(hours=1), messages=[message("oslo")])
    clock.move(days=1)
    searched.expire()
    searched.create("d", messages=[message("bergen")])
    assert (found(searched, "oslo"), found(searched, "bergen")) == ([], [("d", 1)])
    assert findings(searched) == []
    assert schema.search_status(url).indexed == 1


def test_conversation_search_is_limited_to_its_session(searched: Store) -> None:
    searched.create("a", messages=[message("oslo"), message("oslo", role="assistant")])
    searched.create("b", messages=[message("oslo")])
    conversation = searched.conversation("a")
    assert [hit.key for hit in conversation.search("oslo").items] == ["a", "a"]
    assert [hit.seq for hit in conversation.search("oslo", role="user").items] == [1]
    with pytest.raises(SessionNotFound):
        searched.conversation("c").search("oslo")


def test_error_of_a_search_without_index_names_the_enable_command(store: Store) -> None:
    with pytest.raises(SearchUnavailable, match="lango-store search enable"):
        store.search("oslo")


def test_search_in_callers_transaction_does_not_drain_the_queue(searched: Store) -> None:
    searched.create("a", messages=[message("oslo"), message("oslo")])
    assert found(searched, "oslo") == [("a", 1), ("a", 2)]
    with searched.engine.begin() as connection:
        bound = searched.using(connection)
        bound.append_message("a", message("oslo"))
        bound.conversation("a").edits.redact(1)
        page = bound.search("oslo")
        assert ([hit.seq for hit in page.items], page.waiting) == ([2], 2)
    assert found(searched, "oslo") == [("a", 2), ("a", 3)]


# Languages without spaces between words

UNSPACED = [
    "日本語のテキスト検索",
    "我在北京大学学习Python编程",
    "東京へ行きました。",
    "ฉันชอบกินข้าวผัดที่กรุงเทพ",
    "Oslo weather",
]


@pytest.mark.parametrize(
    ("words", "seqs", "place"),
    [
        ("テキスト", [1], "テキスト"),
        ("検索", [1], "検索"),
        ("北京", [2], "北京"),
        ("大学学习", [2], "大学学习"),
        ("python", [2], "Python"),
        ("学习python", [2], "Python"),
        ("東京", [3], "東京"),
        ("東", [3], "東"),
        ("東*", [3], "東"),
        ("ข้าวผัด", [4], "ข้าวผัด"),
        ("กรุงเทพ", [4], "กรุงเทพ"),
        ('"東京へ行き"', [3], "東京へ行き"),
        ("東行", [], ""),
        ("北大", [], ""),
        ("テキスト -検索", [], ""),
        ("テキスト -東京", [1], "テキスト"),
    ],
)
def test_search_finds_words_inside_sentences_without_spaces(
    store: Store, url: str, words: str, seqs: list[int], place: str
) -> None:
    store.create("a", messages=[message(text) for text in UNSPACED])
    schema.enable_search(url)
    items = store.search(words).items
    assert [hit.seq for hit in items] == seqs
    for hit in items:
        assert place in [hit.snippet[start:end] for start, end in hit.places]
        assert matcher(parse_query(words))([hit.snippet])  # a search that does not use the index


@pytest.mark.slow
def test_longest_text_without_spaces_can_be_indexed(store: Store, url: str) -> None:
    schema.enable_search(url)
    letters = [chr(0x20000 + 37 * number % 40_000) for number in range(100_000)]
    store.create("a", messages=[message("北京" + "".join(letters))])
    assert [hit.seq for hit in store.search("北京").items] == [1]


@pytest.mark.slow
def test_doctor_reports_an_index_without_pairs_of_characters(store: Store, url: str) -> None:
    schema.enable_search(url)
    store.create("a", messages=[message(UNSPACED[0])])
    assert (len(store.search("検索").items), findings(store)) == (1, [])
    change = {
        "sqlite": "UPDATE lango_search SET text = ?",
        "postgresql": "UPDATE lango_search SET entry = to_tsvector('simple', %s)",
    }
    with store.engine.begin() as connection:
        connection.exec_driver_sql(change[store.engine.dialect.name], (UNSPACED[0],))
    assert store.search("検索").items == []
    assert ["were tried and not found" in finding for finding in findings(store)] == [True]
    schema.rebuild_search(url)
    assert (len(store.search("検索").items), findings(store)) == (1, [])


def test_purge_that_finds_nothing_reads_no_rows_of_the_queue(searched: Store, url: str) -> None:
    searched.create("k", messages=[message(f"word {number}") for number in range(50)])
    searched.expire()
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        store.expire()
        (counting,) = (statement for statement in sent if "count(*) FROM lango_search_queue" in statement)
        with store.engine.connect() as connection:
            assert connection.exec_driver_sql(counting).scalar() == 0
            if connection.dialect.name == "postgresql":
                plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN (ANALYZE, COSTS OFF) {counting}")]
                scans = [line for line in plan if "Scan on lango_search_queue" in line]
                assert scans
                assert all("never executed" in line for line in scans)
        store.append_message("k", message("new"))
        with store.engine.connect() as connection:
            assert connection.exec_driver_sql(counting).scalar() == 1
