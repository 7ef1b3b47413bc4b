"""SQLite rows with values of an unexpected type: each is reported, and other rows stay readable."""

import random
from pathlib import Path

import pytest
from support.damage import (
    KEYS,
    ROUNDS,
    SESSIONS,
    only_our_errors,
    opened,
    reading,
    said,
    summing_up,
    writing,
)
from support.factories import message

from lango_store import (
    DamagedMessage,
    DatabaseUnavailable,
    schema,
)
from lango_store.interchange import export


def test_invalid_utf8_is_reported_and_other_messages_are_readable(damaged_file: Path) -> None:
    for column, seq in (("content", 2), ("author", 5), ("text", 4), ("id", 8), ("created_at", 9)):
        said(f"UPDATE lango_message SET {column} = CAST(x'22e4ff22' AS TEXT) WHERE seq = ?", damaged_file, seq)
    with opened(damaged_file) as store:
        found = store.conversation("telegram:1").all_messages(damaged="return")
        damaged = {each.seq: each.field for each in found if isinstance(each, DamagedMessage)}
        assert damaged == {2: "content", 4: "text", 5: "author", 8: "id", 9: "created_at"}
        with pytest.raises(DamagedMessage, match=r"message 2 .*content: is not UTF-8"):
            store.conversation("telegram:1").all_messages()
        named = [each for each in store.maintenance.examine() if each.name == "unreadable message"]
        assert len(named) == 5 * SESSIONS


def test_write_to_a_session_with_invalid_utf8_is_refused_with_the_name_of_the_field(damaged_file: Path) -> None:
    said("UPDATE lango_session SET title = CAST(x'ff22' AS TEXT) WHERE key = 'telegram:1'", damaged_file)
    before = said("SELECT revision, model, expires_at FROM lango_session", damaged_file)
    with opened(damaged_file) as store:
        for write in (lambda key: store.conversation(key).update(model="new"), store.touch):
            with pytest.raises(DamagedMessage, match=r"'telegram:1' cannot be read, title"):
                write("telegram:1")
    assert said("SELECT revision, model, expires_at FROM lango_session", damaged_file) == before


@pytest.mark.parametrize("borrowed", [False, True])
def test_pop_message_and_messages_report_invalid_utf8(damaged_file: Path, borrowed: bool) -> None:
    said("UPDATE lango_message SET content = CAST(x'22e4ff22' AS TEXT), text = NULL", damaged_file)
    with opened(damaged_file) as own, own.engine.connect() as connection:
        store = own.using(connection) if borrowed else own
        conversation = store.conversation("telegram:1")
        for call in (conversation.pop_message, conversation.messages):
            with pytest.raises(DamagedMessage, match="content: is not UTF-8"):
                call()


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
def test_session_column_of_wrong_type_is_reported(damaged_file: Path, column: str, value: str) -> None:
    said(f"UPDATE lango_session SET {column} = {value} WHERE key = 'telegram:1'", damaged_file)
    with opened(damaged_file) as store:
        for call in (lambda key: store.conversation(key).info(), store.get):
            with pytest.raises(DamagedMessage) as raised:
                call("telegram:1")
            assert (raised.value.key, raised.value.seq, raised.value.field) == ("telegram:1", 0, column)


def test_append_is_refused_if_last_seq_is_not_an_integer(damaged_file: Path) -> None:
    said("UPDATE lango_session SET last_seq = 1.5 WHERE key = 'telegram:1'", damaged_file)
    with opened(damaged_file) as store:
        before = store.stats()
        for write in (store.append_message, lambda key, new: store.conversation(key).save_turn([new])):
            with pytest.raises(DamagedMessage) as raised:
                write("telegram:1", message())
            assert (raised.value.key, raised.value.field) == ("telegram:1", "last_seq")
        assert store.stats() == before


def test_last_seq_that_is_text_is_reported(damaged_file: Path) -> None:
    said("UPDATE lango_session SET last_seq = 'many' WHERE key = 'telegram:1'", damaged_file)
    with opened(damaged_file) as store:
        conversation = store.conversation("telegram:1")
        for call in (conversation.tail().__next__, conversation.pop_message, lambda: conversation.calls.begin(1, 0)):
            with pytest.raises(DamagedMessage, match="last_seq: 'many' is not a whole number"):
                call()


def test_examine_names_rows_whose_key_is_not_text(damaged_file: Path) -> None:
    said("PRAGMA foreign_keys = OFF", damaged_file)
    said("UPDATE lango_message SET session_key = x'ff00' WHERE session_key = 'telegram:2' AND seq < 3", damaged_file)
    said("UPDATE lango_session SET key = x'ff01' WHERE key = 'telegram:19'", damaged_file)
    said("UPDATE lango_shared_value SET scope = x'7a' WHERE scope = 'user 0' AND name = 'telegram:0'", damaged_file)
    with opened(damaged_file) as store:
        found = [
            (each.name, each.subject) for each in store.maintenance.examine() if each.name.startswith("unreadable")
        ]
    assert found == [
        ("unreadable session", repr(b"\xff\1")),
        ("unreadable message", repr(b"\xff\0")),
        ("unreadable message", repr(b"\xff\0")),
        ("unreadable value", repr(b"z")),
    ]


@pytest.mark.parametrize("value", ["x'39'", "'nine'", "11.5"])
def test_seq_that_is_not_an_integer_is_reported_as_damage(damaged_file: Path, tmp_path: Path, value: str) -> None:
    said(f"UPDATE lango_message SET seq = {value} WHERE session_key = 'telegram:16' AND seq = 11", damaged_file)
    with opened(damaged_file) as store:
        conversation = store.conversation("telegram:16")
        for call in (conversation.history, lambda: conversation.messages(last=99)):
            with pytest.raises(DamagedMessage) as raised:
                call()
            assert (raised.value.key, raised.value.seq, raised.value.field) == ("telegram:16", 0, "seq")
        with pytest.raises(DatabaseUnavailable, match="out of order"):
            export(store, tmp_path, "nanobot", keys=["telegram:16"])


@pytest.mark.parametrize("change", ["created_at = 'never'", "created_at = '7'", "usage = '{'", "usage = '[1]'"])
def test_unreadable_turn_is_reported(damaged_file: Path, change: str) -> None:
    said(f"UPDATE lango_turn SET {change} WHERE session_key = 'telegram:1'", damaged_file)
    with opened(damaged_file) as store, pytest.raises(DamagedMessage, match=r"turn \d+") as raised:
        store.conversation("telegram:1").turns.list()
    assert (raised.value.key, raised.value.seq) == ("telegram:1", 0)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["lango_session", "lango_message", "lango_turn", "lango_draft", "lango_inbox"])
def test_value_of_wrong_type_in_any_column_raises_only_store_errors(
    sound_file: Path, damaged_file: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "check", lambda _: [])  # takes half of the time, and values do not affect it
    # SQLite's columns hold values of any type.
    values = ("x'ff00'", "CAST(x'ff22' AS TEXT)", "'text'", "x'35'", "-1", "1.5", "9e999", "9223372036854775807")
    chance = random.Random(0)
    for _, column, *_ in said(f"PRAGMA table_info({table})", sound_file):
        for value in values if ROUNDS > 100 else chance.sample(values, 1):
            damaged_file.write_bytes(sound_file.read_bytes())
            said(f"UPDATE OR IGNORE {table} SET {column.decode()} = {value} WHERE rowid IN (2, 15, 16)", damaged_file)
            with opened(damaged_file) as store:
                for name, call in [*reading(store, KEYS[1]), *summing_up(store), *writing(store, KEYS[1])]:
                    found = only_our_errors(f"{name} with {column.decode()} = {value}", call)
                    if isinstance(found, DamagedMessage):
                        assert found.key
                        assert found.field


def test_delete_message_counts_tokens_that_are_not_a_number_as_zero(damaged_file: Path) -> None:
    with opened(damaged_file) as store:
        store.create("k", messages=[message(tokens=5), message(tokens=3)])
        said("UPDATE lango_message SET tokens = '7x' WHERE session_key = 'k' AND seq = 1", damaged_file)
        store.conversation("k").edits.delete(1)
        assert store.conversation("k").info().token_count == 8
