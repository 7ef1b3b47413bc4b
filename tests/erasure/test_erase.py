"""Erase a person: the sessions, shared values, copies in archives, and messages in the sessions of others."""

import signal
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest
import sqlalchemy as sa
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message, messages
from support.planted import plant, plant_shared
from support.polling import until
from support.processes import run_program
from support.rows import all_rows, shared_rows

from lango_store import Conflict, ErasureReceipt, InvalidFile, InvalidState, Message, SessionNotFound, Store
from lango_store._operations.session_tables import TABLES
from lango_store.interchange.copying import copy
from lango_store.tables import Base, SessionRow
from lango_store.testing import Clock

ANN: Final = "ann"


def counted(store: Store, *keys: str) -> dict[str, int]:
    """Count the rows of sessions by table."""
    counts: Counter[str] = Counter()
    with store.engine.connect() as connection:
        for table in Base.metadata.tables.values():
            for name in ("session_key", "key"):
                if name in table.c:
                    query = sa.select(sa.func.count()).select_from(table).where(table.c[name].in_(keys))
                    counts[table.name] += connection.execute(query).scalar_one()
    return {name: count for name, count in counts.items() if count}


def test_erase_deletes_all_rows_of_the_user_and_counts_them(store: Store) -> None:
    plant(store, "ann:live", ANN, expires_at=None)
    plant(store, "ann:expired", ANN)
    store.create("ann:live/child/child", messages=messages(2))
    store.create("bob", user_id="bob", messages=messages(2))
    plant_shared(store, "user:ann")
    before = counted(store, "ann:live", "ann:expired", "ann:live/child/child") | {"lango_shared_value": 1}
    assert {*before} >= {table.name for table in TABLES}
    others = all_rows(store)["bob"]
    planned = store.erase(ANN, scopes=["user:ann"], dry_run=True)
    assert (planned.erased, planned.dry_run, counted(store, "ann:expired") != {}) == ({"store": before}, True, True)
    receipt = store.erase(ANN, scopes=["user:ann"])
    assert (receipt.erased, receipt.complete, receipt.redacted) == ({"store": before}, True, {})
    assert all_rows(store) == {"bob": others}
    assert shared_rows(store) == []
    assert store.erase(ANN, scopes=["user:ann"]).erased == {"store": {}}


def test_erase_deletes_further_sessions_by_key(store: Store) -> None:
    for key in ("a", "a/child", "b"):
        store.create(key)
    assert store.erase(keys=["a", "missing"]).erased == {"store": {"lango_session": 2}}
    assert store.exists("b")


def test_erase_deletes_copies_in_archives(store: Store, tmp_path: Path) -> None:
    for user in (ANN, "bob", None):
        for number in range(2):  # the archive gives another key to the first session
            store.create(f"of {user}", user_id=user, messages=messages(1))
            store.create(f"of {user}/child", messages=messages(number))
            store.expire(created_before=store._context.clock_time().replace(year=2100), archive=tmp_path / "cold.db")
    receipt = store.erase(ANN, keys=["of None"], archives=[tmp_path / "cold.db"])
    assert receipt.erased == {"store": {}, "archive 1": {"lango_session": 8, "lango_message": 6}}
    with Store(f"sqlite:///{tmp_path}/cold.db") as cold:
        assert cold.count(expired=None) == 4
        assert all(info.key.startswith("of bob") for info in cold.iter_sessions())


def test_erase_with_a_missing_archive_changes_nothing(store: Store, tmp_path: Path) -> None:
    store.create("a", user_id=ANN)
    with pytest.raises(InvalidFile):
        store.erase(ANN, archives=[tmp_path / "missing.db"])
    assert store.exists("a")


def test_erase_redacts_messages_of_the_author_elsewhere(keeping: Store) -> None:
    store = keeping
    room = store.open("room", user_id="bob")
    room.append_messages([message("of bob", author="bob"), Message.user("secret", author=ANN, name="Ann"), message()])
    room.append_message(Message(role="record", content="secret", author=ANN))
    room.inbox.put(Message.user("secret", author=ANN, id="w"))
    room.inbox.put(Message.user("of bob", author="bob"))
    room.append_message(Message.user("secret, removed", author=ANN))
    room.edits.delete(5)
    own = store.open("own", user_id=ANN)
    own.append_message(Message.user("mine", author=ANN))
    planned = store.erase(ANN, authors=True, dry_run=True)
    receipt = store.erase(ANN, authors=True)
    redacted = {"lango_message": 2, "lango_removed_message": 1, "lango_inbox": 1}
    assert (planned.redacted, receipt.redacted) == ({"store": redacted}, {"store": redacted})
    log = room.get(records=True).messages
    assert [(each.content, each.author, each.name) for each in log] == [
        ("of bob", "bob", None),
        ("(redacted)", None, None),
        (message().content, None, None),
        (None, None, None),
    ]
    assert [each.content for each in room.inbox.list()] == ["(redacted)", "of bob"]
    with store.engine.connect() as connection:
        rows = str([connection.execute(sa.select(each)).all() for each in Base.metadata.tables.values()])
    assert "secret" not in rows
    assert "'ann'" not in rows
    assert store.erase(ANN, authors=True).redacted == {}


def test_erase_redacts_messages_in_expired_sessions(store: Store, clock: Clock) -> None:
    store.create("room", ttl=timedelta(days=1), messages=[Message.user("secret", author=ANN)])
    clock.move(days=2)
    assert store.erase(ANN, authors=True).redacted == {"store": {"lango_message": 1}}
    assert store.get("room", expired=True).messages[0].content == "(redacted)"


def _ticket(engine: sa.Engine, *keys: str) -> sa.Table:
    column: sa.Column[str] = sa.Column("session_key", sa.ForeignKey(SessionRow.__table__.c.key, name="fk_ticket"))
    table = sa.Table("ticket", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True), column)
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), [{"session_key": key} for key in keys])
    return table


def test_erase_reports_sessions_that_a_foreign_key_holds(store: Store) -> None:
    for key in ("a", "a/child", "b", "c"):
        store.create(key, user_id=ANN, messages=messages(1))
    _ticket(store.engine, "b", "a/child")
    receipt = store.erase(ANN)
    assert receipt.erased == {"store": {"lango_session": 1, "lango_message": 1}}
    assert {*receipt.held} == {"a", "a/child", "b"}
    assert [*receipt.reasons.values()] == [3]
    assert (receipt.complete, receipt.remaining) == (False, 0)
    assert all(key not in receipt.model_dump_json() for key in ('"a"', '"b"'))


def test_erase_calls_a_function_in_the_transaction_of_each_session(store: Store) -> None:
    for key in ("a", "a/child", "b"):
        store.create(key, user_id=ANN)
    table = _ticket(store.engine, "a/child", "b")

    def delete(connection: sa.Connection, key: str) -> None:
        connection.execute(table.delete().where(table.c.session_key == key))
        if key == "b" and fails:
            raise RuntimeError

    fails = True
    with pytest.raises(RuntimeError):
        store.erase(ANN, on_erase=delete)
    assert store.count() == 3
    fails = False
    assert store.erase(ANN, on_erase=delete).complete
    with store.engine.connect() as connection:
        assert connection.execute(sa.select(table)).all() == []


def test_receipt_erases_the_same_sessions_from_a_restored_backup(
    store: Store, clock: Clock, make_database: MakeDatabase
) -> None:
    for number in range(3):
        store.create(f"k{number}", user_id=ANN if number else "bob", messages=messages(2))
    with Store(make_database(), clock=clock) as backup:
        copy(store, backup)
        receipt = ErasureReceipt.model_validate_json(store.erase(ANN, digests=True).model_dump_json())
        assert len(receipt.digests) == 2
        clock.move(seconds=1)
        store.create("k1", user_id="bob")  # a later session with the same key
        assert store.erase(receipt=receipt).erased == {"store": {}}
        assert backup.erase(receipt=receipt).erased == {"store": {"lango_session": 2, "lango_message": 4}}
        assert [info.key for info in backup.iter_sessions()] == ["k0"]


def test_erase_refuses_calls_without_a_person_or_in_a_transaction(store: Store) -> None:
    for arguments in ({}, {"authors": True, "keys": ["a"]}, {"user_id": ""}):
        with pytest.raises(ValueError, match=r"person|user_id"):
            store.erase(**arguments)
    with store.transaction() as tx, pytest.raises(InvalidState):
        tx.erase(ANN)


def test_store_for_a_user_erases_only_the_sessions_of_the_user(store: Store) -> None:
    for key, user in (("a", ANN), ("a/child", ANN), ("a/other", "bob"), ("a/none", None), ("b", "bob")):
        store.create(key, user_id=user)
    store.shared_values("user:ann").set({"x": 1})
    own = store.for_user(ANN)
    with pytest.raises(ValueError, match="for user"):
        own.erase("bob")
    for arguments in ({"authors": True}, {"scopes": ["user:bob"]}):
        with pytest.raises(InvalidState):
            own.erase(**arguments)
    receipt = own.erase(keys=["b"], scopes=["user:ann"])
    assert receipt.erased == {"store": {"lango_session": 2, "lango_shared_value": 1}}
    assert [info.key for info in store.iter_sessions()] == ["a/none", "a/other", "b"]


ERASER: Final = """
import itertools, os, signal, sys
import sqlalchemy as sa
from lango_store import Store
from lango_store._rooms.erasure import erasing

erasing._BATCH = 3
statements = itertools.count()

@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def kill(*_):
    if next(statements) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

with Store(sys.argv[2]) as store:
    store.erase("ann", scopes=["user:ann"], authors=True, archives=sys.argv[3:])
"""
"""Erases ann, and is killed before one of its statements."""


@pytest.mark.slow
def test_killed_erasure_can_be_repeated(store: Store, url: str, tmp_path: Path) -> None:
    choose = Random(7)
    cold = tmp_path / "cold.db"
    for number in range(4):
        store.create(f"cold:{number}", user_id=(ANN, "bob")[number % 2], messages=messages(3))
    store.expire(created_before=store._context.clock_time().replace(year=2100), archive=cold)
    for number in range(40):
        store.create(f"ann:{number}", user_id=ANN, messages=messages(20))
        store.create(f"bob:{number}", user_id="bob", messages=messages(20))
    store.create("room", user_id="bob", messages=[Message.user(f"{n}", author=(ANN, "bob")[n % 2]) for n in range(20)])
    store.shared_values("user:ann").set({"x": 1})
    others = {key: rows for key, rows in all_rows(store).items() if key.startswith("bob:")}
    for _ in range(8):
        assert run_program(ERASER, choose.randrange(20, 200), url, cold).returncode in (0, -signal.SIGKILL)
    assert store.erase(ANN, scopes=["user:ann"], authors=True, archives=[cold]).complete
    rows = all_rows(store)
    assert {key: rows[key] for key in others} == others
    assert {*rows} == {*others, "room"}
    assert [each.content for each in store.get("room").messages[::2]] == ["(redacted)"] * 10
    assert shared_rows(store) == []
    with Store(f"sqlite:///{cold}") as archived:
        assert [info.user_id for info in archived.iter_sessions()] == ["bob", "bob"]


@pytest.mark.slow
def test_sessions_created_during_an_erasure_are_erased_or_reported(store: Store) -> None:
    ends = threading.Event()
    created: list[str] = []

    def write(number: int) -> None:
        for count in range(1_000):
            if ends.is_set():
                return
            key = f"{number}:{count}"
            with suppress(SessionNotFound, Conflict):
                store.create(key, user_id=ANN, messages=messages(1))
                created.append(key)
                store.append_message(key, message())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(created) > 50)
    receipt = store.erase(ANN)
    ends.set()
    for thread in threads:
        thread.join()
    assert receipt.erased["store"]["lango_session"] > 0
    assert receipt.held == {}
    last = store.erase(ANN)
    total = receipt.erased["store"]["lango_session"] + last.erased["store"].get("lango_session", 0)
    assert total == len(created)
    assert last.complete
    assert store.count(user_id=ANN) == 0


@pytest.mark.slow
def test_erase_command_writes_a_receipt_that_a_later_command_reads(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        store.create("a", user_id=ANN, messages=messages(2))
    assert run("erase", "--url", url).returncode == 2
    assert run("erase", "--user", ANN, "--url", url).returncode == 2  # needs --yes
    done = run("erase", "--user", ANN, "--dry-run", "--url", url)
    assert done.stdout == "would be erased in store: 2 lango_message, 1 lango_session\n"
    done = run("erase", "--user", ANN, "--yes", "--digests", "--json", "--url", url)
    receipt = ErasureReceipt.model_validate_json(done.stdout)
    assert receipt.erased == {"store": {"lango_session": 1, "lango_message": 2}}
    file = tmp_path / "receipt.json"
    file.write_text(done.stdout)
    done = run("erase", "--receipt", str(file), "--yes", "--url", url)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "erased in store: no rows")
    file.write_text("{")
    assert run("erase", "--receipt", str(file), "--yes", "--url", url).returncode == 1


@pytest.mark.slow
def test_erase_command_names_held_sessions_on_standard_error(url: str) -> None:
    with Store(url) as store:
        store.create("a", user_id=ANN)
        _ticket(store.engine, "a")
    done = run("erase", "--user", ANN, "--yes", "--url", url)
    assert done.returncode == 1
    assert "a is not erased: " in done.stderr
    assert "not erased: 1 session, " in done.stdout
