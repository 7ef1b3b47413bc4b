"""A host's foreign keys to our tables: those that hold a session stop that session's purge, and no other's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import messages
from support.locks import until_one_waits

from lango_store import SessionHeld, SessionNotFound, Store, create_engine
from lango_store._operations import references
from lango_store.tables import SessionRow
from lango_store.testing import Clock

DAY = timedelta(days=1)


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = create_engine(url)
    yield made
    made.dispose()


def ticket(engine: sa.Engine, *keys: str, also: str = "", **options: Any) -> None:
    """Make a host's table whose rows refer to sessions."""
    reference = sa.ForeignKey(SessionRow.__table__.c.key, name="fk_ticket", **options)
    column: sa.Column[str] = sa.Column("session_key", reference)
    table = sa.Table("ticket", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True), column)
    with engine.begin() as connection:
        table.create(connection)
        if also:
            connection.exec_driver_sql(also)
        if keys:
            connection.execute(table.insert(), [{"session_key": key} for key in keys])


def due(store: Store, clock: Clock, *keys: str) -> None:
    for key in keys:
        store.create(key, user_id="ann", ttl=DAY, messages=messages(2))
    clock.move(days=2)


HELD = "foreign key fk_ticket of ticket"


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
@pytest.mark.parametrize("options", [{}, {"ondelete": "RESTRICT"}, {"deferrable": True, "initially": "DEFERRED"}])
def test_a_purge_goes_on_and_names_what_is_held(
    store: Store, engine: sa.Engine, clock: Clock, options: dict[str, Any]
) -> None:
    due(store, clock, "a", "held", "z")
    ticket(engine, "held", **options)
    assert store.expire(dry_run=True).sessions == 2
    report = store.expire(batch_size=1)
    assert (report.sessions, report.messages, report.held) == (2, 4, {"held": HELD})
    again = store.expire()
    assert (again.sessions, again.held) == (0, {"held": HELD})
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM ticket")
    assert (store.expire().sessions, store.expire().held) == (1, {})


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_only_what_would_go_is_named_and_not_more_than_a_report_can_show(
    store: Store, engine: sa.Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("alive")
    due(store, clock, "c", "b", "a")
    ticket(engine, "alive", "c", "b", "a")
    assert store.expire(dry_run=True).held.keys() == {"a", "b", "c"}
    assert store.expire(dry_run=True, user_id="bob").held == {}
    assert references.MAX_SHOWN == 1_000  # as ExpiryReport says
    monkeypatch.setattr(references, "MAX_SHOWN", 2)
    report = store.expire()
    assert (report.sessions, sorted(report.held)) == (0, ["a", "b"])


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_several_foreign_keys_together_name_no_more_than_a_report_can_show(
    store: Store, engine: sa.Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(store, clock, "a", "b", "c")
    ticket(engine, "a", also="CREATE TABLE note (about VARCHAR(512) REFERENCES lango_session (key))")
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO note VALUES ('b'), ('c')")
    monkeypatch.setattr(references, "MAX_SHOWN", 2)
    assert len(store.expire(dry_run=True).held) == 2


def test_what_a_row_that_lets_go_is_held_by_holds_no_session(store: Store, engine: sa.Engine, clock: Clock) -> None:
    due(store, clock, "a")
    comment = "CREATE TABLE comment (ticket INTEGER CONSTRAINT fk_comment REFERENCES ticket (number))"
    ticket(engine, "a", also=comment, ondelete="SET NULL")
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO comment SELECT number FROM ticket")
    assert (store.expire().sessions, store.expire().held) == (1, {})


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_rows_that_refer_to_one_another_hold_what_a_last_one_holds(
    store: Store, engine: sa.Engine, clock: Clock
) -> None:
    due(store, clock, "a", "held")
    comment = (
        "CREATE TABLE comment (number INTEGER PRIMARY KEY, ticket INTEGER REFERENCES ticket (number) ON DELETE CASCADE,"
        " of INTEGER REFERENCES comment (number) ON DELETE CASCADE)"
    )
    ticket(engine, "a", "held", also=comment, ondelete="CASCADE")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE pin (comment INTEGER, CONSTRAINT fk_pin FOREIGN KEY (comment) REFERENCES comment (number))"
        )
        connection.exec_driver_sql("INSERT INTO comment (number, ticket) SELECT 1, number FROM ticket WHERE number = 2")
        connection.exec_driver_sql("INSERT INTO comment (number, of) VALUES (2, 1)")
        connection.exec_driver_sql("INSERT INTO pin VALUES (2)")
    assert store.expire(dry_run=True).held == {"held": "foreign key fk_pin of pin"}


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_what_is_held_is_not_archived(store: Store, engine: sa.Engine, clock: Clock, tmp_path: Path) -> None:
    due(store, clock, "a", "held")
    ticket(engine, "held")
    report = store.expire(archive=tmp_path / "cold.db")
    assert (report.sessions, report.held) == (1, {"held": HELD})
    with Store("sqlite://", migrate=True) as other:
        assert other.restore(tmp_path / "cold.db", "a").key == "a"
        with pytest.raises(SessionNotFound):
            other.restore(tmp_path / "cold.db", "held")


HOLDING = {
    "behind a cascade": (
        "CREATE TABLE ticket (number INTEGER PRIMARY KEY, "
        "session_key TEXT REFERENCES lango_session (key) ON DELETE CASCADE)",
        "CREATE TABLE comment (ticket INTEGER, CONSTRAINT fk_comment FOREIGN KEY (ticket) REFERENCES ticket (number))",
        "INSERT INTO ticket VALUES (1, 'a'), (2, 'held')",
        "INSERT INTO comment VALUES (2)",
    ),
    "by another column than the primary key": (
        "CREATE TABLE ticket (number INTEGER PRIMARY KEY, code INTEGER UNIQUE, "
        "session_key TEXT REFERENCES lango_session (key) ON DELETE CASCADE)",
        "CREATE TABLE comment (ticket INTEGER, CONSTRAINT fk_comment FOREIGN KEY (ticket) REFERENCES ticket (code))",
        "INSERT INTO ticket VALUES (1, 20, 'held'), (20, 1, 'a')",
        "INSERT INTO comment VALUES (20)",
    ),
    "by a message": (
        "CREATE TABLE comment (session_key TEXT, seq BIGINT, CONSTRAINT fk_comment FOREIGN KEY (session_key, seq) "
        "REFERENCES lango_message (session_key, seq))",
        "INSERT INTO comment VALUES ('held', 2)",
    ),
}


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
@pytest.mark.parametrize("statements", HOLDING.values(), ids=list(HOLDING))
def test_expire_names_the_foreign_key_that_holds_a_session(
    store: Store, engine: sa.Engine, clock: Clock, statements: tuple[str, ...]
) -> None:
    due(store, clock, "a", "held")
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    report = store.expire()
    assert (report.sessions, report.held) == (1, {"held": "foreign key fk_comment of comment"})
    with pytest.raises(SessionNotFound):
        store.touch("a")


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
@pytest.mark.parametrize("does", ["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
def test_keys_written_with_their_column(store: Store, engine: sa.Engine, clock: Clock, does: str) -> None:
    due(store, clock, "a")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE note (session_key TEXT REFERENCES lango_session {does})")
        connection.exec_driver_sql("INSERT INTO note VALUES ('a')")
    assert (store.expire().sessions == 1) == bool(does)


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_deleting_what_is_held_names_what_holds_it(store: Store, engine: sa.Engine) -> None:
    store.create("a", user_id="ann")
    store.create("held", user_id="ann", messages=messages(2))
    ticket(engine, "held")
    with pytest.raises(SessionHeld, match=r"'held' is held by foreign key fk_ticket of ticket.*ON DELETE") as raised:
        store.delete("held")
    assert (raised.value.key, raised.value.constraint) == ("held", HELD)
    with engine.begin() as connection, pytest.raises(SessionHeld, match="fk_ticket"):
        store.using(connection).delete("held")
    with pytest.raises(SessionHeld, match="fk_ticket"):
        store.delete_where(user_id="ann")
    assert not store.exists("a")
    assert len(store.get("held").messages) == 2


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_the_command_names_what_is_held(url: str, engine: sa.Engine, clock: Clock) -> None:
    clock.move(days=-3650)
    with Store(url, clock=clock) as store:
        due(store, clock, "a", "held")
    ticket(engine, "held")
    done = run("expire", "--url", url, "--json")
    assert (done.returncode, json.loads(done.stdout)["held"]) == (1, {"held": HELD})
    assert "held stays: foreign key fk_ticket of ticket references it" in done.stderr
    assert run("sessions", "delete", "held", "--yes", "--url", url).returncode == 1


@not_on_a_cluster("Citus does not join a host's table on one node with distributed tables")
def test_a_purge_goes_on_past_a_row_that_comes_while_a_batch_waits_for_its_session(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with Store(url) as store, store.engine.connect() as host, ThreadPoolExecutor(1) as pool:
        for key in ("a", "held", "z"):
            store.create(key, user_id="ann")
        ticket(store.engine)
        host.exec_driver_sql("INSERT INTO ticket VALUES (1, 'held')")  # locks its session until the commit
        purging = pool.submit(store.delete_where, user_id="ann")
        until_one_waits(store.engine)
        host.commit()
        with pytest.raises(SessionHeld, match="'held' is held by foreign key fk_ticket of ticket"):
            purging.result()
        assert [info.key for info in store.iter_sessions()] == ["held"]
