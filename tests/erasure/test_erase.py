"""Erase a person: the sessions, shared values, copies in archives, and messages in the sessions of others."""

import itertools
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
from lango_store.tables import Base, SessionRow, ShareRow
from lango_store.testing import Clock

ANN: Final = "ann"
SHARED: Final = [name for name, table in Base.metadata.tables.items() if "scope" in table.c]


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
    plant_shared(store, "user:ann", holder="ann:live")
    before = counted(store, "ann:live", "ann:expired", "ann:live/child/child") | dict.fromkeys(SHARED, 1)
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
    room.suspensions.answer(room.suspensions.create().id, {"text": "secret"}, by=ANN, why="secret")
    own = store.open("own", user_id=ANN)
    own.append_message(Message.user("mine", author=ANN))
    planned = store.erase(ANN, authors=True, dry_run=True)
    receipt = store.erase(ANN, authors=True)
    redacted = {"lango_message": 2, "lango_removed_message": 1, "lango_inbox": 1, "lango_suspension": 1}
    assert (planned.redacted, receipt.redacted) == ({"store": redacted}, {"store": redacted})
    log = room.get(records=True).messages
    assert [(each.content, each.author, each.name) for each in log] == [
        ("of bob", "bob", None),
        ("(redacted)", None, None),
        (message().content, None, None),
        (None, None, None),
    ]
    assert [each.content for each in room.inbox.list()] == ["(redacted)", "of bob"]
    (answered,) = room.suspensions.list()
    assert (answered.answer, answered.answered_at is None) == (None, False)
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
    for useless in (store.erase(ANN), store.erase(ANN, digests=True, dry_run=True)):
        for each in (store, store.for_user(ANN)):
            with pytest.raises(ValueError, match="the receipt has no digests"):
                each.erase(receipt=useless)


def test_erase_refuses_calls_without_a_person_or_in_a_transaction(store: Store) -> None:
    store.create("a", user_id="")
    for arguments in ({}, {"authors": True, "keys": ["a"]}, {"user_id": ""}, {"user_id": "", "keys": ["b"]}):
        with pytest.raises(ValueError, match=r"person|user_id"):
            store.erase(**arguments)
    for one in ("keys", "scopes"):
        with pytest.raises(TypeError, match="one text: give a list"):
            store.erase(**{one: "a"})  # type: ignore[arg-type]
    assert store.exists("a")
    assert store.erase(keys=iter(["a"])).erased == {"store": {"lango_session": 1}}  # type: ignore[arg-type]
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
    signal.setitimer(signal.ITIMER_REAL, max(-int(sys.argv[1]), 0) / 1000)
    store.erase("ann", scopes=["user:ann"], authors=True, archives=sys.argv[3:])
"""
"""Erases ann, and is killed before a statement or, if the number is negative, after that number of milliseconds."""


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
        for user in (ANN, "bob"):
            store.conversation(f"{user}:{number}").share(by=user)
    store.create("room", user_id="bob", messages=[Message.user(f"{n}", author=(ANN, "bob")[n % 2]) for n in range(20)])
    store.shared_values("user:ann").set({"x": 1})
    others = {key: rows for key, rows in all_rows(store).items() if key.startswith("bob:")}
    moments = [choose.randrange(20, 200) for _ in range(8)] + [-choose.randrange(1, 200) for _ in range(8)]
    ends = Counter(run_program(ERASER, moment, url, cold).returncode for moment in moments)
    assert {*ends} <= {0, -signal.SIGKILL, -signal.SIGALRM}
    assert ends[-signal.SIGKILL] > 0
    assert store.erase(ANN, scopes=["user:ann"], authors=True, archives=[cold]).complete
    rows = all_rows(store)
    assert {key: rows[key] for key in others} == others
    assert {*rows} == {*others, "room"}
    assert [each.content for each in store.get("room").messages[::2]] == ["(redacted)"] * 10
    assert shared_rows(store) == []
    with Store(f"sqlite:///{cold}") as archived:
        assert [info.user_id for info in archived.iter_sessions()] == ["bob", "bob"]


@pytest.mark.slow
def test_erasure_ends_although_others_create_sessions_and_reports_these(url: str) -> None:
    with Store(url) as store:  # with the time of the database
        check_erasure_while_others_create_sessions(store)


def check_erasure_while_others_create_sessions(store: Store) -> None:
    for number in range(50):
        store.create(f"z:{number}", user_id=ANN, messages=messages(1))
    before = {info.key for info in store.iter_sessions()}
    ends = threading.Event()
    created: list[str] = []

    def write(number: int) -> None:
        for count in itertools.count():
            if ends.is_set():
                return
            key = f"a:{number}:{count}"  # sorts before the sessions that existed
            with suppress(SessionNotFound, Conflict):
                store.create(key, user_id=ANN, messages=messages(1))
                created.append(key)
                store.append_message(key, message())
                store.conversation(key).share()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(created) > 50)
        receipt = store.erase(ANN)
        seen = len(created)
        until(lambda: len(created) > seen)  # the writers are still writing
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert receipt.erased["store"]["lango_session"] >= len(before)
    assert before.isdisjoint(info.key for info in store.iter_sessions())
    assert (receipt.held, receipt.remaining > 0, receipt.complete) == ({}, True, False)
    last = store.erase(ANN)
    total = receipt.erased["store"]["lango_session"] + last.erased["store"]["lango_session"]
    assert total == len(before) + len(created)
    assert last.complete
    assert store.count(user_id=ANN) == 0
    with store.engine.connect() as connection:
        assert [*connection.execute(sa.select(ShareRow.__table__))] == []


def test_erase_reports_sessions_that_were_created_meanwhile(store: Store) -> None:
    for key in ("b", "c", "d"):
        store.create(key, user_id=ANN)
    store.create("other", user_id="bob")
    numbers = itertools.count()

    def create(connection: sa.Connection, _: str) -> None:
        store.using(connection).create(f"a:{next(numbers)}", user_id=ANN)

    receipt = store.erase(ANN, on_erase=create)
    assert receipt.erased == {"store": {"lango_session": 3}}
    assert (receipt.remaining, receipt.complete, receipt.held) == (3, False, {})
    assert store.erase(ANN).complete
    assert [info.key for info in store.iter_sessions()] == ["other"]


def test_erase_redacts_many_messages_of_an_author_in_one_session(store: Store) -> None:
    for count in (499, 500, 501, 1_001):
        store.create(f"room {count}", messages=[Message.user("secret", author=ANN) for _ in range(count)])
    assert store.erase(ANN, authors=True).redacted == {"store": {"lango_message": 2_501}}
    assert store.erase(ANN, authors=True).redacted == {}


@pytest.mark.slow
def test_erase_deletes_more_descendants_than_a_statement_has_parameters(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        store.create("ann", user_id="ann")
        table = Base.metadata.tables["lango_session"]
        columns = [each.name for each in table.c if each.computed is None and each.name not in ("key", "user_id")]
        children = f"SELECT 'ann/' || n, {', '.join(columns)} FROM lango_session, generate_series(1, 66000) n"
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO lango_session (key, {', '.join(columns)}) {children}")
        receipt = store.erase("ann")
        assert (receipt.complete, receipt.erased) == (True, {"store": {"lango_session": 66_001}})


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
        for key in ("a", "b"):
            store.create(key, user_id=ANN)
        _ticket(store.engine, "a")
        store.conversation("b").update(hold="case\x1b\n17")
    done = run("erase", "--user", ANN, "--yes", "--url", url)
    assert (done.returncode, "\x1b" in done.stdout, "hold: case\n" in done.stdout) == (1, False, False)
    assert "a is not erased: " in done.stderr
    assert "not erased: 1 session, " in done.stdout
