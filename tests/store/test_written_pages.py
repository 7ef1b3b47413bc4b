"""What appends and other frequent writes store: pages of SQLite's log, and bytes of PostgreSQL's log."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.postgres_server import PostgresServer

from lango_store import Message, Store, create_engine, schema
from lango_store.testing import Clock

TEXT = "x" * 190
SESSIONS = 200
WRITES = 400
_PAGE, _HEADER = 4_096 + 24, 32
KEYS = [f"session-{number:03}" for number in range(SESSIONS)]


def fill(store: Store, *, of_users: bool, ttl: timedelta | None) -> None:
    for number, key in enumerate(KEYS):
        user, agent = (f"user{number % 20}", f"agent{number % 3}") if of_users else (None, None)
        store.create(key, ttl=ttl, user_id=user, agent_id=agent)


@contextmanager
def pages(path: Path) -> Iterator[list[float]]:
    """Count the pages of the log per write, during `WRITES` writes."""
    counted: list[float] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        reader.execute("BEGIN")
        reader.execute("SELECT 1 FROM lango_session").fetchone()  # an open snapshot: the log is not restarted
        yield counted
        counted.append((path.with_name(f"{path.name}-wal").stat().st_size - _HEADER) / _PAGE / WRITES)


def append(store: Store, key: str, number: int) -> None:
    store.append_message(key, Message.user(TEXT))


def append_with_id(store: Store, key: str, number: int) -> None:
    store.append_message(key, Message.user(TEXT, id=f"{number:08}"))


def save_turn(store: Store, key: str, number: int) -> None:
    store.conversation(key).save_turn([Message.user(TEXT)])


def turn(store: Store, key: str, number: int) -> None:
    with store.conversation(key).turn() as turn:
        turn.append(Message.user(TEXT))


def draft(store: Store, key: str, number: int) -> None:
    with store.conversation(key).turn() as turn:
        turn.write(TEXT)


def put(store: Store, key: str, number: int) -> None:
    store.conversation(key).inbox.put(Message.user(TEXT))


@pytest.mark.parametrize("ttl", [None, timedelta(days=7)], ids=["no TTL", "TTL"])
@pytest.mark.parametrize("of_users", [False, True], ids=["plain", "of users"])
@pytest.mark.parametrize(
    ("write", "most"),
    [(append, 3.2), (append_with_id, 4.3), (save_turn, 5.3), (turn, 14.9), (draft, 11.4), (put, 3.9)],
)
def test_write_changes_few_pages(
    make_sqlite: MakeDatabase,
    clock: Clock,
    write: Callable[[Store, str, int], None],
    most: float,
    of_users: bool,
    ttl: timedelta | None,
) -> None:
    url = make_sqlite()
    with Store(url, clock=clock) as store:
        fill(store, of_users=of_users, ttl=ttl)
        with pages(Path(sa.make_url(url).database or "")) as counted:
            for number in range(WRITES):
                write(store, KEYS[number * 67 % SESSIONS], number)
    assert counted[0] <= most


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Start a separate server: a transaction left open in another database keeps dead rows in pages."""
    server = PostgresServer()
    yield server
    server.stop()


def test_append_writes_few_bytes_and_is_a_hot_update(server: PostgresServer, clock: Clock) -> None:
    engine = create_engine(server.url(), pool_size=1)
    schema.upgrade(engine)
    rounds = 50
    with Store(engine, clock=clock) as store:
        fill(store, of_users=True, ttl=timedelta(days=1, minutes=2))
        store.append_message(KEYS[0], Message.user(TEXT))
        with engine.connect() as connection:
            before = connection.exec_driver_sql("SELECT pg_current_wal_insert_lsn()").scalar_one()
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        with engine.connect() as connection:
            stats = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'lango_session'"
            updated, hot = connection.exec_driver_sql(stats).one()
        for _ in range(rounds):
            clock.move(seconds=6)  # ten appends a minute
            for key in KEYS:
                store.append_message(key, Message.user(TEXT))
        with engine.connect() as connection:
            written = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %(before)s::pg_lsn)"
            size = connection.exec_driver_sql(written, {"before": before}).scalar_one()
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        with engine.connect() as connection:
            after, hot_after = connection.exec_driver_sql(stats).one()
    engine.dispose()
    assert after - updated == rounds * SESSIONS
    assert (hot_after - hot) / (after - updated) >= 0.95
    assert size / rounds / SESSIONS <= 800
