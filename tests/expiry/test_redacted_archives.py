"""Redaction of archived messages: the text is removed from the archive."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.factories import message
from support.session_checks import assert_sound

from lango_store import InvalidFile, MessageNotFound, MessageRole, SessionExpired, SessionNotFound, Store, schema
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

NOW = timedelta(0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cold.db"


def traces(path: Path, word: bytes) -> int:
    return sum(each.read_bytes().count(word) for each in path.parent.glob(f"{path.name}*"))


def test_redact_message_with_archive_redacts_the_store_and_the_archive(store: Store, path: Path) -> None:
    store.create("k", messages=[message("the word is hunter2", id="b", tokens=5), message("x")])
    store.expire(older_than=NOW, archive=path)
    schema.enable_search(f"sqlite:///{path}")
    store.restore("k", path)
    assert traces(path, b"hunter2")
    redacted = store.conversation("k").edits.redact("b", reason="a password", archive=path)
    assert store.conversation("k").all_messages()[0] == redacted
    assert not traces(path, b"hunter2")
    store.delete("k")
    session = store.restore("k", path)
    assert (session.messages[0], session.token_count) == (redacted, 0)
    assert_sound(store)


def test_redaction_spares_the_archived_message_of_an_earlier_session_of_the_same_key(store: Store, path: Path) -> None:
    for word in ("hunter2", "hunter3"):
        store.create("k", messages=[message(word)])
        store.expire(older_than=NOW, archive=path)
    store.create("k", messages=[message("never archived")])
    store.conversation("k").edits.redact(1, archive=path)
    assert (traces(path, b"hunter2") > 0, traces(path, b"hunter3") > 0) == (True, True)
    store.delete("k")
    store.restore("k", path)
    store.conversation("k").edits.redact(1, archive=path)
    assert (traces(path, b"hunter2") > 0, traces(path, b"hunter3") > 0) == (True, False)


def test_redaction_finds_the_copy_that_got_a_new_key(store: Store, path: Path) -> None:
    store.create("k", messages=[message("hunter2")])
    with store.engine.connect() as connection:
        store.using(connection).expire(older_than=NOW, archive=path)
        inner = store.using(connection)
        inner.create("k", messages=[message("hunter3")])
        inner.expire(older_than=NOW, archive=path)
        connection.rollback()
    store.conversation("k").edits.redact(1, archive=path)
    assert (traces(path, b"hunter2") > 0, traces(path, b"hunter3") > 0) == (False, True)


def test_redaction_of_an_updated_message_also_redacts_the_archived_version(store: Store, path: Path) -> None:
    store.create("k", messages=[message("hunter2", id="a", tokens=5), message("x", tokens=7)])
    store.expire(older_than=NOW, archive=path)
    store.restore("k", path)
    store.conversation("k").edits.update(1, message("hunter2, corrected", id="b", role=MessageRole.SYSTEM))
    assert traces(path, b"hunter2")
    redacted = store.conversation("k").edits.redact(1, archive=path)
    assert (redacted.id, redacted.content) == ("b", "(redacted)")
    assert not traces(path, b"hunter2")
    store.delete("k")
    assert store.restore("k", path).token_count == 7


def test_message_that_only_the_archive_has_can_be_redacted(store: Store, path: Path) -> None:
    store.create("k", messages=[message("hello"), message("hunter2", id="b")])
    store.expire(older_than=NOW, archive=path)
    redacted = store.conversation("k").edits.redact("b", archive=path)
    assert (redacted.seq, redacted.id, redacted.content) == (2, "b", "(redacted)")
    assert not traces(path, b"hunter2")
    for seq_or_id in (3, "c"):
        with pytest.raises(SessionNotFound):
            store.conversation("k").edits.redact(seq_or_id, archive=path)
    store.create("k", messages=[message("a new session")])
    with pytest.raises(MessageNotFound):
        store.conversation("k").edits.redact("c", archive=path)
    store.conversation("k").edits.redact(1, archive=path)
    assert traces(path, b"hello")  # in the store's session, seq 1 is another message


def test_nothing_is_redacted_if_the_archive_does_not_exist(store: Store, path: Path) -> None:
    store.create("k", messages=[message("hunter2")])
    with pytest.raises(InvalidFile, match="does not exist"):
        store.conversation("k").edits.redact(1, archive=path)
    assert store.conversation("k").messages()[0].content == "hunter2"


def test_redaction_in_an_expired_session_raises_session_expired(store: Store, clock: Clock, path: Path) -> None:
    store.expire(archive=path)
    store.create("k", ttl=timedelta(hours=1), messages=[message("hunter2")])
    clock.move(hours=2)
    with pytest.raises(SessionExpired, match="touch"):
        store.conversation("k").edits.redact(1, archive=path)
