"""What a person types, read; and the part of a text in which it was found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lango_store.words import Term, snippet, terms


@pytest.mark.parametrize(
    ("typed", "wanted", "unwanted"),
    [
        ("oslo weather", [Term("oslo"), Term("weather")], []),
        ('"oslo weather"', [Term("oslo weather")], []),
        ("oslo -rain", [Term("oslo")], [Term("rain")]),
        ('-"heavy rain" oslo', [Term("oslo")], [Term("heavy rain")]),
        ("os*", [Term("os", prefix=True)], []),
        ('"oslo wea"*', [Term("oslo wea", prefix=True)], []),
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
    read = terms(typed)
    assert (read.wanted, read.unwanted) == (wanted, unwanted)


def test_only_the_beginning_of_a_very_long_text_is_read() -> None:
    read = terms("word " * 10_000)
    assert 0 < len(read.wanted) <= 64
    assert max(len(term.words) for term in terms("x" * 100_000).wanted) <= 200


@given(st.text(alphabet=st.characters(exclude_characters="\x01\x02"), max_size=2_000), st.data())
def test_a_snippet_is_a_part_of_its_text_and_its_places_are_those_that_were_marked(
    text: str, data: st.DataObject
) -> None:
    start, stop = "\x01", "\x02"
    marks = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    places = [(at, end) for at, end in zip(marks[::2], marks[1::2], strict=False) if at < end]
    marked, before = "", 0
    for at, end in places:
        marked += text[before:at] + start + text[at:end] + stop
        before = end
    cut = snippet(text, marked + text[before:], start, stop)
    assert cut.text in text
    assert len(cut.text) <= 200
    found = {text[at:end] for at, end in places}
    assert all(any(cut.text[at:end] in whole for whole in found) for at, end in cut.places)
    assert bool(cut.places) == bool(places)


def test_a_snippet_begins_and_ends_between_words_where_it_can() -> None:
    text = "many words before it " * 20 + "and then Oslo " + "many words after it " * 20
    marked = text.replace("Oslo", "<Oslo>")
    cut = snippet(text, marked, "<", ">")
    assert f" {cut.text} " in text
    ((at, end),) = cut.places
    assert cut.text[at:end] == "Oslo"


def test_a_snippet_is_where_most_of_the_words_are() -> None:
    text = "one " + "x " * 500 + "one two three" + " x" * 500
    marked = text
    for word in ("one", "two", "three"):
        marked = marked.replace(word, f"<{word}>")
    cut = snippet(text, marked, "<", ">")
    assert [cut.text[at:end] for at, end in cut.places] == ["one", "two", "three"]
