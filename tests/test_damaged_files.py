"""Damaged SQLite files: whatever a file holds, our errors come out, and all that can still be read is given.

A few seconds in the suite; `LANGO_STORE_DAMAGE_ROUNDS=300 pytest -s tests/test_damaged_files.py` goes on for longer.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from damage import (
    DAMAGES,
    PAGE,
    SESSIONS,
    fill,
    leaves_of,
    lose,
    opened,
    reading,
    said,
    summing_up,
    unreadable,
    writing,
)
from factories import message, messages

from lango_store import (
    DamagedMessage,
    DatabaseUnavailable,
    LangoStoreError,
    Message,
    SessionNotFound,
    Store,
    create_engine,
    schema,
)
from lango_store.interchange import export
from lango_store.operations import examination, paging, salvage
from lango_store.operations.binds import MESSAGE

ROUNDS = int(os.environ.get("LANGO_STORE_DAMAGE_ROUNDS", 21))
FOUND = (122, 182, 238)
"""Seeds of longer runs that found something: schemas that cannot be read, an index that leads a walk in a circle."""
pytestmark = pytest.mark.timeout(120 + 20 * ROUNDS)
KEYS = [f"telegram:{number}" for number in range(SESSIONS)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "sound.db"
    fill(path)
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    path = tmp_path / "damaged.db"
    path.write_bytes(sound.read_bytes())
    return path


def test_whatever_a_file_holds_only_our_errors_come_out(sound: Path, tmp_path: Path) -> None:
    for seed in (*range(ROUNDS), *FOUND):
        chance = random.Random(seed)
        damaged = bytearray(sound.read_bytes())
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


def only_our_errors(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LangoStoreError as error:
        return error
    except Exception as error:
        raise AssertionError(what) from error


def test_salvage_gives_every_message_outside_of_a_page_that_is_lost(sound: Path, copy: Path) -> None:
    with opened(sound) as store:
        whole = {key: store.salvage(key) for key in KEYS}
    for page in leaves_of("lango_message", copy)[::4]:
        data = bytearray(sound.read_bytes())
        lost = set(re.findall(rb"telegram:\d+", data[(page - 1) * PAGE : page * PAGE]))
        data[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
        copy.write_bytes(data)
        with opened(copy) as store:
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


def test_a_session_whose_row_is_lost_is_named_by_its_messages(copy: Path) -> None:
    _, first = leaves_of("lango_session", copy)
    lost = re.findall(r"Session (\d+)", copy.read_bytes()[(first - 1) * PAGE : first * PAGE].decode("latin-1"))
    said("UPDATE lango_session SET settings = '{' WHERE key = 'telegram:19'", copy)
    lose(copy, first)
    with opened(copy) as store:
        named = [each for each in store.examine() if each.name == "unreadable session"]
    assert [each.subject for each in named] == ["telegram:19", *sorted(f"telegram:{number}" for number in lost)]
    assert [each.detail.split(": ")[:2] for each in named[1:]] == [
        ["row", f"session '{each.subject}' cannot be read, row"] for each in named[1:]
    ]


def test_a_session_that_comes_twice_is_named_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_PAGE", 4)
    said("UPDATE lango_session SET settings = '{'", copy)
    _, first = leaves_of("lango_session", copy)
    data = bytearray(copy.read_bytes())
    page = (first - 1) * PAGE
    eighth = page + int.from_bytes(data[page + 22 : page + 24], "big")
    rowid = eighth + (2 if data[eighth] & 128 else 1)  # behind the row's length
    assert data[rowid] == 8
    data[rowid] = 6  # which ends a page, and the next begins behind it
    copy.write_bytes(data)
    with opened(copy) as store, store.access.snapshot() as connection:
        assert sorted(each.key for each in salvage.damaged_sessions(connection)) == sorted(KEYS)


def test_what_was_cut_short_is_no_damage(copy: Path) -> None:
    engine = create_engine(f"sqlite:///{copy}")
    cut = False
    sa.event.listen(engine, "connect", lambda driver, _: driver.set_progress_handler(lambda: cut, 1))
    store = Store(engine)
    assert store.examine() == []
    cut = True
    for call in (store.examine, functools.partial(store.salvage, "telegram:1")):
        with pytest.raises(LangoStoreError, match="interrupted"):
            call()
    engine.dispose()


def test_text_that_is_not_utf8_is_named_and_hides_no_other_message(copy: Path) -> None:
    for column, seq in (("content", 2), ("author", 5), ("text", 4), ("id", 8), ("created_at", 9)):
        said(f"UPDATE lango_message SET {column} = CAST(x'22e4ff22' AS TEXT) WHERE seq = ?", copy, seq)
    with opened(copy) as store:
        found = store.salvage("telegram:1")
        damaged = {each.seq: each.field for each in found if isinstance(each, DamagedMessage)}
        assert damaged == {2: "content", 4: "text", 5: "author", 8: "id", 9: "created_at"}
        with pytest.raises(DamagedMessage, match=r"message 2 .*content: is not UTF-8"):
            store.all_messages("telegram:1")
        named = [each for each in store.examine() if each.name == "unreadable message"]
        assert len(named) == 5 * SESSIONS


def test_a_write_that_gives_back_text_that_is_not_utf8_names_its_field_and_changes_nothing(copy: Path) -> None:
    said("UPDATE lango_session SET title = CAST(x'ff22' AS TEXT) WHERE key = 'telegram:1'", copy)
    before = said("SELECT revision, model, expires_at FROM lango_session", copy)
    with opened(copy) as store:
        for write in (functools.partial(store.update, model="new"), store.touch):
            with pytest.raises(DamagedMessage, match=r"'telegram:1' cannot be read, title"):
                write("telegram:1")
    assert said("SELECT revision, model, expires_at FROM lango_session", copy) == before


@pytest.mark.parametrize("borrowed", [False, True])
def test_text_that_is_not_utf8_is_named_by_what_takes_several_statements(copy: Path, borrowed: bool) -> None:
    said("UPDATE lango_message SET content = CAST(x'22e4ff22' AS TEXT), text = NULL", copy)
    with opened(copy) as own, own.engine.connect() as connection:
        store = own.using(connection) if borrowed else own
        conversation = store.conversation("telegram:1")
        for call in (conversation.pop_message, conversation.last_message):
            with pytest.raises(DamagedMessage, match="content: is not UTF-8"):
                call()


def test_the_messages_of_a_session_whose_own_row_is_lost_are_given(copy: Path) -> None:
    said("PRAGMA foreign_keys = OFF", copy)
    said("DELETE FROM lango_session WHERE key = ?", copy, "telegram:3")
    said("UPDATE lango_session SET expires_at = 'never' WHERE key = ?", copy, "telegram:4")
    said("UPDATE lango_session SET expires_at = '1 May' WHERE key = ?", copy, "telegram:5")
    said("UPDATE lango_message SET content = CAST(x'22e4ff22' AS TEXT), text = NULL WHERE seq = 5", copy)
    with opened(copy) as store:
        for key in ("telegram:3", "telegram:4", "telegram:5"):
            assert len(store.salvage(key)) == 12
            assert unreadable(store.salvage(key)) == [5]
        assert [each.seq for each in store.salvage("telegram:3", last=2, after=3)] == [11, 13]
        seqs = [each.seq for each in store.salvage("telegram:3")]
        assert [each.seq for each in store.salvage("telegram:3", after=seqs[1], before=seqs[-2])] == seqs[2:-2]
        with pytest.raises(SessionNotFound):
            store.salvage("telegram:none")


def test_messages_of_a_session_whose_own_row_is_lost_are_given_however_far_apart_they_are(copy: Path) -> None:
    said("PRAGMA foreign_keys = OFF", copy)
    said("DELETE FROM lango_session WHERE key = 'telegram:3'", copy)
    said("UPDATE lango_message SET seq = 5000 WHERE session_key = 'telegram:3' AND seq = 13", copy)
    said("UPDATE lango_message SET seq = 'x' WHERE session_key = 'telegram:3' AND seq = 11", copy)
    with opened(copy) as store:
        found = {each.seq: type(each) for each in store.salvage("telegram:3", after=10)}
        assert found == {0: DamagedMessage, 5_000: Message}


def test_what_cannot_be_read_is_found_once_whatever_page_it_is_on(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(copy) as store:
        store.set_values("shared", {f"v{n}": n for n in range(6)})
        for change in ("value = x'ff' WHERE name = 'v1'", "updated_at = 'never' WHERE name = 'v3'"):
            said(f"UPDATE lango_value SET {change}", copy)
        said("UPDATE lango_value SET name = x'7635' WHERE name = 'v5'", copy)
        first, last = min(KEYS), max(KEYS)
        for key in (first, last):
            said("UPDATE lango_message SET role = 'nobody' WHERE session_key = ? AND seq = 1", copy, key)
            said("UPDATE lango_session SET settings = '{' WHERE key = ?", copy, key)
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


def test_damaged_words_of_a_schema_are_our_error(copy: Path) -> None:
    data = copy.read_bytes()
    place = data.index(b"CREATE TABLE lango_message")
    copy.write_bytes(data[:place] + b"\xff\xfe" + data[place + 2 :])
    with opened(copy) as store, pytest.raises(DatabaseUnavailable):
        store.ping()


def test_an_examination_says_what_it_could_not_do_where_the_words_of_an_index_are_lost(copy: Path) -> None:
    data = copy.read_bytes()
    assert data.count(b"indexix_lango_session_expires_at") == 1
    copy.write_bytes(data.replace(b"indexix_lango_session_expires_at", b"INDEXix_lango_session_expires_at"))
    with opened(copy) as store:
        (failed,) = [each.detail for each in store.examine() if each.name == "check failed"]
    assert "what the database says of its tables cannot be read" in failed


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("message_count", "x'35'"),
        ("last_seq", "1.5"),
        ("expires_at", "'never'"),
        ("updated_at", "7"),
        ("settings", "'{'"),
    ],
)
def test_a_value_of_a_session_in_another_form_is_named(copy: Path, column: str, value: str) -> None:
    said(f"UPDATE lango_session SET {column} = {value} WHERE key = 'telegram:1'", copy)
    with opened(copy) as store:
        for call in (store.info, store.get):
            with pytest.raises(DamagedMessage) as raised:
                call("telegram:1")
            assert (raised.value.key, raised.value.seq, raised.value.field) == ("telegram:1", 0, column)


def test_nothing_is_written_behind_a_last_seq_that_is_not_a_whole_number(copy: Path) -> None:
    said("UPDATE lango_session SET last_seq = 1.5 WHERE key = 'telegram:1'", copy)
    with opened(copy) as store:
        before = store.stats()
        for write in (store.append_message, lambda key, new: store.conversation(key).save_turn([new])):
            with pytest.raises(DamagedMessage) as raised:
                write("telegram:1", message())
            assert (raised.value.key, raised.value.field) == ("telegram:1", "last_seq")
        assert store.stats() == before


def test_messages_whose_session_key_is_not_text_are_named_where_rows_are_walked(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("PRAGMA foreign_keys = OFF", copy)
    said("UPDATE lango_message SET session_key = x'ff00' WHERE session_key = 'telegram:2' AND seq < 3", copy)
    said("UPDATE lango_session SET key = x'ff00' WHERE key = 'telegram:2'", copy)
    with opened(copy) as store, store.access.snapshot() as connection:
        found = [(each.key, each.seq, each.field) for each in salvage.damaged_messages(connection)]
        assert found == [(repr(b"\xff\0"), 1, "session_key"), (repr(b"\xff\0"), 2, "session_key")]
    said("UPDATE lango_session SET key = x'ff01' WHERE key = x'ff00'", copy)
    with opened(copy) as store, store.access.snapshot() as connection:
        sessions = [(each.key, each.field) for each in salvage.damaged_sessions(connection)]
        assert sessions == [(repr(b"\xff\1"), "key"), ("telegram:2", "row")]
    monkeypatch.setattr(examination, "_PAGE", said("SELECT count(*) FROM lango_message", copy)[0][0])
    with opened(copy) as store:
        assert [each.subject for each in store.examine() if each.name == "unreadable message"] == [repr(b"\xff\0")] * 2


def test_a_session_whose_key_is_not_text_is_found(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said("UPDATE lango_session SET key = x'ff00' WHERE key = 'telegram:19'", copy)
    for size in (1_000, SESSIONS):
        monkeypatch.setattr(examination, "_PAGE", size)
        with opened(copy) as store:
            found = {each.subject for each in store.examine() if each.name == "unreadable session"}
            assert repr(b"\xff\0") in found


def test_a_value_whose_scope_is_not_text_is_found(copy: Path) -> None:
    said("UPDATE lango_value SET scope = x'7a' WHERE scope = 'user 0' AND name = 'telegram:0'", copy)
    with opened(copy) as store, store.access.snapshot() as connection:
        assert [place for *place, _ in salvage.damaged_values(connection)] == [[b"z", "telegram:0"]]


def test_words_of_a_hosts_table_that_cannot_be_read_are_our_error(copy: Path) -> None:
    said("CREATE TABLE note (number INTEGER /* grün */, session_key TEXT REFERENCES lango_session (key))", copy)
    copy.write_bytes(copy.read_bytes().replace(b"/* gr\xc3", b"/* gr\xff"))
    with opened(copy) as store:
        assert len(store.get("telegram:1").messages) > 0
        with pytest.raises(LangoStoreError, match="what the database says of its tables cannot be read"):
            store.expire()


def test_an_examination_of_a_hosts_tables_that_was_cut_short_says_so(copy: Path) -> None:
    said("CREATE TABLE note (session_key TEXT REFERENCES lango_session (key))", copy)
    engine = create_engine(f"sqlite:///{copy}")
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


@pytest.mark.parametrize("value", ["x'39'", "'nine'", "11.5"])
def test_a_seq_that_is_not_a_number_is_named_as_damage_and_not_taken_for_one(
    copy: Path, tmp_path: Path, value: str
) -> None:
    said(f"UPDATE lango_message SET seq = {value} WHERE session_key = 'telegram:16' AND seq = 11", copy)
    with opened(copy) as store:
        conversation = store.conversation("telegram:16")
        for call in (conversation.history, conversation.last_message):
            with pytest.raises(DamagedMessage) as raised:
                call()
            assert (raised.value.key, raised.value.seq, raised.value.field) == ("telegram:16", 0, "seq")
        with pytest.raises(DatabaseUnavailable, match="out of their order"):
            export(store, tmp_path, "nanobot", keys=["telegram:16"])


@pytest.mark.parametrize("change", ["created_at = 'never'", "created_at = '7'", "usage = '{'", "usage = '[1]'"])
def test_a_turn_that_cannot_be_read_is_named(copy: Path, change: str) -> None:
    said(f"UPDATE lango_turn SET {change} WHERE session_key = 'telegram:1'", copy)
    with opened(copy) as store, pytest.raises(DamagedMessage, match=r"turn \d+") as raised:
        store.conversation("telegram:1").turns()
    assert (raised.value.key, raised.value.seq) == ("telegram:1", 0)


@pytest.mark.parametrize("table", ["lango_session", "lango_message", "lango_turn"])
def test_a_value_of_another_type_is_named_or_read(
    sound: Path, copy: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "check", lambda _: [])  # which no value changes, and takes half of an examination
    # SQLite's columns hold values of any type.
    values = ("x'ff00'", "CAST(x'ff22' AS TEXT)", "'text'", "x'35'", "-1", "1.5", "9e999", "9223372036854775807")
    chance = random.Random(0)
    for _, column, *_ in said(f"PRAGMA table_info({table})", sound):
        for value in values if ROUNDS > 100 else chance.sample(values, 1):
            copy.write_bytes(sound.read_bytes())
            said(f"UPDATE OR IGNORE {table} SET {column.decode()} = {value} WHERE rowid IN (2, 15, 16)", copy)
            with opened(copy) as store:
                for name, call in [*reading(store, KEYS[1]), *summing_up(store), *writing(store, KEYS[1])]:
                    found = only_our_errors(f"{name} with {column.decode()} = {value}", call)
                    if isinstance(found, DamagedMessage):
                        assert found.key
                        assert found.field


def test_tokens_that_are_not_a_number_are_counted_as_none_where_their_message_goes(copy: Path) -> None:
    with opened(copy) as store:
        store.create("k", messages=[message(tokens=5), message(tokens=3)])
        said("UPDATE lango_message SET tokens = '7x' WHERE session_key = 'k' AND seq = 1", copy)
        store.delete_message("k", 1)
        assert store.info("k").token_count == 8


def test_an_error_of_a_store_without_a_search_index_is_not_laid_to_one(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(copy) as store:
        assert store.exists("telegram:1")
        said("DROP TABLE lango_value", copy)
        with pytest.raises(LangoStoreError):
            store.delete("telegram:1")
    assert [record.getMessage() for record in caplog.records if record.name == "lango_store"] == []
