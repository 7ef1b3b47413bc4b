"""Sessions that get another user, or that another user creates, while a store for one user works on them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from support.databases import MakeDatabase
from support.following import follower, until_waiting
from support.locks import until_one_waits

from lango_store import Ended, Message, SessionNotFound, Store
from lango_store.testing import Clock

SHORT = timedelta(seconds=1)


@pytest.mark.parametrize("reads", [False, True])
def test_follower_ends_when_the_session_gets_another_user(store: Store, reads: bool) -> None:
    """With `reads`, an unbound reader shares the events of the session with the follower."""
    store.create("k", user_id="ann", messages=[Message.user("Hello")])
    ann = store.for_user("ann")
    with follower(ann) as bound, follower(store) as unbound:
        until_waiting(store, 2)
        store.append_message("k", Message.user("of ann"))
        assert len(bound.wait_for_messages(2)) == 2
        store.conversation("k").update(user_id="bob")
        if reads:
            store.append_message("k", Message.user("of bob"))
            unbound.wait_for_messages(3)
        bound.wait(lambda: bound.has_ended)
        store.append_message("k", Message.user("secret"))
        unbound.wait_for_messages(3 + reads)
        assert [message.content for message in bound.messages] == ["Hello", "of ann"]
        assert isinstance(bound.events[-1], Ended)
        assert bound.events[-1].reason == "deleted"


def test_cursor_of_another_users_session_ends_at_once(store: Store) -> None:
    store.create("k", user_id="bob", messages=[Message.user("secret")])
    cursor = [*store.conversation("k").tail(follow=False)][-1].cursor
    (event,) = store.for_user("ann").conversation("k").tail(after=cursor)
    assert isinstance(event, Ended)
    with pytest.raises(SessionNotFound):
        next(store.for_user("ann").conversation("k").tail())


def test_turn_cannot_write_after_the_session_got_another_user(store: Store) -> None:
    conversation = store.for_user("ann").open("k")
    turn = conversation.turn("t").begin()
    turn.append(Message.user("Hello"))
    derived = store.for_user("ann").in_turn(turn)
    store.conversation("k").update(user_id="bob")
    before = store.get("k")
    for call in (
        lambda: turn.write("secret"),
        lambda: turn.append(Message.user("x")),
        lambda: turn.append_messages([Message.user("x")], replace_after=0),
        turn.flush,
        turn.take_inbox,
        turn.save,
        lambda: derived.create("other"),
    ):
        with pytest.raises(SessionNotFound):
            call()
    assert store.get("k") == before
    assert not store.exists("other")


def test_turn_of_another_user_gives_no_access(store: Store) -> None:
    bobs = store.open("k", user_id="bob").turn("t", lease=timedelta(minutes=1)).begin()
    derived = store.for_user("ann").in_turn(bobs)
    until = store.conversation("k").turns.in_progress()
    with pytest.raises(SessionNotFound):
        derived.create("a")
    assert store.conversation("k").turns.in_progress() == until
    assert not store.exists("a")


def test_write_that_waits_for_a_change_of_the_user_finds_no_session(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, ThreadPoolExecutor() as threads:
        store.create("k", user_id="ann")
        with store.transaction() as tx:
            tx.conversation("k").update(user_id="bob")
            append = threads.submit(store.for_user("ann").append_message, "k", Message.user("x"))
            until_one_waits(store.engine)
        with pytest.raises(SessionNotFound):
            append.result()
        assert store.get("k").messages == []


CREATES: dict[str, Callable[[Store], object]] = {
    "open": lambda ann: ann.open("k"),
    "open with messages": lambda ann: ann.open("k", messages=[Message.user("x")], renew=True),
    "append_message": lambda ann: ann.append_message("k", Message.user("x"), create=True),
    "append_message with an id": lambda ann: ann.append_message("k", Message.user("x", id="m"), create=True),
    "save_turn": lambda ann: ann.conversation("k").save_turn([Message.user("x")], id="t", create=True),
}


@pytest.mark.parametrize("name", CREATES)
def test_session_that_another_user_creates_between_the_checks_is_not_found(
    make_postgres: MakeDatabase, name: str
) -> None:
    url = make_postgres()
    pending = [Message.user("secret", id="m")]

    def create(statement: str, _: float) -> None:
        """Create the session after the check whether its key is taken."""
        if statement.startswith("SELECT lango_session.key") and "user_id" not in statement and pending:
            other.create("k", user_id="bob", messages=[pending.pop()])

    with Store(url) as other, Store(url, on_statement=create) as store:
        with pytest.raises(SessionNotFound):
            CREATES[name](store.for_user("ann"))
        assert not pending
        assert [message.content for message in other.get("k").messages] == ["secret"]
        assert other.get("k").user_id == "bob"


@pytest.mark.parametrize("name", CREATES)
def test_session_that_the_user_creates_between_the_checks_is_found(make_postgres: MakeDatabase, name: str) -> None:
    url = make_postgres()
    pending = ["ann"]

    def create(statement: str, _: float) -> None:
        """Create the session after the first of the two checks."""
        if statement.startswith("SELECT lango_session.key") and "user_id" in statement and pending:
            other.create("k", user_id=pending.pop())

    with Store(url) as other, Store(url, on_statement=create) as store:
        CREATES[name](store.for_user("ann"))
        assert not pending
        assert other.count(user_id="ann") == 1


@pytest.mark.parametrize("renew", [False, True])
def test_expired_session_of_another_user_is_not_replaced(store: Store, clock: Clock, renew: bool) -> None:
    store.create("k", user_id="bob", ttl=SHORT, messages=[Message.user("secret")])
    clock.move(days=1)
    ann = store.for_user("ann")
    for call in (
        lambda: ann.open("k", renew=renew),
        lambda: ann.create("k"),
        lambda: ann.append_message("k", Message.user("x"), create=True),
        lambda: ann.touch("k"),
        lambda: ann.get("k", expired=True),
    ):
        with pytest.raises(SessionNotFound) as error:
            call()
        assert type(error.value) is SessionNotFound
    assert ann.count(expired=None) == 0
    assert [message.content for message in store.get("k", expired=True).messages] == ["secret"]
