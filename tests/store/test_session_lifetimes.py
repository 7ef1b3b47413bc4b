"""A key may be used again: its lives are told apart by a number of their own, whatever the clock says."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages

from lango_store import Conflict, Message, Store
from lango_store._operations.binds import SESSION, of_session
from lango_store.archive import Archive
from lango_store.interchange import copying
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def incarnation(store: Store, key: str = "k") -> int:
    with store.engine.connect() as connection:
        query = sa.select(SESSION.c.incarnation).where(of_session(SESSION, key))
        return int(connection.execute(query).scalar_one())


def test_whatever_brings_a_session_into_being_gives_it_a_number_of_its_own(
    store: Store, make_database: MakeDatabase, clock: Clock, tmp_path: Path
) -> None:
    store.create("created")
    store.get_or_create("got")
    store.open("opened", messages=messages(1)).fork("forked")
    store.create("k", ttl=HOUR)
    found = {incarnation(store, key) for key in ("created", "got", "opened", "forked", "k")}
    clock.move(hours=1)
    store.get_or_create("k", ttl=HOUR, renew=True)
    found.add(incarnation(store))
    clock.move(hours=1)
    store.expire(archive=tmp_path / "cold.db")
    store.restore(tmp_path / "cold.db", "k")
    assert incarnation(store) in found  # it is the same session
    with Store(make_database(), clock=clock) as target, Store(store.engine, clock=clock) as source:
        assert copying.copy(source, target).complete
        assert copying.copy(source, target).already_there == 5
        found.add(incarnation(target))
    assert len(found) == 7
    assert all(0 < each < 2**63 for each in found)


def test_a_summary_begun_in_one_life_never_lands_in_another_of_the_same_time(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))

    def summarize(window: list[Message]) -> list[Message]:
        store.delete("k")
        store.create("k", messages=[message("another life")] * 3)
        return [message("summary")]

    for discard in (False, True):
        with pytest.raises(Conflict, match="compact again"):
            conversation.compact(summarize, discard=discard)
        assert [m.content for m in store.messages("k")] == ["another life"] * 3


def test_an_archive_keeps_two_lives_of_one_time_and_gives_the_later_one_back(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    cold, began = tmp_path / "cold.db", clock.time
    for life in ("first", "second"):
        clock.time = began
        store.create("k", ttl=HOUR, messages=[message(life)])
        clock.move(hours=2)
        store.expire(archive=cold)
    with Archive(cold) as archive:
        assert len(archive.search("first")) == len(archive.search("second")) == 1
    assert store.restore(cold, "k").messages[0].content == "second"


def test_one_life_is_archived_once_however_often_its_purge_is_tried(store: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    store.create("k", ttl=HOUR, messages=[message("once")])
    for _ in range(2):
        with Archive(cold, create=True) as archive, store.engine.connect() as connection:
            with archive.keeping(connection, ["k"], clock.time):
                pass
            assert archive.count(key_prefix="k") == (1, 1)


@pytest.mark.parametrize(
    ("between", "contents"),
    [
        (lambda other: other.append_message("k", message("late")), ["a", "b"]),
        (lambda other: other.conversation("k").pop_message(), ["a"]),
        (lambda other: other.conversation("k").delete_message(1), ["b"]),
        (lambda other: other.conversation("k").clear(), []),
        (lambda other: (other.delete("k"), other.create("k", messages=[message("x"), message("y")])), ["x", "y"]),
    ],
)
def test_a_load_shows_one_moment_whatever_comes_between_its_statements(
    url: str, between: Callable[[Store], object], contents: list[str]
) -> None:
    waiting: list[Callable[[Store], object]] = []

    def meanwhile(_: str, __: float) -> None:
        while waiting:
            waiting.pop()(other)

    with Store(url) as other, Store(url, on_statement=meanwhile) as store:
        other.create("k", messages=[message("a"), message("b")])
        store.ping()
        waiting.append(between)
        found = store.get("k")
        assert waiting == []
        assert [each.content for each in found.messages] == contents
        assert found.message_count == len(contents)
