"""Damaged SQLite files: whatever a file holds, our errors come out, and all that can still be read is given.

A few seconds in the suite; `LANGO_STORE_DAMAGE_ROUNDS=300 pytest -s tests/test_damaged_files.py` goes on for longer.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from damage import (
    DAMAGES,
    KEYS,
    PAGE,
    ROUNDS,
    leaves_of,
    lose,
    only_our_errors,
    opened,
    reading,
    said,
    summing_up,
    unreadable,
    writing,
)
from factories import messages

from lango_store import (
    DamagedMessage,
    DatabaseUnavailable,
    LangoStoreError,
    Message,
    SessionNotFound,
    Store,
    create_engine,
)
from lango_store.operations import examination, paging, salvage
from lango_store.operations.binds import MESSAGE

FOUND = (122, 182, 238)
"""Seeds of longer runs that found something: schemas that cannot be read, an index that leads a walk in a circle."""
pytestmark = pytest.mark.timeout(120 + 20 * ROUNDS)


def test_whatever_a_file_holds_only_our_errors_come_out(sound_file: Path, tmp_path: Path) -> None:
    for seed in (*range(ROUNDS), *FOUND):
        chance = random.Random(seed)
        damaged = bytearray(sound_file.read_bytes())
        damage = DAMAGES[seed % len(DAMAGES)]
        damage(damaged, chance)
        for left in tmp_path.iterdir():
            left.unlink()
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged)
        with opened(path) as store:
            calls = list(summing_up(store))
            for key in KEYS if ROUNDS > 100 else chance.sample(KEYS, 4):
                calls += reading(store, key)
            calls += writing(store, chance.choice(KEYS))
            for name, call in calls:
                only_our_errors(f"{name}, damaged by {damage.__name__} of seed {seed}", call)


def test_salvage_gives_every_message_outside_of_a_page_that_is_lost(sound_file: Path, damaged_file: Path) -> None:
    with opened(sound_file) as store:
        whole = {key: store.salvage(key) for key in KEYS}
    for page in leaves_of("lango_message", damaged_file)[::4]:
        data = bytearray(sound_file.read_bytes())
        lost = set(re.findall(rb"telegram:\d+", data[(page - 1) * PAGE : page * PAGE]))
        data[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
        damaged_file.write_bytes(data)
        with opened(damaged_file) as store:
            found = {key: store.salvage(key) for key in KEYS}
            findings = store.examine()
        named = [each for each in findings if each.name == "unreadable message"]
        unreadable = [each for key in KEYS for each in found[key] if isinstance(each, DamagedMessage)]
        read = sum(len(each) for each in found.values()) - len(unreadable)
        assert 0 < len(unreadable) == len(named) < 80
        assert read + len(unreadable) == sum(map(len, whole.values()))
        for key in KEYS:
            assert [each.seq for each in found[key]] == [each.seq for each in whole[key]]
            good = [each for each in found[key] if isinstance(each, Message)]
            assert good == [each for each in whole[key] if each.seq in {message.seq for message in good}]
            assert len(good) == len(whole[key]) or key.encode() in lost


def test_a_session_whose_row_is_lost_is_named_by_its_messages(damaged_file: Path) -> None:
    _, first = leaves_of("lango_session", damaged_file)
    lost = re.findall(r"Session (\d+)", damaged_file.read_bytes()[(first - 1) * PAGE : first * PAGE].decode("latin-1"))
    said("UPDATE lango_session SET settings = '{' WHERE key = 'telegram:19'", damaged_file)
    lose(damaged_file, first)
    with opened(damaged_file) as store:
        named = [each for each in store.examine() if each.name == "unreadable session"]
    assert [each.subject for each in named] == ["telegram:19", *sorted(f"telegram:{number}" for number in lost)]
    assert [each.detail.split(": ")[:2] for each in named[1:]] == [
        ["row", f"session '{each.subject}' cannot be read, row"] for each in named[1:]
    ]


def test_a_session_that_comes_twice_is_named_once(damaged_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_PAGE", 4)
    said("UPDATE lango_session SET settings = '{'", damaged_file)
    _, first = leaves_of("lango_session", damaged_file)
    data = bytearray(damaged_file.read_bytes())
    page = (first - 1) * PAGE
    eighth = page + int.from_bytes(data[page + 22 : page + 24], "big")
    rowid = eighth + (2 if data[eighth] & 128 else 1)  # behind the row's length
    assert data[rowid] == 8
    data[rowid] = 6  # which ends a page, and the next begins behind it
    damaged_file.write_bytes(data)
    with opened(damaged_file) as store, store.access.snapshot() as connection:
        assert sorted(each.key for each in salvage.damaged_sessions(connection)) == sorted(KEYS)


def test_what_was_cut_short_is_no_damage(damaged_file: Path) -> None:
    engine = create_engine(f"sqlite:///{damaged_file}")
    cut = False
    sa.event.listen(engine, "connect", lambda driver, _: driver.set_progress_handler(lambda: cut, 1))
    store = Store(engine)
    assert store.examine() == []
    cut = True
    for call in (store.examine, functools.partial(store.salvage, "telegram:1")):
        with pytest.raises(LangoStoreError, match="interrupted"):
            call()
    engine.dispose()


def test_the_messages_of_a_session_whose_own_row_is_lost_are_given(damaged_file: Path) -> None:
    said("PRAGMA foreign_keys = OFF", damaged_file)
    said("DELETE FROM lango_session WHERE key = ?", damaged_file, "telegram:3")
    said("UPDATE lango_session SET expires_at = 'never' WHERE key = ?", damaged_file, "telegram:4")
    said("UPDATE lango_session SET expires_at = '1 May' WHERE key = ?", damaged_file, "telegram:5")
    said("UPDATE lango_message SET content = CAST(x'22e4ff22' AS TEXT), text = NULL WHERE seq = 5", damaged_file)
    with opened(damaged_file) as store:
        for key in ("telegram:3", "telegram:4", "telegram:5"):
            assert len(store.salvage(key)) == 12
            assert unreadable(store.salvage(key)) == [5]
        assert [each.seq for each in store.salvage("telegram:3", last=2, after=3)] == [11, 13]
        seqs = [each.seq for each in store.salvage("telegram:3")]
        assert [each.seq for each in store.salvage("telegram:3", after=seqs[1], before=seqs[-2])] == seqs[2:-2]
        with pytest.raises(SessionNotFound):
            store.salvage("telegram:none")


def test_messages_of_a_session_whose_own_row_is_lost_are_given_however_far_apart_they_are(damaged_file: Path) -> None:
    said("PRAGMA foreign_keys = OFF", damaged_file)
    said("DELETE FROM lango_session WHERE key = 'telegram:3'", damaged_file)
    said("UPDATE lango_message SET seq = 5000 WHERE session_key = 'telegram:3' AND seq = 13", damaged_file)
    said("UPDATE lango_message SET seq = 'x' WHERE session_key = 'telegram:3' AND seq = 11", damaged_file)
    with opened(damaged_file) as store:
        found = {each.seq: type(each) for each in store.salvage("telegram:3", after=10)}
        assert found == {0: DamagedMessage, 5_000: Message}


def test_what_cannot_be_read_is_found_once_whatever_page_it_is_on(
    damaged_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(damaged_file) as store:
        store.set_shared_values("shared", {f"v{n}": n for n in range(6)})
        for change in ("value = x'ff' WHERE name = 'v1'", "updated_at = 'never' WHERE name = 'v3'"):
            said(f"UPDATE lango_shared_value SET {change}", damaged_file)
        said("UPDATE lango_shared_value SET name = x'7635' WHERE name = 'v5'", damaged_file)
        first, last = min(KEYS), max(KEYS)
        for key in (first, last):
            said("UPDATE lango_message SET role = 'nobody' WHERE session_key = ? AND seq = 1", damaged_file, key)
            said("UPDATE lango_session SET settings = '{' WHERE key = ?", damaged_file, key)
        for size in (1, 2, 3, 100):
            monkeypatch.setattr(salvage, "_VALUES", size)
            monkeypatch.setattr(examination, "_PAGE", size)
            findings = store.examine()
            for name in ("unreadable session", "unreadable message"):
                assert [each.subject for each in findings if each.name == name] == [first, last]
            named = [each.detail for each in findings if each.name == "unreadable value"]
            assert [detail.split(" of ")[0] for detail in named] == ["value 'v1'", "value 'v3'", "value b'v5'"]


def test_an_index_out_of_order_makes_no_walk_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "circle.db"
    with Store(f"sqlite:///{path}", migrate=True) as store:
        store.create("k", messages=messages(200))
    data = path.read_bytes()
    for seq in (64, 65):  # the entries that end the first page say seq 1
        entry = b"\x04\x0f\x01\x01k" + bytes([seq, seq])
        assert data.count(entry) == 1
        data = data.replace(entry, b"\x04\x0f\x01\x01k" + bytes([1, seq]))
    path.write_bytes(data)
    with opened(path) as store, store.access.snapshot() as connection:
        assert list(salvage.damaged_messages(connection)) == []
        monkeypatch.setattr(examination, "_PAGE", 64)
        assert list(examination._messages(connection)) == []
        page = paging.Pages(MESSAGE, "seq", [MESSAGE.c.seq])
        monkeypatch.setattr(paging, "ROWS", 64)
        with pytest.raises(DatabaseUnavailable, match="out of their order"):
            list(itertools.islice(page.read(connection, "k"), 10))


def test_an_index_of_keys_out_of_order_makes_no_examination_endless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "_PAGE", 64)
    path = tmp_path / "circle.db"
    with Store(f"sqlite:///{path}", migrate=True) as store:
        for number in range(1, 101):
            store.create(f"k{number:03}")
    data = path.read_bytes()
    for number in (64, 65):  # the entries that end the first page say k001
        entry = b"\x03\x15\x01k%03d" % number + bytes([number])
        assert data.count(entry) == 1
        data = data.replace(entry, b"\x03\x15\x01k001" + bytes([number]))
    path.write_bytes(data)
    with opened(path) as store:
        with store.access.snapshot() as connection:
            assert list(examination._sessions(connection)) == []
        assert {each.detail.split(":")[0] for each in store.examine()} == {"the file is damaged"}


def test_damaged_words_of_a_schema_are_our_error(damaged_file: Path) -> None:
    data = damaged_file.read_bytes()
    place = data.index(b"CREATE TABLE lango_message")
    damaged_file.write_bytes(data[:place] + b"\xff\xfe" + data[place + 2 :])
    with opened(damaged_file) as store, pytest.raises(DatabaseUnavailable):
        store.ping()


def test_an_examination_says_what_it_could_not_do_where_the_words_of_an_index_are_lost(damaged_file: Path) -> None:
    data = damaged_file.read_bytes()
    assert data.count(b"indexix_lango_session_expires_at") == 1
    damaged_file.write_bytes(data.replace(b"indexix_lango_session_expires_at", b"INDEXix_lango_session_expires_at"))
    with opened(damaged_file) as store:
        (failed,) = [each.detail for each in store.examine() if each.name == "check failed"]
    assert "what the database says of its tables cannot be read" in failed


def test_words_of_a_hosts_table_that_cannot_be_read_are_our_error(damaged_file: Path) -> None:
    said("CREATE TABLE note (number INTEGER /* grün */, session_key TEXT REFERENCES lango_session (key))", damaged_file)
    damaged_file.write_bytes(damaged_file.read_bytes().replace(b"/* gr\xc3", b"/* gr\xff"))
    with opened(damaged_file) as store:
        assert len(store.get("telegram:1").messages) > 0
        with pytest.raises(LangoStoreError, match="what the database says of its tables cannot be read"):
            store.expire()


def test_an_examination_of_a_hosts_tables_that_was_cut_short_says_so(damaged_file: Path) -> None:
    said("CREATE TABLE note (session_key TEXT REFERENCES lango_session (key))", damaged_file)
    engine = create_engine(f"sqlite:///{damaged_file}")
    cuts: list[bool] = []

    def look(_: sa.Connection, __: object, statement: str, *___: object) -> None:
        if "foreign_key_list" in statement:
            cuts.append(True)

    sa.event.listen(
        engine, "connect", lambda driver, _: driver.set_progress_handler(lambda: bool(cuts) and cuts.pop(), 1)
    )
    sa.event.listen(engine, "before_cursor_execute", look)
    with pytest.raises(LangoStoreError, match="interrupted"):
        Store(engine).expire()
    engine.dispose()


def test_an_error_of_a_store_without_a_search_index_is_not_laid_to_one(
    damaged_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(damaged_file) as store:
        assert store.exists("telegram:1")
        said("DROP TABLE lango_value", damaged_file)
        with pytest.raises(LangoStoreError):
            store.set_values("telegram:1", {"a": 1})
    assert [record.getMessage() for record in caplog.records if record.name == "lango_store"] == []
