"""The programs and the query on the page about usage and cost, on both databases."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.commands import run
from support.pages import PAGES, blocks
from support.processes import run_program

from lango_store import Message, Store
from lango_store._values.usage import _SPELLINGS

PAGE: Final = "docs/howto/usage.md"
(QUERY,) = blocks(PAGE, "sql")
PRINTED, PRINTED_BUDGET = blocks(PAGE, "text")
DAY: Final = datetime(2026, 11, 25, 12, tzinfo=UTC)

needs_arrow = pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 38), reason="this SQLite has no operator ->>")


def report(store: Store) -> list[tuple[Any, ...]]:
    """Return the rows of the query, with days as text."""
    with store.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
        return [(str(day), *others) for day, *others in connection.execute(sa.text(QUERY))]


def save(store: Store, key: str, user: str, tokens: int) -> None:
    store.open(key, user_id=user).save_turn([Message.user("Hello")], {"input_tokens": tokens, "output_tokens": 40})


@needs_arrow
def test_query_on_the_usage_page_returns_the_sums_of_store_usage(empty_url: str) -> None:
    time = DAY
    with Store(empty_url, migrate=True, clock=lambda: time) as store:
        for user, tokens in (("ann", 1200), ("ann", 300), ("bob", 500)):
            save(store, f"chat:{user}", user, tokens)
        time += timedelta(hours=1)
        store.conversation("chat:ann").fork("fork")
        save(store, "fork", "ann", 10)
        rows = store.usage(["day", "user_id"])
        assert report(store) == [(row.day, row.user_id, row.input_tokens, row.output_tokens) for row in rows]
        assert rows[0].input_tokens == 1510


@pytest.mark.slow
def test_program_on_the_usage_page_prints_the_output_on_the_page(tmp_path: Path) -> None:
    program, *_ = blocks(PAGE, "python")
    done = run_program(program, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, PRINTED), done.stderr
    shown = run("sessions", "show", "chat:ann", "--url", f"sqlite:///{tmp_path}/agent.db")
    assert "1500" in shown.stdout.replace(",", "")


@pytest.mark.slow
def test_program_on_budgets_prints_the_output_on_the_page(tmp_path: Path) -> None:
    (program,) = [each for each in blocks(PAGE, "python") if "Budget" in each]
    done = run_program(program, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, PRINTED_BUDGET), done.stderr
    listed = run("budgets", "--url", f"sqlite:///{tmp_path}/agent.db").stdout
    assert listed.startswith("user:ann\t")
    assert "\ttokens\t1000\t720\t0\t280\t" in listed


def test_usage_page_lists_the_names_of_token_counts() -> None:

    page = PAGES[PAGE]
    for name, paths in _SPELLINGS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert all(f"`{part}`" in row for path in paths for part in path.split("."))
