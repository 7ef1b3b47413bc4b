"""Search finds the words of large strings, which are stored separately from their messages."""

import pytest
from support.databases import not_on_a_cluster
from support.factories import message, summary
from support.payloads import bodies
from support.searches import findings, found

from lango_store import Message, Store, ToolCall, schema

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")

FILLER = "filler " * 10_000


@pytest.fixture(params=["index", "comparison"])
def searched(request: pytest.FixtureRequest, store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store that ranks matches with its index, and one that compares its newest messages."""
    schema.enable_search(url)
    if request.param == "comparison":
        monkeypatch.setattr("lango_store._rooms.search.hits._RANKING", 0.0)
        monkeypatch.setattr("lango_store._rooms.search.hits._is_small", lambda _: False)
    return store


def store_messages(store: Store) -> None:
    call = ToolCall(id="c", name="f", arguments={"text": f"argument {FILLER}"})
    store.create(
        "k",
        messages=[
            message(f"oslo {FILLER}"),
            message([{"type": "text", "text": f"bergen {FILLER}"}, {"type": "text", "text": "short"}]),
            Message.assistant(tool_calls=[call]),
            Message.tool(name="f", tool_calls=[ToolCall(id="c", name="f", output=[f"tromsø {FILLER}"])]),
            message("oslo"),
            message(f"hidden {FILLER}", role="record"),
        ],
    )
    assert len(bodies(store)) == 5


FOUND = {"oslo": [1, 5], "bergen": [2], "bergen short": [2], "tromsø": [4], "argument": [], "hidden": []}


def test_search_finds_words_of_payloads(searched: Store) -> None:
    store_messages(searched)
    for words, seqs in FOUND.items():
        assert found(searched, words) == [("k", seq) for seq in seqs], words
    assert findings(searched) == []
    assert [hit.seq for hit in searched.conversation("k").search("bergen").items] == [2]


@pytest.mark.parametrize("words", ["oslo filler", "bergen"])
def test_snippet_is_cut_from_the_payload(searched: Store, words: str) -> None:
    store_messages(searched)
    (hit,) = searched.search(words).items
    assert hit.snippet.startswith(f"{words.split()[0]} filler filler")
    start, end = hit.places[0]
    assert hit.snippet[start:end] == words.split()[0]


@pytest.mark.slow
def test_search_finds_the_same_messages_after_payloads_are_moved(searched: Store) -> None:
    store_messages(searched)
    for threshold in (None, 65_536, None):
        assert searched.maintenance.move_payloads(threshold=threshold) == 5
        for words, seqs in FOUND.items():
            assert found(searched, words) == [("k", seq) for seq in seqs], words
        assert findings(searched) == []


@pytest.mark.slow
def test_search_finds_only_the_new_words_of_an_edited_payload(searched: Store) -> None:
    store_messages(searched)
    assert found(searched, "oslo") == [("k", 1), ("k", 5)]
    conversation = searched.conversation("k")
    conversation.edits.update(1, message(f"stavanger {FILLER}"))
    conversation.edits.redact(2)
    assert (found(searched, "stavanger"), found(searched, "oslo")) == ([("k", 1)], [("k", 5)])
    assert found(searched, "bergen") == []
    conversation.compact(lambda _: summary(f"ålesund {FILLER}"), discard=True)
    assert (len(found(searched, "ålesund")), found(searched, "stavanger")) == (1, [])
    assert findings(searched) == []


def test_enable_search_indexes_words_in_payloads_of_existing_messages(store: Store, url: str) -> None:
    store_messages(store)
    schema.enable_search(url)
    assert found(store, "oslo") == [("k", 1), ("k", 5)]
    fork = store.conversation("k").fork("fork")
    assert found(store, "bergen") == [("fork", 2), ("k", 2)]
    fork.clear()
    assert found(store, "bergen") == [("k", 2)]
    assert findings(store) == []


def test_message_with_a_missing_payload_is_found_by_its_other_words(store: Store, url: str) -> None:
    store_messages(store)
    schema.enable_search(url)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM lango_payload")
    schema.rebuild_search(url)
    assert (found(store, "short"), found(store, "bergen")) == ([("k", 2)], [])
