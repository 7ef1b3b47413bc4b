"""A store for one user: what it sees, creates and refuses."""

import asyncio

import pytest

from lango_store import AsyncStore, InvalidState, Message, SessionNotFound, Store


@pytest.fixture
def ann(store: Store) -> Store:
    """The store of ann, next to a session of bob and one without a user."""
    store.create("b", user_id="bob", messages=[Message.user("secret")])
    store.create("n", messages=[Message.user("none")])
    return store.for_user("ann")


def test_created_sessions_belong_to_the_user(store: Store, ann: Store) -> None:
    ann.create("a")
    ann.open("o").child("x")
    ann.append_message("m", Message.user("Hello"), create=True)
    ann.conversation("a").fork("f")
    users = {info.key: info.user_id for info in store.iter_sessions()}
    assert users == dict.fromkeys(["a", "f", "m", "o", "o/x"], "ann") | {"b": "bob", "n": None}
    assert [info.key for info in ann.iter_sessions()] == ["a", "f", "m", "o", "o/x"]
    assert ann.count() == 5


@pytest.mark.parametrize("key", ["b", "n"])
def test_sessions_of_others_do_not_exist(store: Store, ann: Store, key: str) -> None:
    before = store.get(key)
    ann.create("a")
    with pytest.raises(SessionNotFound) as missing:
        ann.get("missing")
    for call in (
        lambda: ann.get(key),
        lambda: ann.open(key),
        lambda: ann.create(key),
        lambda: ann.touch(key),
        lambda: ann.append_message(key, Message.user("x")),
        lambda: ann.append_message(key, Message.user("x"), create=True),
        lambda: ann.conversation(key).update(title="x"),
        lambda: ann.conversation(key).append_messages([Message.user("x", id="x")] * 2),
        lambda: ann.conversation(key).append_messages([Message.user("x", id="x")] * 2, create=True),
        lambda: ann.conversation(key).clear(),
        lambda: ann.conversation("a").fork(key),
    ):
        with pytest.raises(SessionNotFound) as error:
            call()
        assert str(error.value) == str(missing.value).replace("missing", key)
    assert not ann.exists(key)
    assert not ann.delete(key)
    assert ann.messages_of([key], last=1) == {}
    assert ann.values_of([key]) == {}
    assert store.get(key) == before


def test_another_user_is_refused_before_anything_is_written(store: Store, ann: Store) -> None:
    conversation = ann.open("a")
    before = store.get("a")
    for call in (
        lambda: ann.create("c", user_id="bob"),
        lambda: ann.open("c", user_id="bob"),
        lambda: ann.append_message("c", Message.user("x"), create=True, user_id="bob"),
        lambda: conversation.update(user_id="bob"),
        lambda: conversation.update(user_id=None),
    ):
        with pytest.raises(ValueError, match="this store is for user 'ann'"):
            call()
    assert not store.exists("c")
    assert store.get("a") == before


def test_filter_of_another_user_finds_nothing(ann: Store) -> None:
    ann.create("a")
    assert ann.count(user_id="ann") == 1
    assert ann.count(user_id="bob") == 0
    assert ann.list_sessions(user_id="bob").items == []


def test_transaction_and_snapshot_stay_bound(store: Store, ann: Store) -> None:
    with ann.transaction() as tx:
        tx.create("a")
        with pytest.raises(SessionNotFound):
            tx.get("b")
        assert tx.count() == 1
    with ann.snapshot() as view, pytest.raises(SessionNotFound):
        view.get("b")
    with store.engine.connect() as connection, pytest.raises(SessionNotFound):
        ann.using(connection).get("b")


def test_methods_for_the_whole_database_are_refused(ann: Store) -> None:
    for call in (
        ann.stats,
        ann.maintenance.examine,
        lambda: ann.shared_values("user:bob").get(),
        lambda: ann.shared_values_of(["user:ann", "user:bob"]),
    ):
        with pytest.raises(InvalidState, match="user 'ann'"):
            call()
    ann.shared_values("user:ann").set({"x": 1})
    assert ann.shared_values("user:ann").get() == {"x": 1}


def test_for_user_twice(ann: Store) -> None:
    assert ann.for_user("ann").count() == 0
    with pytest.raises(ValueError, match="this store is for user 'ann'"):
        ann.for_user("bob")
    for user in ("", None, 1):
        with pytest.raises(ValueError, match="user_id"):
            ann.for_user(user)  # type: ignore[arg-type]


def test_async_store_for_user(store: Store, ann: Store) -> None:
    async def run() -> None:
        async with AsyncStore(store) as plain:
            bound = plain.for_user("ann")
            await bound.create("a")
            assert await bound.count() == 1
            with pytest.raises(SessionNotFound):
                await bound.get("b")

    asyncio.run(run())
