"""Redaction of archived messages: the text is removed from the file."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.factories import message
from support.session_checks import assert_sound

from lango_store import MessageNotFound, MessageRole, SessionExpired, SessionNotFound, Store
from lango_store.archive import Archive
from lango_store.testing import Clock


def traces(path: Path, word: bytes) -> int:
    return path.read_bytes().count(word)


def test_redact_message_with_archive_redacts_the_store_and_the_archive(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "cold.db"
    store.create("k", ttl=timedelta(hours=1), messages=[message("the word is hunter2", id="b", tokens=5), message("x")])
    clock.move(hours=2)
    store.expire(archive=path)
    store.restore(path, "k")
    assert traces(path, b"hunter2")
    left = store.conversation("k").redact_message("b", reason="a password", archive=path)
    assert store.conversation("k").all_messages()[0] == left
    assert not traces(path, b"hunter2")
    with Archive(path) as archive:
        assert archive.search("hunter2") == []
        assert [found["seq"] for found in archive.search("x")] == [2]
    store.delete("k")
    session = store.restore(path, "k")
    assert session.messages[0] == left
    assert session.token_count == 0
    assert_sound(store)


def test_session_that_is_restored_and_purged_again_is_in_the_archive_once(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "cold.db"
    store.create("k", ttl=timedelta(hours=1), messages=[message("hunter2", tokens=5), message("x")])
    for _ in range(3):
        clock.move(hours=2)
        assert store.expire(archive=path).sessions == 1
        store.restore(path, "k", ttl=timedelta(hours=1))
    with Archive(path) as archive:
        assert archive.count(key_prefix="k") == (1, 2)


def test_redaction_spares_the_archived_message_of_an_earlier_session_of_the_same_key(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "cold.db"
    for word in ("hunter2", "hunter3"):
        store.create("k", messages=[message(word, created_at=clock.time)])
        store.expire(older_than=timedelta(0), archive=path)
    store.create("k", messages=[message("never archived", created_at=clock.time)])
    store.conversation("k").redact_message(1, archive=path)
    assert (traces(path, b"hunter2") > 0, traces(path, b"hunter3") > 0) == (True, True)
    store.delete("k")
    store.restore(path, "k")
    store.conversation("k").redact_message(1, archive=path)
    assert (traces(path, b"hunter2") > 0, traces(path, b"hunter3") > 0) == (True, False)


def test_redaction_of_an_updated_message_also_redacts_the_archived_version(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "cold.db"
    store.create("k", ttl=timedelta(hours=1), messages=[message("hunter2", id="a", tokens=5), message("x", tokens=7)])
    for n in range(2):
        clock.move(hours=2)
        store.expire(archive=path)
        store.restore(path, "k", ttl=timedelta(hours=1))
        new = message(f"hunter2, corrected {n}", id=f"b{n}", role=MessageRole.SYSTEM)
        store.conversation("k").update_message(1, new.model_copy(update={"created_at": clock.time}))
    assert traces(path, b"hunter2")
    left = store.conversation("k").redact_message(1, archive=path)
    assert (left.id, left.content) == ("b1", "(redacted)")
    assert not traces(path, b"hunter2")
    assert traces(path, b"x")
    store.delete("k")
    assert store.restore(path, "k").token_count == 7


def test_redaction_of_an_archived_record_keeps_the_token_count_of_the_session(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "cold.db"
    record = message("hunter2", id="r", role=MessageRole.RECORD, tokens=50)
    store.create("k", ttl=timedelta(hours=1), messages=[message("hi", tokens=3), record])
    clock.move(hours=2)
    store.expire(archive=path)
    assert store.conversation("k").redact_message("r", archive=path).tokens == 0
    session = store.restore(path, "k")
    assert (session.token_count, session.record_count) == (3, 1)
    assert_sound(store)


def test_message_that_only_the_archive_has_can_be_redacted(store: Store, clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "cold.db"
    for word in ("hunter2", "hunter3"):
        store.create("k", ttl=timedelta(hours=1), messages=[message("hello"), message(word, id="b")])
        clock.move(hours=2)
        store.expire(archive=path)
    left = store.conversation("k").redact_message(2, archive=path)
    assert (left.seq, left.id, left.content) == (2, "b", "(redacted)")
    assert (traces(path, b"hunter2") > 0, traces(path, b"hunter3") > 0) == (True, False)
    for place in (3, "c"):
        with pytest.raises(SessionNotFound):
            store.conversation("k").redact_message(place, archive=path)
    store.create("k", messages=[message("a new life")])
    with pytest.raises(MessageNotFound):
        store.conversation("k").redact_message("c", archive=path)
    store.conversation("k").redact_message(1, archive=path)
    assert traces(path, b"hello")  # in this incarnation, seq 1 is another message


def test_redaction_in_an_expired_session_raises_session_expired(store: Store, clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "cold.db"
    with Archive(path, create=True):
        store.create("k", ttl=timedelta(hours=1), messages=[message("hunter2")])
    clock.move(hours=2)
    with pytest.raises(SessionExpired, match="touch"):
        store.conversation("k").redact_message(1, archive=path)
