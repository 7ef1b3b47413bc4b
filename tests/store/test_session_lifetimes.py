"""Reused session keys: each session with the same key has a unique incarnation number."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages

from lango_store import Conflict, Message, Store
from lango_store._operations.binds import SESSION, of_session
from lango_store.interchange import copying
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def incarnation(store: Store, key: str = "k") -> int:
    with store.engine.connect() as connection:
        query = sa.select(SESSION.c.incarnation).where(of_session(SESSION, key))
        return int(connection.execute(query).scalar_one())


@pytest.mark.slow
def test_every_way_to_create_a_session_assigns_a_unique_incarnation(
    store: Store, make_database: MakeDatabase, clock: Clock, tmp_path: Path
) -> None:
    store.create("created")
    store.open("got")
    store.open("opened", messages=messages(1)).fork("forked")
    store.create("k", ttl=HOUR)
    incarnations = {incarnation(store, key) for key in ("created", "got", "opened", "forked", "k")}
    clock.move(hours=1)
    store.open("k", ttl=HOUR, renew=True)
    incarnations.add(incarnation(store))
    clock.move(hours=1)
    store.expire(archive=tmp_path / "cold.db")
    store.restore("k", tmp_path / "cold.db")
    assert incarnation(store) in incarnations  # a restored session is the same session
    with Store(make_database(), clock=clock) as target, Store(store.engine, clock=clock) as source:
        assert copying.copy(source, target).complete
        assert copying.copy(source, target).already_there == 5
        incarnations.add(incarnation(target))
    assert len(incarnations) == 7
    assert all(0 < each < 2**63 for each in incarnations)


def test_compaction_conflicts_if_the_session_was_recreated(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))

    def summarize(window: list[Message]) -> list[Message]:
        store.delete("k")
        store.create("k", messages=[message("new session")] * 3)
        return [message("summary")]

    for discard in (False, True):
        with pytest.raises(Conflict, match="compact again"):
            conversation.compact(summarize, discard=discard)
        assert [m.content for m in store.conversation("k").messages()] == ["new session"] * 3


@pytest.mark.parametrize(
    ("between", "contents"),
    [
        (lambda other: other.append_message("k", message("late")), ["a", "b"]),
        (lambda other: other.conversation("k").pop_message(), ["a"]),
        (lambda other: other.conversation("k").edits.delete(1), ["b"]),
        (lambda other: other.conversation("k").clear(), []),
        (lambda other: (other.delete("k"), other.create("k", messages=[message("x"), message("y")])), ["x", "y"]),
    ],
)
def test_load_is_consistent_despite_a_write_between_its_statements(
    url: str, between: Callable[[Store], object], contents: list[str]
) -> None:
    pending: list[Callable[[Store], object]] = []

    def run_pending(_: str, __: float) -> None:
        while pending:
            pending.pop()(other)

    with Store(url) as other, Store(url, on_statement=run_pending) as store:
        other.create("k", messages=[message("a"), message("b")])
        store.ping()
        pending.append(between)
        session = store.get("k")
        assert pending == []
        assert [each.content for each in session.messages] == contents
        assert session.message_count == len(contents)
