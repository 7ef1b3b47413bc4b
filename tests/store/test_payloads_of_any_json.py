"""Messages of any JSON are stored without loss by a store with any threshold, and by each way to write them."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.databases import MakeDatabase
from support.factories import message
from support.json_values import has_surrogate_pair, json_values, typed_repr
from support.payloads import bodies, listings, row
from support.session_checks import assert_sound

from lango_store import Conversation, Message, Payload, Store, ToolCall
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy

pytestmark = pytest.mark.slow

any_text = st.text(alphabet=st.characters(exclude_categories=()))  # NUL, lone surrogates and every plane
repeated = st.sampled_from(["", "a", "data:image/png;base64,AAAA", "é" * 40, "x" * 64, '"\\\n' * 20, "1" * 63 + "\0"])
values = json_values(any_text | repeated, max_leaves=8)
objects = st.dictionaries(any_text, values, max_size=3)


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    calls = [
        ToolCall(id=draw(repeated | st.just("c")), name=draw(repeated), arguments=draw(values), output=draw(values))
        for _ in range(draw(st.integers(0, 2)))
    ]
    return Message.assistant(draw(values), tool_calls=calls, extra=draw(objects))


def is_storable(sent: list[Message]) -> bool:
    return not any(has_surrogate_pair(each.model_dump(exclude={"role"})) for each in sent)


any_messages = st.lists(any_message(), min_size=1, max_size=3).filter(is_storable)
thresholds = st.integers(1, 64)
EXAMPLE = [Message.user(["", "x", {"": "x"}], extra={"": {"text": "x"}}), Message.user("x"), Message.user({"0": ["x"]})]


def reprs(messages: list[Message]) -> list[str]:
    """Return the JSON of messages in a form that distinguishes 1, 1.0 and True, and the order of keys."""
    return [typed_repr([m.content, m.extra, [c.model_dump() for c in m.tool_calls]]) for m in messages]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def expected_bodies(messages: list[Message], threshold: int) -> list[str]:
    """Return the strings of messages that have to become payloads."""
    parts: list[Any] = [[m.content, m.extra] for m in messages]
    parts += [[call.arguments, call.output] for m in messages for call in m.tool_calls]
    return sorted({s for s in strings(parts) if len(s) >= threshold and not re.search("[\0\ud800-\udfff]", s)})


def assert_stored(conversation: Conversation, store: Store, sent: list[Message], threshold: int) -> None:
    """Compare what a session returns, and the payloads that it has, with the messages that were sent."""
    assert reprs(conversation.all_messages()) == reprs(sent)
    assert bodies(store, conversation.key) == expected_bodies(sent, threshold)
    for stored in conversation.all_messages(payloads="reference"):
        for payload in payloads_in(stored.content):
            assert len(conversation.payload(payload.digest).encode()) == payload.size


def payloads_in(value: Any) -> Iterator[Payload]:
    if isinstance(value, Payload):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from payloads_in(inner)


@pytest.fixture
def target(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database()) as opened:
        yield opened


def delete_all(store: Store) -> None:
    for info in list(store.iter_sessions(expired=None)):
        store.delete(info.key)


@given(sent=any_messages, threshold=thresholds)
@example(sent=EXAMPLE, threshold=1)
def test_each_way_to_append_stores_any_json(store: Store, sent: list[Message], threshold: int) -> None:
    with Store(store.engine, payload_threshold=threshold) as writer:
        writer.create("create", messages=sent)
        one, several, turn, running = (writer.open(key) for key in ("one", "several", "turn", "running"))
        for each in sent:
            one.append_message(each)
        several.append_messages(sent)
        turn.save_turn(sent)
        with running.turn() as in_progress:
            in_progress.append_messages(sent)
        for conversation in (writer.conversation("create"), one, several, turn, running):
            assert_stored(conversation, store, sent, threshold)
        assert_sound(store)
        delete_all(store)


@given(sent=any_messages, threshold=thresholds)
@example(sent=EXAMPLE, threshold=1)
def test_edits_and_forks_store_any_json(store: Store, sent: list[Message], threshold: int) -> None:
    with Store(store.engine, payload_threshold=threshold) as writer:
        edited = writer.open("edited", messages=[message("x" * 64)] * len(sent))
        for seq, each in enumerate(sent, 1):
            stored = edited.edits.update(seq, each)
            assert reprs([stored]) == reprs([each])
        assert_stored(edited, store, sent, threshold)
        assert_stored(edited.fork("fork"), store, sent, threshold)
        assert_stored(edited.fork("cut", upto=len(sent) - 1), store, sent[:-1], threshold)
        compacted = writer.open("compacted", messages=[message("x" * 64)])
        compacted.compact(lambda _: sent, discard=True)
        assert reprs(compacted.messages()) == reprs(sent)
        assert_stored(compacted, store, sent, threshold)
        edited.edits.delete(1)
        assert_stored(edited, store, sent[1:], threshold)
        assert_sound(store)
        delete_all(store)


@given(sent=any_messages, threshold=thresholds)
@example(sent=EXAMPLE, threshold=1)
def test_backups_copies_and_archives_preserve_any_json(
    store: Store, target: Store, tmp_path: Path, sent: list[Message], threshold: int
) -> None:
    with Store(store.engine, payload_threshold=threshold) as writer:
        writer.create("k", messages=sent)
    assert [each.error for each in export(store, tmp_path / "a.jsonl", "backup", keys=["k"], replace=True)] == [None]
    (report,) = import_path(target, tmp_path / "a.jsonl")
    assert report.error is None
    assert_stored(target.conversation("k"), target, sent, threshold)
    assert copy(store, target).already_there == 1
    target.delete("k")
    assert copy(store, target).copied == 1
    assert_stored(target.conversation("k"), target, sent, threshold)
    (tmp_path / "cold.db").unlink(missing_ok=True)
    target.expire(older_than=timedelta(0), archive=tmp_path / "cold.db")
    target.restore("k", tmp_path / "cold.db")
    assert_stored(target.conversation("k"), target, sent, threshold)
    assert_sound(target)
    for each in (store, target):
        delete_all(each)


@given(sent=any_messages, threshold=thresholds)
@example(sent=EXAMPLE, threshold=1)
def test_payloads_moved_from_any_json_equal_payloads_stored_by_an_append(
    store: Store, sent: list[Message], threshold: int
) -> None:
    seqs = range(1, len(sent) + 1)
    with (
        Store(store.engine, payload_threshold=None) as whole,
        Store(store.engine, payload_threshold=threshold) as writer,
    ):
        moved = whole.open("k", messages=sent)
        before = [row(store, seq) for seq in seqs]
        store.maintenance.move_payloads(threshold=threshold)
        assert_stored(moved, store, sent, threshold)
        writer.create("appended", messages=sent)
        assert listings(store) == listings(store, "appended")
        assert [row(store, seq)["content"] for seq in seqs] == [row(store, seq, "appended")["content"] for seq in seqs]
        store.maintenance.move_payloads(threshold=None)
        assert ([row(store, seq) for seq in seqs], bodies(store)) == (before, [])
        assert reprs(moved.messages()) == reprs(sent)
        assert_sound(store)
        delete_all(store)
