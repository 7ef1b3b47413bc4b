"""The query on the page about usage and cost, on both databases."""

import re
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.commands import run
from support.pages import blocks
from support.processes import run_program

from lango_store import Message, Store

PAGE: Final = "docs/howto/usage.md"
(QUERY,) = blocks(PAGE, "sql")
PRINTED, TABLE = blocks(PAGE, "text")
DAY: Final = datetime(2026, 11, 25, 12, tzinfo=UTC)

needs_arrow = pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 38), reason="this SQLite has no operator ->>")


def report(store: Store) -> list[tuple[Any, ...]]:
    """Return the rows of the query, with days as text and dollars rounded."""
    with store.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
        rows = connection.execute(sa.text(QUERY)).all()
    return [
        (str(day), *tokens, None if usd is None else round(float(usd), 6), none) for day, *tokens, usd, none in rows
    ]


def save(store: Store, key: str, user: str, tokens: int, model: str = "gpt-x") -> None:
    usage = {"input_tokens": tokens, "output_tokens": 40}
    store.open(key, user_id=user).save_turn([Message.user("Hello")], usage, metadata={"model": model})


@needs_arrow
def test_query_returns_the_rows_on_the_page(empty_url: str) -> None:
    with Store(empty_url, migrate=True, clock=lambda: DAY) as store:
        for user, tokens in (("ann", 1200), ("ann", 300), ("bob", 500)):
            save(store, f"chat:{user}", user, tokens)
        cells = [re.findall(r"[^│\s]+", line) for line in TABLE.splitlines() if "2026" in line]
        shown = [(day, user, int(i), int(o), float(usd), int(none)) for day, user, i, o, usd, none in cells]
        assert report(store) == shown


@needs_arrow
def test_query_leaves_copied_turns_of_forks_out(empty_url: str) -> None:
    time = DAY
    with Store(empty_url, migrate=True, clock=lambda: time) as store:
        save(store, "k", "ann", 1000)
        time += timedelta(hours=1)
        store.conversation("k").fork("fork")
        save(store, "fork", "ann", 10)
        assert report(store) == [("2026-11-25", "ann", 1010, 80, 0.00266, 0)]


@needs_arrow
def test_query_counts_turns_without_price(empty_url: str) -> None:
    with Store(empty_url, migrate=True, clock=lambda: DAY) as store:
        save(store, "k", "ann", 1000, model="unknown")
        assert report(store) == [("2026-11-25", "ann", 1000, 40, None, 1)]


def test_program_prints_the_usage_on_the_page(tmp_path: Any) -> None:
    program, *_ = blocks(PAGE, "python")
    done = run_program(program, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, PRINTED), done.stderr
    shown = run("sessions", "show", "chat:ann", "--url", f"sqlite:///{tmp_path}/agent.db")
    assert "1500" in shown.stdout.replace(",", "")
