"""Foreign keys of a host to the session table: they block the purge of the referenced sessions only."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run
from support.databases import not_on_a_cluster
from support.factories import messages
from support.statements import watched

from lango_store import ExpiryReport, SessionHeld, SessionNotFound, Store
from lango_store._rooms.expiry import purging
from lango_store.tables import SessionRow
from lango_store.testing import Clock

DAY = timedelta(days=1)


def ticket(engine: sa.Engine, *keys: str, also: str = "", **options: Any) -> None:
    """Create a host table whose rows reference sessions."""
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


def named(engine: sa.Engine, constraint: str = "fk_ticket of ticket") -> str:
    """Return the name of a foreign key in errors; SQLite does not report it."""
    is_sqlite = engine.dialect.name == "sqlite"
    return "SQLite: FOREIGN KEY constraint failed" if is_sqlite else f"foreign key {constraint}"


@pytest.mark.slow
@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
@pytest.mark.parametrize("options", [{}, {"ondelete": "RESTRICT"}, {"deferrable": True, "initially": "DEFERRED"}])
@pytest.mark.parametrize("batch_size", [1, 500])
def test_purge_skips_and_reports_sessions_that_foreign_keys_reference(
    store: Store, engine: sa.Engine, clock: Clock, options: dict[str, Any], batch_size: int
) -> None:
    due(store, clock, "a", "held", "held too", "z")
    ticket(engine, "held", "held too", **options)
    report = store.expire(batch_size=batch_size, limit=2)
    assert (report.sessions, report.messages) == (2, 4)
    again = store.expire(batch_size=batch_size)
    assert (again.sessions, again.held) == (0, dict.fromkeys(("held", "held too"), named(engine)))
    assert store.expire(user_id="bob").held == {}
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM ticket")
    assert (store.expire().sessions, store.expire().held) == (2, {})


def test_purge_reads_no_foreign_keys_if_no_session_is_expired(store: Store) -> None:
    with watched(store.engine) as statements:
        store.count()  # with the checks of a first call
        statements.clear()
        store.expire()
    catalogs = re.compile("foreign_key|pg_constraint|information_schema|sqlite_master WHERE type")
    assert statements
    assert not list(filter(catalogs.search, statements))


@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_purge_reports_batches_of_only_referenced_sessions_and_raises_above_a_limit(
    store: Store, engine: sa.Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(store, clock, "held", "z")
    ticket(engine, "held", "z")
    reported: list[ExpiryReport] = []
    store.expire(batch_size=1, on_batch=reported.append)
    assert [list(each.held) for each in reported] == [["held"], ["held", "z"]]
    monkeypatch.setattr(purging, "_MAX_HELD", 1)
    with pytest.raises(SessionHeld, match="2 sessions are held by"):
        store.expire()


@pytest.mark.slow
@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_session_that_a_foreign_key_references_is_not_archived(
    store: Store, engine: sa.Engine, clock: Clock, tmp_path: Path
) -> None:
    due(store, clock, "a", "held")
    ticket(engine, "held")
    report = store.expire(archive=tmp_path / "cold.db")
    assert (report.sessions, report.held) == (1, {"held": named(engine)})
    with Store("sqlite://", migrate=True) as other:
        assert other.restore("a", tmp_path / "cold.db").key == "a"
        with pytest.raises(SessionNotFound):
            other.restore("held", tmp_path / "cold.db")


@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_purge_skips_a_session_if_its_messages_or_cascading_rows_are_referenced(
    store: Store, engine: sa.Engine, clock: Clock
) -> None:
    due(store, clock, "a", "cascade", "message")
    comment = (
        "CREATE TABLE comment (ticket INTEGER CONSTRAINT fk_comment REFERENCES ticket (number), "
        "session_key TEXT, seq BIGINT, CONSTRAINT fk_seq FOREIGN KEY (session_key, seq) REFERENCES lango_message)"
    )
    ticket(engine, "a", "cascade", also=comment, ondelete="CASCADE")
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO comment VALUES (2, NULL, NULL), (NULL, 'message', 2)")
    report = store.expire()
    held = {"cascade": named(engine, "fk_comment of comment"), "message": named(engine, "fk_seq of comment")}
    assert (report.sessions, report.held) == (1, held)


@pytest.mark.slow
@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_foreign_key_with_on_delete_set_null_does_not_prevent_the_purge(
    store: Store, engine: sa.Engine, clock: Clock
) -> None:
    due(store, clock, "a")
    ticket(engine, "a", ondelete="SET NULL")
    assert (store.expire().sessions, store.expire().held) == (1, {})


@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_delete_of_a_referenced_session_raises_session_held_with_the_foreign_key(
    store: Store, engine: sa.Engine
) -> None:
    store.create("a", user_id="ann")
    store.create("held", user_id="ann", messages=messages(2))
    ticket(engine, "held")
    with pytest.raises(SessionHeld, match=rf"'held' is held by {named(engine)}.*ON DELETE") as raised:
        store.delete("held")
    assert (raised.value.key, raised.value.constraint) == ("held", named(engine))
    with engine.begin() as connection, pytest.raises(SessionHeld, match=named(engine)):
        store.using(connection).delete("held")
    with pytest.raises(SessionHeld, match=named(engine)):
        store.delete_where(user_id="ann")
    assert not store.exists("a")
    assert len(store.get("held").messages) == 2


@pytest.mark.slow
@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_expire_command_names_sessions_that_foreign_keys_reference(url: str, engine: sa.Engine, clock: Clock) -> None:
    clock.move(days=-3650)
    with Store(url, clock=clock) as store:
        due(store, clock, "a", "held")
    ticket(engine, "held")
    done = run("expire", "--url", url, "--json")
    assert (done.returncode, json.loads(done.stdout)["held"], done.stderr) == (1, {"held": named(engine)}, "")
    done = run("expire", "--url", url)
    assert f"held is not purged: {named(engine)} references the session" in done.stderr
    assert run("sessions", "delete", "held", "--yes", "--url", url).returncode == 1
