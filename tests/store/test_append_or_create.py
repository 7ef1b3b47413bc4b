"""Appends with `create=True`: create a missing or expired session in the same statement."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from support.databases import MakeDatabase
from support.factories import message, messages
from support.session_checks import assert_sound
from support.statements import watched

from lango_store import (
    Conflict,
    InvalidKey,
    InvalidValue,
    Message,
    SessionExpired,
    SessionNotFound,
    Store,
)
from lango_store.testing import Clock

FIELDS: dict[str, Any] = {"agent_id": "a", "user_id": "u", "title": "T", "model": "m", "settings": {"x": 1}}


@pytest.mark.parametrize("number", [1, 2])
def test_fields_of_a_new_session_and_of_its_messages_are_kept_apart(store: Store, number: int) -> None:
    new = [Message.assistant("hi", model="of the message", provider="p") for _ in range(number)]
    store.conversation("k").append_messages(new, create=True, model="of the session")
    store.conversation("without").append_messages(new, create=True)
    assert [store.get(key).model for key in ("k", "without")] == ["of the session", None]
    for key in ("k", "without"):
        assert [(each.model, each.provider) for each in store.get(key).messages] == [("of the message", "p")] * number


@pytest.mark.slow
def test_append_with_create_creates_a_missing_session(store: Store) -> None:
    stored = store.append_message(
        "k", message("hi", tokens=3), create=True, ttl=timedelta(hours=1), metadata={"y": [1]}, tools=[{}], **FIELDS
    )
    session = store.get("k")
    assert (stored.seq, stored.created_at) == (1, session.created_at)
    assert session.messages == [stored]
    assert (session.last_seq, session.message_count, session.token_count) == (1, 1, 3)
    assert session.expires_at == session.updated_at + timedelta(hours=1) == session.created_at + timedelta(hours=1)
    assert {name: getattr(session, name) for name in FIELDS} == FIELDS
    assert (session.metadata, session.tools) == ({"y": [1]}, [{}])
    assert_sound(store)


def test_append_with_create_does_not_change_fields_of_an_existing_session(store: Store) -> None:
    before = store.create("k", title="first", ttl=timedelta(hours=1), messages=messages(2))
    store.conversation("k").append_messages(
        messages(2), create=True, title="second", ttl=timedelta(days=9), user_id="u"
    )
    session = store.conversation("k").info()
    assert (session.title, session.user_id, session.ttl_seconds, session.last_seq) == ("first", None, 3600, 4)
    assert session.created_at == before.created_at


def test_save_turn_with_create_creates_the_session(store: Store) -> None:
    conversation = store.conversation("k")
    saved = conversation.save_turn(
        messages(3),
        {"tokens": 5},
        id="t",
        metadata={"of": "turn"},
        create=True,
        session_metadata={"of": "k"},
        title="T",
    )
    assert (saved.turn_no, saved.first_seq, saved.last_seq, saved.metadata) == (1, 1, 3, {"of": "turn"})
    session = conversation.info()
    assert (session.turn_count, session.title, session.metadata) == (1, "T", {"of": "k"})
    assert conversation.save_turn(messages(3), {"tokens": 5}, id="t", create=True).replayed
    assert conversation.save_turn(messages(1), create=True).turn_no == 2
    assert conversation.total_usage() == {"tokens": 5}
    assert_sound(store)


def test_append_with_create_uses_the_default_ttl(make_database: MakeDatabase) -> None:
    with Store(make_database(), default_ttl=lambda key: timedelta(hours=len(key))) as store:
        store.append_message("four", message(), create=True)
        store.append_message("never", message(), create=True, ttl=None)
        assert store.conversation("four").info().ttl_seconds == 4 * 3600
        assert store.conversation("never").info().expires_at is None


@pytest.mark.parametrize("with_ids", [False, True])
def test_append_with_create_replaces_an_expired_session(store: Store, clock: Clock, with_ids: bool) -> None:
    store.create("k", title="old", ttl=timedelta(minutes=1), messages=messages(3))
    clock.move(minutes=2)
    with pytest.raises(SessionExpired):
        store.append_message("k", message())
    stored = store.append_message("k", message("new", id="i" if with_ids else None), create=True, title="new")
    session = store.get("k")
    assert (stored.seq, session.title, session.messages, session.expires_at) == (1, "new", [stored], None)
    assert_sound(store)


def test_repeated_append_with_create_stores_each_message_once(store: Store) -> None:
    batch = [message("a", id="1"), message("b", id="2")]
    first = store.conversation("k").append_messages(batch, create=True)
    again = store.conversation("k").append_messages(batch, create=True)
    assert [each.replayed for each in again] == [True, True]
    assert store.conversation("k").messages() == first
    assert (
        store.conversation("k").append_messages([message("b", id="2"), message("c", id="3")], create=True)[1].seq == 3
    )


def test_append_with_create_and_after_0_raises_conflict_if_session_has_messages(store: Store) -> None:
    store.append_message("k", message(), after=0, create=True)
    with pytest.raises(Conflict):
        store.append_message("k", message(), after=0, create=True)
    assert store.append_message("k", message(), after=1, create=True).seq == 2


REFUSED: dict[str, Callable[[Store], object]] = {
    "after=3": lambda store: store.append_message("k", message(), after=3, create=True),
    "after=3 with a message id": lambda store: store.append_message("k", message(id="i"), after=3, create=True),
    "after=3 without messages": lambda store: store.conversation("k").append_messages([], after=3, create=True),
    "save_turn after=3": lambda store: store.conversation("k").save_turn(messages(2), after=3, create=True),
    "save_turn after=3 with a turn id": lambda store: store.conversation("k").save_turn(
        [], id="t", after=3, create=True
    ),
    "expect=3": lambda store: store.append_message("k", message(), expect=3, create=True),
    "after=0 and expect=3": lambda store: store.append_message("k", message(id="i"), after=0, expect=3, create=True),
}


@pytest.mark.parametrize("using", [False, True])
@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("append", REFUSED.values(), ids=list(REFUSED))
def test_append_with_create_to_a_missing_session_raises_conflict_if_after_or_expect_is_3(
    store: Store, clock: Clock, append: Callable[[Store], object], expired: bool, using: bool
) -> None:
    if expired:
        store.create("k", ttl=timedelta(minutes=1), messages=messages(3))
        clock.move(minutes=2)
    with store.engine.connect() as connection:
        with pytest.raises(Conflict, match=r"no session 'k', .*(after|expect)=3") as conflict:
            append(store.using(connection) if using else store)
        connection.commit()
    assert (conflict.value.expected, conflict.value.last_seq, conflict.value.revision) == (3, 0, None)
    assert store.count(expired=None) == expired
    assert store.count() == 0
    with pytest.raises(SessionNotFound):
        store.append_message("k", message(), after=3)


def test_append_with_create_succeeds_with_the_last_seq_of_the_raised_conflict(store: Store) -> None:
    after = 3
    for _ in range(2):
        try:
            stored = store.append_message("k", message(), after=after, create=True)
            break
        except Conflict as conflict:
            after = conflict.last_seq
    assert (stored.seq, after) == (1, 0)


def test_append_with_create_and_expect_0_raises_conflict(store: Store) -> None:
    with pytest.raises(Conflict, match="expect=0") as conflict:
        store.append_message("k", message(), expect=0, create=True)
    assert (conflict.value.expected, conflict.value.last_seq) == (0, 0)
    assert not store.exists("k")


def test_empty_append_with_create_creates_a_missing_session_and_changes_no_existing_one(
    store: Store, clock: Clock
) -> None:
    assert store.conversation("k").append_messages([], create=True, title="T") == []
    before = store.conversation("k").info()
    clock.move(minutes=1)
    assert store.conversation("k").append_messages([], create=True, title="U") == []
    assert store.conversation("k").info() == before
    assert (before.title, before.last_seq) == ("T", 0)


def test_append_with_create_and_invalid_input_creates_no_session(store: Store) -> None:
    with pytest.raises(InvalidValue, match="content"):
        store.append_message("k", message(object()), create=True)
    with pytest.raises(InvalidValue, match="settings"):
        store.append_message("k", message(), create=True, settings={"x": object()})
    with pytest.raises(InvalidValue, match="settings"):
        store.append_message("k", message(), create=True, after=3, settings={"x": object()})
    with pytest.raises(ValueError, match="ttl"):
        store.append_message("k", message(), create=True, ttl=timedelta(0))
    with pytest.raises(InvalidKey):
        store.append_message("", message(), create=True)
    assert not list(store.iter_sessions())


def test_append_refuses_session_fields_without_create(store: Store) -> None:
    store.create("k")
    with pytest.raises(TypeError, match="create=True"):
        store.append_message("k", message(), title="T")
    with pytest.raises(TypeError, match="create=True"):
        store.conversation("k").append_messages(messages(1), ttl=None)
    with pytest.raises(TypeError, match="create=True"):
        store.conversation("k").save_turn(messages(1), session_metadata={"x": 1})
    with pytest.raises(TypeError, match="replace_after"):
        store.conversation("k").append_messages(messages(1), replace_after=0, create=True)
    assert store.conversation("k").info().last_seq == 0


@pytest.mark.slow
@pytest.mark.parametrize("with_ids", [False, True])
def test_concurrent_appends_with_create_create_one_session(store: Store, with_ids: bool) -> None:
    for number in range(2):
        barrier = Barrier(8)

        def race(n: int, barrier: Barrier = barrier, key: str = f"k{number}") -> list[Message]:
            barrier.wait()
            new = [message([n, i], id=f"{n}.{i}" if with_ids else None) for i in range(3)]
            return store.conversation(key).append_messages(new, create=True, user_id=str(n))

        with ThreadPoolExecutor(8) as pool:
            written = list(pool.map(race, range(8)))
        session = store.get(f"k{number}")
        assert [each.seq for each in session.messages] == list(range(1, 25))
        assert sorted((each.content, each.seq) for each in session.messages) == sorted(
            (each.content, each.seq) for batch in written for each in batch
        )
    assert_sound(store)


def test_append_with_create_is_one_transaction_on_sqlite(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("existing")
        with watched(store.engine) as statements:
            store.append_message("existing", message(), create=True)
        assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]
        with watched(store.engine) as statements:
            store.append_message("missing", message(), create=True)
        assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "UPDATE", "INSERT", "COMMIT"]


def test_empty_turn_that_replaces_an_expired_session_is_not_a_replay(store: Store, clock: Clock) -> None:
    store.create("k", ttl=timedelta(hours=1))
    clock.move(hours=2)
    k = store.conversation("k")
    first = k.save_turn([], {"tokens": 1}, create=True, ttl=timedelta(hours=1))
    clock.move(hours=2)
    second = k.save_turn([], {"tokens": 2}, create=True)
    assert [(turn.id, turn.replayed, turn.usage) for turn in (first, second)] == [
        (None, False, {"tokens": 1}),
        (None, False, {"tokens": 2}),
    ]


def test_append_with_create_succeeds_during_a_concurrent_purge(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    clock = Clock()
    writes: list[Callable[[Store], object]] = [
        lambda store: store.append_message("k", message(), create=True),
        lambda store: store.append_message("k", message(id="new"), create=True),
        lambda store: store.conversation("k").save_turn(messages(2), create=True),
    ]
    with Store(url, clock=clock) as purging:
        for write in writes:
            purging.create("k", ttl=timedelta(minutes=1))
            clock.move(minutes=2)
            purged: list[int] = []

            def purge(text: str, _: float, purged: list[int] = purged) -> None:
                if not purged and "INSERT" in text:
                    purged.append(1)
                    purging.expire()

            with Store(url, clock=clock, on_statement=purge) as store:
                store.ping()
                write(store)
                assert purged
                assert store.conversation("k").info().message_count > 0
            purging.delete("k")


def test_repeated_append_with_create_succeeds_during_a_concurrent_delete(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with Store(url) as deleting:
        deleting.create("k", messages=[message(id="i")])
        deleted: list[int] = []

        def delete(text: str, _: float) -> None:
            if not deleted and text.lstrip().startswith("INSERT INTO lango_session"):
                deleted.append(1)
                deleting.delete("k")

        with Store(url, on_statement=delete) as store:
            store.ping()
            assert store.append_message("k", message(id="i"), create=True).seq == 1
            assert deleted
