"""What is read of a SQLite file in which pages or entries of an index are lost: all that is outside of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import sqlalchemy as sa
from damage import leaves_of, lose, opened, said, unreadable
from factories import message

from lango_store import LangoStoreError, Store, create_engine
from lango_store.operations import salvage


@pytest.fixture
def spread(tmp_path: Path) -> Path:
    """A file with a session of 18 messages, each of which has a page of its own."""
    path = tmp_path / "spread.db"
    with Store(f"sqlite:///{path}", migrate=True) as store:
        store.create("k", messages=[message("x" * 3_000)] * 18)
    return path


def lose_messages(path: Path, *seqs: int) -> None:
    last, *others = leaves_of("lango_message", path)
    stored = (seq for (seq,) in said("SELECT rowid FROM lango_message ORDER BY rowid", path))
    pages = dict(zip(stored, [*others, last], strict=True))
    lose(path, *(pages[seq] for seq in seqs))


def named_unreadable(store: Store) -> list[str]:
    return [each.detail.split(" cannot")[0] for each in store.examine() if each.name == "unreadable message"]


def test_up_to_a_page_that_is_lost_all_is_read_from_both_ends(spread: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_MOST_FAILURES", 0)  # nothing is sought place by place
    lose_messages(spread, 11)
    with opened(spread) as store:
        found = store.salvage("k")
        assert [each.seq for each in found] == list(range(1, 19))
        assert unreadable(found) == [11]
        assert named_unreadable(store) == ["message 11 of session 'k'"]


@pytest.mark.parametrize(
    ("most", "gaps", "lost"),
    [
        (4, {9, 10, 11, 14, 15}, [7, 16]),
        (3, {9, 10, 11, 14, 15}, [7, 12, 13, 16]),
        (3, {8, 10, 11, 12, 15}, [7, 13, 14, 16]),
    ],
)
def test_between_two_pages_that_are_lost_rows_are_sought_until_so_many_places_in_a_row_hold_none(
    spread: Path, monkeypatch: pytest.MonkeyPatch, most: int, gaps: set[int], lost: list[int]
) -> None:
    monkeypatch.setattr(salvage, "_MOST_FAILURES", most)
    for seq in gaps:
        said("DELETE FROM lango_message WHERE seq = ?", spread, seq)
    lose_messages(spread, 7, 16)
    with opened(spread) as store:
        found = store.salvage("k")
        assert [each.seq for each in found] == sorted(set(range(1, 19)) - gaps)
        assert unreadable(found) == lost
        assert named_unreadable(store) == [f"message {seq} of session 'k'" for seq in lost]


def test_a_seq_that_is_a_fraction_hides_none_behind_it(spread: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_PAGE", 4)
    said("UPDATE lango_message SET seq = 3.5 WHERE seq = 4", spread)
    lose_messages(spread, 11)
    with opened(spread) as store:
        found = store.salvage("k")
        assert [each.seq for each in found] == [0, 1, 2, 3, *range(5, 19)]
        assert unreadable(found) == [0, 11]


def test_messages_are_found_without_their_index(spread: Path) -> None:
    with opened(spread) as store:
        whole = store.all_messages("k")
    ((page,),) = said("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_lango_message_1'", spread)
    lose(spread, page)
    with opened(spread) as store:
        assert store.salvage("k") == whole
        assert named_unreadable(store) == []


def test_a_salvage_that_was_cut_short_says_so_and_gives_no_part_of_it(spread: Path) -> None:
    said("PRAGMA foreign_keys = OFF", spread)
    said("DELETE FROM lango_session", spread)
    steps, cut = 0, 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return steps == cut

    engine = create_engine(f"sqlite:///{spread}")
    sa.event.listen(engine, "connect", lambda driver, _: driver.set_progress_handler(step, 100))
    store = Store(engine)
    store.salvage("k")
    steps = interrupted = 0
    assert len(store.salvage("k")) == 18
    for each in range(1, steps + 1):
        steps, cut = 0, each
        try:
            assert len(store.salvage("k")) == 18
        except LangoStoreError as error:
            interrupted += "interrupted" in str(error)
    assert interrupted > 5
    engine.dispose()


@pytest.mark.parametrize(
    ("third", "thirteenth"),
    [(b"\x01\x01k\x00", b"\x01\x01k\x10"), (b"\x00\x01k\x00", b"\x0e\x01k\x0d")],
    ids=["0 and 16", "NULL and bytes"],
)
def test_an_index_out_of_order_makes_no_walk_from_either_end_endless(
    spread: Path, monkeypatch: pytest.MonkeyPatch, third: bytes, thirteenth: bytes
) -> None:
    monkeypatch.setattr(salvage, "_PAGE", 3)
    data = spread.read_bytes()
    for seq, other in ((3, third), (13, thirteenth)):  # what ends the first page, and the second from the end
        entry = b"\x04\x0f\x01\x01k" + bytes([seq, seq])
        assert data.count(entry) == 1
        data = data.replace(entry, b"\x04\x0f" + other + bytes([seq]))
    spread.write_bytes(data)
    with opened(spread) as store, store.access.snapshot() as connection:
        found = list(itertools.islice(salvage._seqs.places(connection, "k"), 100))
    assert len(found) < 100
    assert set(found) - {0} == set(range(1, 19)) - {3, 13}
