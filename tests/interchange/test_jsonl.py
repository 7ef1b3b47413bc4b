"""Our own format: whatever a database keeps is in the file, and comes back from it into either database."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.databases import MakeDatabase
from support.factories import message, messages
from support.rows import all_fields, all_rows, fill, message_row, put, session_row

from lango_store import InvalidFile, Store
from lango_store._operations import paging, transfer
from lango_store.backup import reading
from lango_store.backup.reading import Outcome, load
from lango_store.backup.writing import first_line, last_line, session_lines
from lango_store.tables import SCHEMA_REVISION


def dumped(connection: sa.Connection, keys: Sequence[str]) -> Iterator[bytes]:
    yield first_line()
    for key in keys:
        yield from session_lines(connection, key)
    yield last_line(len(keys))


def exported(store: Store) -> list[bytes]:
    with store.context.snapshot() as connection:
        return list(dumped(connection, transfer.keys(connection, "", 1000)))


def imported(store: Store, lines: Iterable[bytes]) -> list[Outcome]:
    with store.context.transaction() as connection:
        found = load(connection, "backup.jsonl", lines)
        return [each for each in found if isinstance(each, Outcome)]


def test_every_column_of_every_row_comes_back_in_either_database(source: Store, target: Store) -> None:
    fill(source)
    imported(target, exported(source))
    assert all_fields(target) == all_fields(source)
    assert exported(target) == exported(source)


def test_a_line_is_json_that_other_programs_read(source: Store) -> None:
    source.create("k", settings={"thinking": "high"}, title="Oslo")
    source.append_message("k", message({"text": "hé", "n": 1.5}, id="m-1"))
    first, session, line, end, last = map(json.loads, exported(source))
    assert first == {"lango_store": 1, "schema": SCHEMA_REVISION}
    assert (session["session"]["key"], session["session"]["settings"]) == ("k", {"thinking": "high"})
    assert line["message"]["content"] == {"text": "hé", "n": 1.5}
    assert (line["message"]["seq"], line["message"]["id"], line["message"]["role"]) == (1, "m-1", "user")
    assert "author" not in line["message"]
    assert end["end"]["messages"] == 1
    assert last == {"sessions": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(st.lists(json_values.filter(lambda value: value is not None), max_size=4))
def test_any_value_that_the_store_takes_is_the_same_after_a_journey(values: list[object]) -> None:
    with Store("sqlite://", migrate=True) as source, Store("sqlite://", migrate=True) as target:
        source.create("k", messages=[message(value) for value in values], metadata={"values": values})
        imported(target, exported(source))
        own = {"revision": source.info("k").revision}
        assert target.get("k").model_copy(update=own) == source.get("k")


def test_a_second_import_changes_nothing(source: Store, target: Store) -> None:
    fill(source)
    lines = exported(source)
    assert {each.state for each in imported(target, lines)} == {"imported"}
    before = all_rows(target)
    assert {each.state for each in imported(target, lines)} == {"already there"}
    assert all_rows(target) == before


def test_a_key_that_holds_something_else_is_left_alone_and_the_others_are_imported(
    source: Store, target: Store
) -> None:
    source.create("a", messages=messages(2))
    source.create("b", messages=messages(2))
    target.create("a", messages=messages(1))
    found = imported(target, exported(source))
    assert [(each.key, each.state) for each in found] == [("a", "collided"), ("b", "imported")]
    assert [each.content for each in target.messages("a")] == ["message 0"]
    assert len(target.messages("b")) == 2


def test_a_file_cut_off_after_any_line_is_noticed_and_nothing_is_imported(source: Store, target: Store) -> None:
    source.create("a", messages=messages(2))
    source.create("b", messages=messages(1))
    source.create("c")
    lines = exported(source)
    for length in range(len(lines)):
        with pytest.raises(InvalidFile):
            imported(target, lines[:length])
        assert target.count() == 0
    imported(target, lines)
    assert target.count() == 3


def test_a_file_cut_off_within_any_line_is_noticed(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", messages=messages(1))
    lines = exported(source)
    with Store(make_sqlite()) as target:
        for place, line in enumerate(lines):
            for length in range(len(line)):
                with pytest.raises(InvalidFile):
                    imported(target, [*lines[:place], line[:length]])
        assert target.count() == 0


def test_a_file_with_any_line_left_out_doubled_or_swapped_is_noticed(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", messages=messages(3))
    source.create("b", messages=messages(2))
    lines = exported(source)
    broken = [lines[:place] + lines[place + 1 :] for place in range(len(lines))]
    broken += [[*lines[: place + 1], *lines[place:]] for place in range(len(lines))]
    broken += [
        [*lines[:place], second, first, *lines[place + 2 :]] for place, (first, second) in enumerate(pairwise(lines))
    ]
    with Store(make_sqlite()) as target:
        for each in broken:
            with pytest.raises(InvalidFile, match=r"line \d+: .*nothing of this file was imported"):
                imported(target, each)
        assert target.count() == 0


def test_a_file_with_any_character_changed_is_noticed(source: Store, make_sqlite: MakeDatabase) -> None:
    source.create("a", title="Oslo", messages=messages(2))
    text = b"\n".join(exported(source)).decode()
    chance = random.Random(1)
    with Store(make_sqlite()) as target:
        for _ in range(300):
            place = chance.randrange(text.index("\n") + 1, len(text))
            changed = text[:place] + chance.choice([c for c in 'x7"{}:,' if c != text[place]]) + text[place + 1 :]
            with pytest.raises(InvalidFile):
                imported(target, changed.encode().split(b"\n"))
        assert target.count() == 0


def test_a_file_that_went_through_windows_is_the_same_file(source: Store, target: Store) -> None:
    source.create("a", messages=messages(2))
    imported(target, [line + b"\r\n" for line in exported(source)])
    assert all_rows(target) == all_rows(source)


@pytest.mark.parametrize("first", ['{"lango_store":2,"schema":"0100"}', '{"lango_store":1,"schema":"9999"}'])
def test_a_file_of_a_newer_release_says_so(target: Store, first: str) -> None:
    with pytest.raises(InvalidFile, match="upgrade the package"):
        imported(target, [first.encode(), b'{"sessions":0}'])


@pytest.mark.parametrize("first", ["", "{}", "[1]", '"lango_store"', "hello", '{"_type": "metadata"}'])
def test_another_systems_file_is_refused(target: Store, first: str) -> None:
    with pytest.raises(InvalidFile, match="not an export of lango_store"):
        imported(target, [first.encode(), b'{"sessions":0}'])


def test_an_export_of_nothing_is_a_whole_file(target: Store) -> None:
    lines = exported(target)
    assert len(lines) == 2
    assert imported(target, lines) == []


def test_a_long_session_is_never_in_memory_as_a_whole(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "ROWS", 20)
    monkeypatch.setattr(reading, "BATCH", 20)

    def copied(key: str) -> None:
        with source.context.snapshot() as found, target.context.transaction() as writing:
            list(load(writing, "backup.jsonl", dumped(found, [key])))

    put(source, session_row("short", last_seq=1, message_count=1), message_row("short", 1))
    copied("short")  # what is compiled once
    put(source, session_row("k", last_seq=300, message_count=300))
    put(source, *(message_row("k", seq, content=f'"{"x" * 10_000}"') for seq in range(1, 301)))
    tracemalloc.start()
    try:
        copied("k")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert target.info("k").message_count == 300
    assert peak < 1_500_000  # of 3,000,000
