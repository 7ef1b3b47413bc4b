"""Destructive commands: they list what they delete and ask, or require `--yes`."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from support.commands import run, run_on_terminal
from support.databases import MakeDatabase
from support.factories import messages

from lango_store import Store, schema
from lango_store._operations.session import levels
from lango_store.tables import SCHEMA_REVISION, Base

DAY = timedelta(days=1)


@pytest.fixture
def filled(url: str) -> str:
    with Store(url) as store:
        for number, user in enumerate(("ann", "ann", "bob")):
            store.create(f"chat:{number}", user_id=user, messages=messages(4))
            store.conversation(f"chat:{number}").save_turn(messages(1))
    return url


@pytest.mark.slow
def test_downgrade_command_lists_losses_and_requires_confirmation(filled: str) -> None:
    command = ("db", "downgrade", "base", "--url", filled)
    refused = run(*command)
    assert refused.returncode == 2
    told = " ".join(refused.stderr.replace("│", " ").split())
    assert "to base and dropping all 3 sessions" in told
    assert schema.current(filled) == SCHEMA_REVISION
    asked, code = run_on_terminal(*command, answer="n\n", columns=300)
    assert (code, "dropping all 3 sessions" in asked, "Continue?" in asked) == (1, True, True)
    assert schema.current(filled) == SCHEMA_REVISION
    assert run_on_terminal(*command, answer="y\n")[1] == 0
    assert schema.current(filled) is None


@pytest.mark.slow
def test_delete_command_prints_the_number_of_sessions_and_requires_confirmation(filled: str) -> None:
    for words, said in {
        ("chat:0",): "deleting 1 session",
        ("chat:0", "chat:1"): "deleting 2 sessions",
        ("--user", "ann"): "deleting 2 sessions",
        ("--prefix", "chat"): "deleting 3 sessions",
    }.items():
        refused = run("sessions", "delete", *words, "--url", filled)
        assert refused.returncode == 2
        assert said in " ".join(refused.stderr.replace("│", " ").split())
        with Store(filled) as store:
            assert store.count() == 3
    asked, code = run_on_terminal("sessions", "delete", "--user", "ann", "--url", filled, answer="n\n", columns=200)
    assert (code, "deleting 2 sessions" in asked) == (1, True)
    assert run_on_terminal("sessions", "delete", "--user", "ann", "--url", filled, answer="y\n")[1] == 0
    with Store(filled) as store:
        assert [info.key for info in store.iter_sessions()] == ["chat:2"]


@pytest.mark.slow
def test_delete_command_deletes_a_damaged_session(filled: str) -> None:
    with Store(filled) as store, store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET last_seq = -1 WHERE key = 'chat:0'")
    done = run("sessions", "delete", "--user", "ann", "--yes", "--url", filled)
    assert (done.stdout, done.returncode) == ("deleted 2 sessions\n", 0)


@pytest.mark.slow
def test_show_command_does_not_revive_an_expired_session(url: str) -> None:
    with Store(url, clock=lambda: datetime.now(UTC) - 9 * DAY) as store:
        store.create("old", ttl=DAY, messages=messages(2))
    assert run("sessions", "show", "old", "--url", url).returncode == 1
    for words in ((), ("--json",), ("--last", "1")):
        done = run("sessions", "show", "old", "--expired", *words, "--url", url)
        assert done.returncode == 0, done.stderr
    with Store(url) as store:
        assert store.exists("old") is False


def test_families_are_read_without_reading_all_sessions(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k")
        table = Base.metadata.tables["lango_session"]
        columns = ", ".join(each.name for each in table.c if each.computed is None and each.name != "key")
        numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)"
        rows = f"{numbers} SELECT 'k' || n, {columns} FROM lango_session, numbers"
        steps: list[None] = []
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO lango_session (key, {columns}) {rows}")
            connection.connection.driver_connection.set_progress_handler(lambda: steps.append(None), 1_000)  # type: ignore[union-attr]
            found = levels.families(connection, sa.select(table.c.key), [f"k{n}" for n in range(99, 0, -1)])
        assert [key for (key,) in found] == sorted(f"k{n}" for n in range(1, 100))
        assert len(steps) < 100
