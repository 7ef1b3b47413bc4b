"""Parsing of search queries, searchable texts of messages, and snippets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lango_store._values.search_query import Term, finder, parse_query, searchable, snippet


@pytest.mark.parametrize(
    ("typed", "wanted", "unwanted"),
    [
        ("oslo weather", [Term("oslo"), Term("weather")], []),
        ('"oslo weather"', [Term("oslo weather")], []),
        ("oslo -rain", [Term("oslo")], [Term("rain")]),
        ('-"heavy rain" oslo', [Term("oslo")], [Term("heavy rain")]),
        ("os*", [Term("os", prefix=True)], []),
        ('"not closed', [Term("not closed")], []),
        ("co-operate", [Term("co-operate")], []),
        ("!!! ??? * - \"\" ''", [], []),
        ("a\0b \ud800 c", [Term("a"), Term("b"), Term("c")], []),
        ("AND OR NOT", [Term("AND"), Term("OR"), Term("NOT")], []),
    ],
)
def test_what_is_typed_is_words_phrases_exclusions_and_beginnings(
    typed: str, wanted: list[Term], unwanted: list[Term]
) -> None:
    read = parse_query(typed)
    assert (read.wanted, read.unwanted) == (wanted, unwanted)


def test_only_the_beginning_of_a_very_long_text_is_read() -> None:
    read = parse_query("word " * 10_000)
    assert 0 < len(read.wanted) <= 64
    assert max(len(term.words) for term in parse_query("x" * 100_000).wanted) <= 200


@given(st.text(max_size=2_000), st.data())
def test_snippet_is_a_part_of_its_text_with_the_places_in_it(text: str, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    places = [(at, end) for at, end in zip(ends[::2], ends[1::2], strict=False) if at < end]
    cut, inside = snippet(text, places)
    assert cut in text
    assert len(cut) <= 200
    assert all(any(cut[at:end] in text[first:last] for first, last in places) for at, end in inside)
    assert bool(inside) == bool(places)


def find(typed: str, text: str) -> list[tuple[int, int]]:
    return finder(parse_query(typed))(text)


def test_snippet_begins_and_ends_between_words_where_it_can() -> None:
    text = "many words before it " * 20 + "and then Oslo " + "many words after it " * 20
    cut, ((at, end),) = snippet(text, find("oslo", text))
    assert f" {cut} " in text
    assert cut[at:end] == "Oslo"


def test_snippet_is_where_most_of_the_words_are() -> None:
    text = "one " + "x " * 500 + "one two three" + " x" * 500
    cut, places = snippet(text, find("one two three", text))
    assert [cut[at:end] for at, end in places] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("typed", "text", "expected"),
    [
        ("zurich", "In Zürich, ZURICH and Zürichs", ["Zürich", "ZURICH"]),
        ('"to oslo"', "from Oslo to Bergen", ["Oslo", "to"]),
        ("os* -bergen", "Oslo, os and Bergen", ["Oslo", "os"]),
    ],
)
def test_finder_ignores_case_and_accents(typed: str, text: str, expected: list[str]) -> None:
    assert [text[at:end] for at, end in find(typed, text)] == expected


def test_searchable_separates_what_is_said_from_tools() -> None:
    calls = json.dumps([{"name": "get", "arguments": {"a": "no"}, "output": [{"x": "sun"}, 1, "rain"]}, 7])
    blocks = json.dumps([{"type": "text", "text": "one"}, {"deep": {"text": "two"}}, {"url": "no"}])
    assert searchable("user", "ann", None, "hi\ud800", None, None) == ("hi ", "")
    assert searchable("user", None, None, None, '"a\\u0000b"', None) == ("a b", "")
    assert searchable("assistant", None, None, None, blocks, calls) == ("one\ntwo", "get\nsun\nrain")
    assert searchable("tool", "get", "1", None, '{"a": ["x", {"b": "y"}]}', None) == ("", "get\nx\ny")
    assert searchable("user", None, None, None, "no JSON", "{") == ("", "")


def test_searchable_is_limited() -> None:
    calls = json.dumps([{"name": "n" * 60_000}])
    assert [len(part) for part in searchable("user", None, None, "x" * 60_000, None, calls)] == [60_000, 40_000]
    assert [len(part) for part in searchable("user", None, None, "x" * 600_000, None, calls)] == [100_000, 0]
