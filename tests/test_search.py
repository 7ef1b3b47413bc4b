"""Messages found by their words: which, in what order, by whom, and with what shown of them."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from conftest import Clock, not_on_a_cluster
from factories import message, messages
from hypothesis import given
from hypothesis import strategies as st
from searches import ASKED, found

from lango_store import (
    InvalidCursor,
    InvalidMessage,
    Message,
    SearchUnavailable,
    SessionExpired,
    SessionNotFound,
    Store,
    ToolCall,
    schema,
)

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


@pytest.fixture
def searched(store: Store, url: str) -> Store:
    """An empty store with a search index."""
    schema.enable_search(url)
    return store


def test_words_are_all_wanted_unless_they_are_excluded_and_nothing_is_syntax(searched: Store) -> None:
    texts = ["Weather in Oslo?", "The refund (no. 4711) for Oslo.", "In Oslo, weather is cold", "weather/bergen-42"]
    searched.create("a", messages=[message(text) for text in texts])
    assert {words: [seq for _, seq in found(searched, words)] for words in ASKED} == ASKED


def test_a_hit_says_where_it_is_and_shows_the_words_in_their_places(searched: Store, clock: Clock) -> None:
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


def test_what_was_said_counts_more_than_blocks_tools_and_outputs(searched: Store) -> None:
    call = ToolCall(id="1", name="oslo")
    answer = ToolCall(id="1", name="other", output={"cities": ["oslo"]})
    searched.create(
        "a",
        messages=[
            message(None, role="tool", tool_calls=[answer]),
            message(None, role="assistant", tool_calls=[call]),
            message([{"type": "text", "text": "oslo"}, {"type": "image"}]),
            message("oslo"),
        ],
    )
    assert [hit.seq for hit in searched.search("oslo").items] == [4, 3, 2, 1]


def test_names_of_tools_and_texts_of_their_outputs_are_found(searched: Store) -> None:
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


@given(st.text(max_size=60))
def test_whatever_is_typed_gives_an_answer(searched: Store, words: str) -> None:
    searched.search(words)


CONTENTS = [
    "a NUL \0 here oslo",
    "half \ud800 oslo",
    {"text": "back \\u0000 \\\0 slash oslo"},
    [{"text": "\udfff\\ oslo"}],
    "oslo " * 20_000,
]


def test_any_content_can_be_written_and_found(searched: Store) -> None:
    seqs = [each.seq for each in searched.create("a", messages=[message(each) for each in CONTENTS]).messages]
    assert [seq for _, seq in found(searched, "oslo")] == seqs
    for seq in seqs:
        searched.update_message("a", seq, message("bergen"))
    assert found(searched, "oslo") == []


@pytest.mark.parametrize("words", ["oslo", "OSLO", '"weather in oslo"', "wea*", "oslo weather"])
def test_a_long_text_is_shown_where_the_words_stand(searched: Store, words: str) -> None:
    short = "Weather in Oslo, weather-in OSLO, and Oslos."
    searched.create("short", messages=[message(short)])
    searched.create("long", messages=[message("nothing " * 5_000 + short + " nothing" * 5_000)])
    shown = {hit.key: [hit.snippet[at:end] for at, end in hit.places] for hit in searched.search(words).items}
    assert shown["long"] == shown["short"] != []


def test_a_word_a_hundred_thousand_times_in_a_message_is_shown_as_one_that_stands_there_once(searched: Store) -> None:
    # SQLite's own way to mark them takes minutes.
    searched.create("a", messages=[message("oslo " + "x " * 10 + "oslo " * 200_000)])
    (hit,) = searched.search("oslo").items
    assert {hit.snippet[at:end] for at, end in hit.places} == {"oslo"}
    assert len(hit.places) > 20


def test_a_text_of_more_words_than_an_index_row_holds_is_found_by_its_beginning(searched: Store) -> None:
    searched.create("a", messages=[message("oslo " + " ".join(f"word{number}" for number in range(200_000)))])
    assert found(searched, "oslo word7") == [("a", 1)]


def test_records_are_not_found(searched: Store) -> None:
    searched.create("a", messages=[message("oslo", role="record"), message("oslo")])
    assert found(searched, "oslo") == [("a", 2)]


def test_filters_narrow_a_search_down(searched: Store, clock: Clock) -> None:
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


def test_pages_hold_each_hit_once_and_the_best_first(searched: Store) -> None:
    searched.create("a", messages=[message("oslo " + "and more " * number) for number in range(25)])
    pages = [searched.search("oslo", limit=10)]
    while (cursor := pages[-1].next) is not None:
        pages.append(searched.search("oslo", limit=10, cursor=cursor))
    hits = [hit for page in pages for hit in page.items]
    assert [len(page.items) for page in pages] == [10, 10, 5]
    assert sorted(hit.seq for hit in hits) == list(range(1, 26))
    assert searched.search("oslo", limit=1_000).items == hits
    assert [hit.rank for hit in hits] == sorted((hit.rank for hit in hits), reverse=True)


def test_of_hits_as_good_as_each_other_the_latest_comes_first(searched: Store, clock: Clock) -> None:
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


def test_a_cursor_belongs_to_its_words_and_filters(searched: Store) -> None:
    searched.create("a", messages=[message("oslo"), message("oslo")])
    cursor = searched.search("oslo", limit=1).next
    assert "=" not in str(cursor)  # it is safe in a URL
    with pytest.raises(InvalidCursor, match="other words"):
        searched.search("bergen", cursor=cursor)
    with pytest.raises(InvalidCursor, match="other filters"):
        searched.search("oslo", cursor=cursor, user_id="ann")
    with pytest.raises(InvalidCursor, match="give back"):
        searched.search("oslo", cursor="nonsense")
    offset, digest = json.loads(base64.urlsafe_b64decode(str(cursor) + "=="))
    assert offset == 1
    for wrong in (1.5, True, "1", -1, 2**63):
        crafted = base64.urlsafe_b64encode(json.dumps([wrong, digest]).encode()).decode()
        with pytest.raises(InvalidCursor, match="give back"):
            searched.search("oslo", cursor=crafted)
    with pytest.raises(ValueError, match="limit=0"):
        searched.search("oslo", limit=0)


@pytest.mark.parametrize("wrong", [{"since": datetime(2026, 11, 21)}, {"role": "nobody"}, {"user_id": "a\0"}], ids=str)
def test_a_filter_that_cannot_be_one_is_refused_whatever_is_typed(searched: Store, wrong: dict[str, Any]) -> None:
    for words in ("oslo", "", "-oslo"):
        with pytest.raises((ValueError, InvalidMessage)):
            searched.search(words, **wrong)


def test_an_expired_session_is_not_found_from_that_moment_on(searched: Store, clock: Clock) -> None:
    searched.create("a", ttl=timedelta(hours=1), messages=[message("oslo")])
    assert found(searched, "oslo") == [("a", 1)]
    clock.move(hours=1)
    assert found(searched, "oslo") == []
    with pytest.raises(SessionExpired):
        searched.conversation("a").search("oslo")
    searched.touch("a", ttl=timedelta(hours=1))
    assert found(searched, "oslo") == [("a", 1)]


def test_the_index_follows_every_write(searched: Store, url: str, clock: Clock) -> None:
    searched.create("a", messages=[message(f"oslo {number}", id=f"m{number}") for number in range(10)])
    assert len(found(searched, "oslo")) == 10
    searched.update_message("a", 1, message("bergen"))
    searched.redact_message("a", 2)
    searched.delete_message("a", 3)
    searched.pop_message("a")
    searched.append_messages("a", [message("oslo again", id="new")], replace_after=6)
    assert found(searched, "oslo") == [("a", 4), ("a", 5), ("a", 6), ("a", searched.info("a").last_seq)]
    fork = searched.conversation("a").fork("b")
    searched.truncate("a", after=4)
    assert found(searched, "oslo", key_prefix="a") == [("a", 4)]
    assert len(found(searched, "oslo", key_prefix=fork.key)) == 4
    searched.clear("b")
    assert found(searched, "oslo") == [("a", 4)]
    searched.delete("a")
    assert found(searched, "oslo") == []
    searched.create("c", ttl=timedelta(hours=1), messages=[message("oslo")])
    clock.move(days=1)
    searched.expire()
    searched.create("d", messages=[message("bergen")])
    assert (found(searched, "oslo"), found(searched, "bergen")) == ([], [("d", 1)])
    assert [finding for finding in searched.examine() if finding.name == "search index"] == []
    assert schema.search_status(url).indexed == 1


def test_a_conversation_is_searched_alone(searched: Store) -> None:
    searched.create("a", messages=[message("oslo"), message("oslo", role="assistant")])
    searched.create("b", messages=[message("oslo")])
    conversation = searched.conversation("a")
    assert [hit.key for hit in conversation.search("oslo").items] == ["a", "a"]
    assert [hit.seq for hit in conversation.search("oslo", role="user").items] == [1]
    with pytest.raises(SessionNotFound):
        searched.conversation("c").search("oslo")


def test_a_store_without_an_index_says_how_to_get_one(store: Store) -> None:
    with pytest.raises(SearchUnavailable, match="lango-store search enable"):
        store.search("oslo")


def test_a_callers_transaction_finds_what_it_wrote_and_nobody_else_does_before_it_commits(
    searched: Store, url: str
) -> None:
    searched.create("a")
    with searched.engine.connect() as connection:
        inside = searched.using(connection)
        inside.append_message("a", message("oslo"))
        assert [hit.seq for hit in inside.search("oslo").items] == [1]
        connection.rollback()
    assert found(searched, "oslo") == []


def test_a_search_changes_no_message(searched: Store) -> None:
    searched.create("a", messages=messages(3))
    before = searched.get("a")
    searched.search("message")
    assert searched.get("a") == before


def test_a_hit_is_json_for_programs(searched: Store) -> None:
    searched.create("a", messages=[Message.user("Weather in Oslo?")])
    (hit,) = searched.search("oslo").items
    assert type(hit).model_validate_json(hit.model_dump_json()) == hit
