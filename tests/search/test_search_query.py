"""Parsing of search queries, searchable texts of messages, and snippets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lango_store._rooms.search.query import Term, finder, parse_query, searchable, snippet


@pytest.mark.parametrize(
    ("query_text", "wanted", "unwanted"),
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
def test_parse_query_reads_words_phrases_exclusions_and_prefixes(
    query_text: str, wanted: list[Term], unwanted: list[Term]
) -> None:
    query = parse_query(query_text)
    assert (query.wanted, query.unwanted) == (wanted, unwanted)


def test_parse_query_reads_only_the_start_of_a_long_text() -> None:
    query = parse_query("word " * 10_000)
    assert 0 < len(query.wanted) <= 64
    assert max(len(term.words) for term in parse_query("x" * 100_000).wanted) <= 200


@given(st.text(max_size=2_000), st.data())
def test_snippet_is_substring_and_its_positions_mark_the_matches(text: str, data: st.DataObject) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    positions = [(at, end) for at, end in zip(ends[::2], ends[1::2], strict=False) if at < end]
    part, positions_in_part = snippet(text, positions)
    assert part in text
    assert len(part) <= 200
    assert all(any(part[at:end] in text[first:last] for first, last in positions) for at, end in positions_in_part)
    assert bool(positions_in_part) == bool(positions)


def find(query_text: str, text: str) -> list[tuple[int, int]]:
    return finder(parse_query(query_text))(text)


def test_snippet_starts_and_ends_between_words() -> None:
    text = "many words before it " * 20 + "and then Oslo " + "many words after it " * 20
    part, ((at, end),) = snippet(text, find("oslo", text))
    assert f" {part} " in text
    assert part[at:end] == "Oslo"


def test_snippet_is_the_part_with_the_most_query_words() -> None:
    text = "one " + "x " * 500 + "one two three" + " x" * 500
    part, positions = snippet(text, find("one two three", text))
    assert [part[at:end] for at, end in positions] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("query_text", "text", "expected"),
    [
        ("zurich", "In Zürich, ZURICH and Zürichs", ["Zürich", "ZURICH"]),
        ('"to oslo"', "from Oslo to Bergen", ["Oslo", "to"]),
        ("os* -bergen", "Oslo, os and Bergen", ["Oslo", "os"]),
    ],
)
def test_words_of_a_query_are_found_in_a_text_regardless_of_case_and_accents(
    query_text: str, text: str, expected: list[str]
) -> None:
    assert [text[at:end] for at, end in find(query_text, text)] == expected


def test_function_searchable_returns_text_and_tool_text_separately() -> None:
    calls = json.dumps([{"name": "get", "arguments": {"a": "no"}, "output": [{"x": "sun"}, 1, "rain"]}, 7])
    blocks = json.dumps([{"type": "text", "text": "one"}, {"deep": {"text": "two"}}, {"url": "no"}])
    assert searchable("user", "ann", None, "hi\ud800", None, None) == ("hi ", "")
    assert searchable("user", None, None, None, '"a\\u0000b"', None) == ("a b", "")
    assert searchable("assistant", None, None, None, blocks, calls) == ("one\ntwo", "get\nsun\nrain")
    assert searchable("tool", "get", "1", None, '{"a": ["x", {"b": "y"}]}', None) == ("", "get\nx\ny")
    assert searchable("user", None, None, None, "no JSON", "{") == ("", "")


def test_function_searchable_limits_the_length_of_texts() -> None:
    calls = json.dumps([{"name": "n" * 60_000}])
    assert [len(part) for part in searchable("user", None, None, "x" * 60_000, None, calls)] == [60_000, 40_000]
    assert [len(part) for part in searchable("user", None, None, "x" * 600_000, None, calls)] == [100_000, 0]
