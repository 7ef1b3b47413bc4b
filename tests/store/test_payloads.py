"""Payloads: strings of messages that are stored separately, and reads that put them back."""

import sqlite3
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session, select
from support.databases import MakeDatabase
from support.factories import contents, message
from support.payloads import IMAGE, LARGE, bodies, large_message, listings, row
from support.session_checks import assert_sound
from support.turns import messages_of

from lango_store import (
    DamagedMessage,
    InvalidValue,
    Message,
    Payload,
    PayloadNotFound,
    SessionExpired,
    SessionNotFound,
    Store,
    ToolCall,
)
from lango_store._rows.payloads import digest_of
from lango_store.tables import MessageRow
from lango_store.testing import Clock


def payload(body: str, media_type: str | None = None) -> Payload:
    return Payload(digest=digest_of(body), size=len(body.encode()), media_type=media_type)


# Strings that become payloads


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_string_as_long_as_the_threshold_becomes_a_payload(store: Store, letter: str) -> None:
    store.create("k", messages=[message(letter * 65_536), message([letter * 65_536])])
    assert bodies(store) == [letter * 65_536]
    assert (row(store, 1)["text"], row(store, 2)["content"]) == ("", '[""]')
    assert contents(store.conversation("k").messages()) == [letter * 65_536, [letter * 65_536]]


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_string_shorter_than_the_threshold_stays_in_the_row(store: Store, letter: str) -> None:
    store.create("k", messages=[message(letter * 65_535), message([letter * 65_535, letter * 65_535])])
    assert (bodies(store), listings(store)) == ([], [None, None])
    assert row(store)["text"] == letter * 65_535


def with_string(string: str) -> dict[str, Message]:
    """Return messages in which a string of this length becomes a payload from 4,096 characters."""
    call = ToolCall(id="c", name="f", arguments={"a": string}, output=[string])
    uri = f"data:,{string}"[: len(string)]
    return {
        "data URI as text": message(uri),
        "data URI in a block": message([{"type": "text", "text": "x" * 9_000}, {"url": uri}]),
        "text of a record": message(string, role="record"),
        "content of a record": message({"state": [string]}, role="record"),
        "tool call": Message.assistant("text", tool_calls=[call]),
        "extra": message("text", extra={"raw": string}),
    }


@pytest.mark.parametrize("place", with_string(""))
def test_string_that_often_repeats_becomes_a_payload_from_4096_characters(store: Store, place: str) -> None:
    store.create("k", messages=[with_string("x" * size)[place] for size in (4_095, 4_096)])
    assert [len(body) for body in bodies(store)] == [4_096]
    assert listings(store)[0] is None
    stored = [with_string("x" * size)[place] for size in (4_095, 4_096)]
    assert [each.content for each in store.conversation("k").all_messages()] == [each.content for each in stored]
    assert_sound(store)


@pytest.mark.parametrize("place", with_string(""))
def test_threshold_of_the_store_applies_to_all_strings(url: str, place: str) -> None:
    with Store(url, payload_threshold=10_000) as store:
        store.create("k", messages=[with_string("x" * size)[place] for size in (9_999, 10_000)])
        assert [len(body) for body in bodies(store)] == [10_000]


def test_payloads_of_a_lower_threshold_are_read_and_not_moved(url: str, store: Store) -> None:
    texts = ["x" * 5_000, "y" * 5_000]
    with Store(url, payload_threshold=4_096) as earlier:
        earlier.create("k", messages=[message(texts[0]), message([texts[0], texts[1]])])
    assert bodies(store) == texts
    store.append_message("k", message(texts[0]))
    assert contents(store.conversation("k").messages()) == [texts[0], texts, texts[0]]
    assert store.maintenance.move_payloads() == 0
    assert_sound(store)
    store.conversation("k").edits.delete(2)
    assert bodies(store) == texts[:1]


@pytest.mark.parametrize("least", [1, 3, 65_537])
def test_threshold_is_set_by_the_payloads_option_of_the_store(url: str, least: int) -> None:
    with Store(url, payload_threshold=least) as store:
        store.create("k", messages=[message(["x" * (least - 1), "y" * least])])
        assert bodies(store) == ["y" * least]
        assert store.conversation("k").messages()[0].content == ["x" * (least - 1), "y" * least]


def test_store_with_payloads_none_keeps_all_strings_in_the_rows(url: str) -> None:
    with Store(url, payload_threshold=None) as store:
        store.create("k", messages=[message(LARGE), large_message(LARGE)])
        assert (bodies(store), listings(store)) == ([], [None, None])


def test_stores_with_different_thresholds_can_share_a_database(url: str, store: Store) -> None:
    with Store(url, payload_threshold=None) as whole, Store(url, payload_threshold=2) as smallest:
        for each in (store, whole, smallest):
            each.append_message("k", message([LARGE, "ab"]), create=True)
        assert bodies(store) == ["ab", LARGE]
        assert [row(store, seq)["content"] for seq in (1, 2, 3)] == ['["","ab"]', f'["{LARGE}","ab"]', '["",""]']
        for each in (store, whole, smallest):
            assert contents(each.conversation("k").messages()) == [[LARGE, "ab"]] * 3


@pytest.mark.parametrize("threshold", [0, -1, True, "4096", 1.5])
def test_invalid_threshold_is_refused(url: str, threshold: Any) -> None:
    with pytest.raises(ValueError, match=r"payload_threshold=.*: give a length of 1 or more, or None"):
        Store(url, payload_threshold=threshold)


def test_strings_of_each_field_become_payloads(store: Store) -> None:
    sent = large_message(LARGE, IMAGE)
    (stored,) = store.create("k", messages=[sent]).messages
    assert stored.model_copy(update={"seq": 0, "created_at": None}) == sent
    assert store.conversation("k").messages() == [stored]
    assert bodies(store) == sorted([LARGE, IMAGE])
    assert not any(LARGE in str(value) or IMAGE in str(value) for value in row(store).values())


def test_equal_strings_of_a_session_are_stored_once(store: Store) -> None:
    store.create("k", messages=[message(LARGE), message([LARGE, {"a": LARGE}])])
    store.append_message("k", large_message(LARGE, LARGE))
    store.conversation("k").save_turn([message(LARGE), message([LARGE])])
    assert bodies(store) == [LARGE]
    stats = store.stats()
    assert (stats.payload_bytes, stats.saved_bytes) == (65_536, 12 * 65_536)
    assert_sound(store)


def test_payloads_are_stored_separately_for_each_session(store: Store) -> None:
    for key in ("a", "b"):
        store.create(key, messages=[message(LARGE)])
    assert bodies(store, "a") == bodies(store, "b") == [LARGE]
    assert (store.stats().payload_bytes, store.stats().saved_bytes) == (2 * 65_536, 0)
    store.delete("a")
    assert store.conversation("b").messages()[0].content == LARGE
    assert_sound(store)


def test_ids_and_names_of_tool_calls_and_keys_of_objects_stay_in_the_row(url: str) -> None:
    with Store(url, payload_threshold=1) as store:
        call = ToolCall(id="call_1", name="f", arguments={"id": "moved 1", "name": ["moved 2"]})
        sent = Message.assistant(None, tool_calls=[call], extra={"id": "moved 3"})
        store.create("k", messages=[sent])
        assert bodies(store) == ["moved 1", "moved 2", "moved 3"]
        tool_calls = row(store)["tool_calls"]
        assert '"call_1"' in tool_calls
        assert '"f"' in tool_calls
        assert store.conversation("k").messages()[0].tool_calls == [call]


@pytest.mark.parametrize("odd", ["\0", "\ud800", "\udfff\ud800"])
def test_string_with_nul_or_surrogate_stays_in_the_row(store: Store, odd: str) -> None:
    store.create("k", messages=[message(LARGE + odd), large_message(LARGE + odd, LARGE)])
    assert bodies(store) == [LARGE]
    assert store.conversation("k").messages()[0].content == LARGE + odd
    assert store.conversation("k").messages()[1].extra == {"raw": [[LARGE + odd, LARGE]]}


def test_content_with_200_levels_stays_in_the_row(store: Store) -> None:
    deep: Any = LARGE
    for _ in range(199):
        deep = [deep]
    stored = store.create("k", messages=[message(deep), message(deep[0], extra={"a": LARGE})]).messages
    assert store.conversation("k").messages() == stored
    assert contents(stored) == [deep, deep[0]]
    assert bodies(store) == [LARGE]


def test_message_that_looks_like_a_payload_reference_is_returned_unchanged(store: Store) -> None:
    lookalike = [digest_of(LARGE), 65_536, {"payloads": {"text": [digest_of(LARGE), 65_536]}}, ""]
    store.create("k", messages=[message([LARGE, lookalike]), message("", extra={"text": ["x", 1]})])
    assert contents(store.conversation("k").messages()) == [[LARGE, lookalike], ""]
    assert store.conversation("k").messages()[1].extra == {"text": ["x", 1]}


def test_large_strings_in_settings_in_values_and_in_the_sent_field_become_no_payloads(store: Store) -> None:
    store.create("k", settings={"a": LARGE}, messages=[message("short", sent=[LARGE])])
    store.conversation("k").values.set({"a": LARGE})
    assert bodies(store) == []
    assert store.conversation("k").messages()[0].sent == [LARGE]


# Reads


def test_each_read_returns_messages_with_loaded_payloads(either_store: Store) -> None:
    conversation = either_store.open("k")
    first = conversation.append_message(message([LARGE, IMAGE], id="first"))
    turn = conversation.save_turn([large_message(LARGE, tokens=1)], {"tokens": 1})
    log = [first, *turn.messages]
    assert turn.messages[0].content == [{"type": "text", "text": LARGE}]
    assert either_store.get("k").messages == conversation.messages() == conversation.all_messages() == log
    assert list(conversation.iter_messages(page_size=1)) == log
    assert conversation.messages(last=1) == messages_of(conversation, turn) == log[1:]
    assert conversation.find_message("first") == conversation.all_messages(before=2)[0] == first
    assert conversation.all_messages(damaged="return") == log
    assert LARGE in str(conversation.history(unanswered="keep"))


def test_append_with_a_stored_id_returns_the_message_with_loaded_payloads(store: Store) -> None:
    first = store.append_message("k", message(LARGE, id="a"), create=True)
    again = store.append_message("k", message("another", id="a"))
    assert (again.replayed, again.content) == (True, LARGE)
    replayed, new = store.conversation("k").append_messages([message("another", id="a"), message([LARGE], id="b")])
    assert (replayed.content, new.content) == (LARGE, [LARGE])
    assert store.conversation("k").messages() == [first, new]
    assert bodies(store) == [LARGE]


def test_payload_references_have_digest_size_and_media_type(store: Store) -> None:
    conversation = store.open("k", messages=[message("é" * 65_536), message([{"url": IMAGE}, "short"])])
    expected: list[Any] = [payload("é" * 65_536), [{"url": payload(IMAGE, "image/png")}, "short"]]
    assert contents(conversation.messages(payloads="reference")) == expected
    assert contents(conversation.all_messages(payloads="reference")) == expected
    assert contents(conversation.messages(last=1, payloads="reference")) == expected[1:]
    assert conversation.all_messages(payloads="reference", damaged="return") == conversation.all_messages(
        payloads="reference"
    )
    for body in ("é" * 65_536, IMAGE):
        assert conversation.payload(digest_of(body)) == body


def test_payload_references_are_returned_in_each_field_of_a_message(store: Store) -> None:
    store.create("k", messages=[large_message(LARGE)])
    (stored,) = store.conversation("k").messages(payloads="reference")
    of_large = payload(LARGE)
    assert stored.content == [{"type": "text", "text": of_large}]
    assert stored.tool_calls == [
        ToolCall(id="call_1", name="f", arguments={"a": [of_large]}, output={"out": [of_large]})
    ]
    assert stored.extra == {"raw": [[of_large]]}
    assert LARGE not in stored.model_dump_json()


def test_message_with_a_reference_cannot_be_appended(store: Store) -> None:
    store.create("k", messages=[message([LARGE])])
    (stored,) = store.conversation("k").messages(payloads="reference")
    with pytest.raises(ValueError, match="content"):
        store.append_message("k", stored)


@pytest.mark.parametrize(
    ("uri", "media_type"),
    [
        ("data:image/svg+xml,", "image/svg+xml"),
        ("data:text/plain;charset=utf-8,", "text/plain"),
        ("data:,", None),
        ("data:image,", None),
        ("data:image/png ", None),
        (" data:image/png;", None),
        ("https://example.com/", None),
        ("data:imäge/png,", None),
    ],
)
def test_only_data_uris_have_a_media_type(store: Store, uri: str, media_type: str | None) -> None:
    store.create("k", messages=[message(uri + LARGE)])
    (stored,) = store.conversation("k").messages(payloads="reference")
    assert stored.content == payload(uri + LARGE, media_type)


def test_reads_refuse_an_unknown_payloads_mode(store: Store) -> None:
    mode: Any = "none"
    for conversation in (store.open("k", messages=[message()]), store.open("empty")):
        for call in (conversation.messages, conversation.all_messages):
            with pytest.raises(ValueError, match="payloads='none': give 'load' or 'reference'"):
                call(payloads=mode)


@pytest.mark.parametrize("digest", ["unknown", "", "é", digest_of("of another session" + LARGE)])
def test_missing_payload_raises_payload_not_found(store: Store, digest: str) -> None:
    store.create("other", messages=[message("of another session" + LARGE)])
    conversation = store.open("k", messages=[message(LARGE)])
    with pytest.raises(PayloadNotFound) as raised:
        conversation.payload(digest)
    assert (raised.value.key, raised.value.digest) == ("k", digest)
    assert "read the message again" in str(raised.value)


@pytest.mark.parametrize("digest", ["\0", "\ud800", 5])
def test_invalid_digest_is_refused(store: Store, digest: Any) -> None:
    with pytest.raises(InvalidValue, match="digest"):
        store.open("k").payload(digest)


def test_payload_of_missing_or_expired_session_cannot_be_loaded(store: Store, clock: Clock) -> None:
    with pytest.raises(SessionNotFound):
        store.conversation("k").payload(digest_of(LARGE))
    conversation = store.open("k", ttl=timedelta(hours=1), messages=[message(LARGE)])
    clock.move(hours=2)
    with pytest.raises(SessionExpired):
        conversation.payload(digest_of(LARGE))


def test_message_row_converts_to_a_message_with_payload_references(store: Store) -> None:
    store.create("k", messages=[large_message(LARGE, "short"), message(LARGE)])
    with Session(store.engine) as session:
        rows = session.exec(select(MessageRow).order_by(sa.text("seq"))).all()
        converted = [each.to_message() for each in rows]
        assert converted == [each.to_message() for each in rows]  # which does not change the row
    assert converted == store.conversation("k").messages(payloads="reference")


# Damage


@pytest.mark.slow
@pytest.mark.parametrize(
    "listing",
    [
        "null",
        "[1]",
        '"x"',
        "{",
        '{"text":null}',
        '{"text":["x",1]}',
        '{"text":[1,"x"]}',
        '{"author":["x",1]}',
        '{"content":{"0":["x",1]}}',
        '{"extra":{"a":["x",1]}}',
    ],
)
def test_damaged_payloads_column_raises_damaged_message(make_sqlite: MakeDatabase, listing: str) -> None:
    with Store(make_sqlite()) as store:
        conversation = store.open("k", messages=[message(LARGE), message("sound")])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_message SET payloads = ? WHERE seq = 1", (listing,))
        for call in (conversation.messages, lambda: conversation.messages(last=2), lambda: store.get("k")):
            with pytest.raises(DamagedMessage, match="payloads"):
                call()
        damaged, sound = conversation.all_messages(damaged="return")
        assert isinstance(damaged, DamagedMessage)
        assert isinstance(sound, Message)
        assert (damaged.seq, damaged.field, sound.content) == (1, "payloads", "sound")
        assert (
            "unreadable message" in {each.name for each in store.maintenance.examine()} or listing == '{"text":["x",1]}'
        )
        conversation.edits.redact(1)
        assert_sound(store)


@pytest.mark.slow
def test_sqlite_file_contains_equal_strings_once(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    with Store(url) as store:
        store.create("k")
        for _ in range(50):
            store.append_message("k", large_message("y" * 100_000))
        assert store.stats().bytes < 500_000
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("SELECT count(*), sum(length(body)) FROM lango_payload").fetchone() == (1, 100_000)
    connection.close()
