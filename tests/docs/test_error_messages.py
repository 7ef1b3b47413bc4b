"""Error messages and exit codes of the command line."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import messages

from lango_store import Store

API = re.compile(r"renew=|get_or_create|all_messages|Store\(|migrate=|give None|_\w+\(")
DAY = timedelta(days=1)


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    database = make_sqlite()
    with Store(database, clock=lambda: datetime.now(UTC) - 9 * DAY) as store:
        store.create("old", ttl=DAY)
        store.create("sick", messages=messages(3))
    with Store(database) as store, store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET role = 'nobody' WHERE session_key = 'sick' AND seq = 2")
    return database


def test_errors_of_commands_name_the_next_command_and_no_python_api(
    url: str, make_sqlite: MakeDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = make_sqlite(migrated=False)
    for words, database, expected in (
        (("sessions", "show", "old"), url, "sessions touch"),
        (("sessions", "show", "nobody"), url, "sessions list"),
        (("sessions", "touch", "nobody"), url, "sessions list"),
        (("export", "nobody", "old", "sick", "--to", "out"), url, "no session 'nobody'"),
        (("export", "sick", "--to", "out", "--format", "nanobot"), url, "message 2 of session 'sick'"),
        (("sessions", "list"), empty, "lango-store db upgrade"),
    ):
        done = run(*words, "--url", database)
        assert done.returncode == 1, done
        assert expected in done.stderr
        assert not API.search(done.stderr), done.stderr


def test_error_for_an_invalid_option_value_names_the_option(url: str) -> None:
    for words, option in (
        (("sessions", "touch", "old", "--ttl", "soon"), "--ttl"),
        (("sessions", "touch", "old", "--ttl", "200000d"), "--ttl"),
        (("sessions", "list", "--since", "last week"), "--since"),
        (("sessions", "list", "--since", "999999d"), "--since"),
        (("expire", "--older-than", "30"), "--older-than"),
        (("expire", "--older-than", "999999d"), "--older-than"),
        (("expire", "--created-before", "once"), "--created-before"),
        (("sessions", "restore", "k", "--archive", "cold.db", "--ttl", "1"), "--ttl"),
        (("export", "--all", "--to", "out", "--format", "zip"), "--format"),
        (("import", ".", "--format", "zip"), "--format"),
        (("stats", "--url", "postgresql://localhost:port/agents"), "--url"),
        (("stats", "--url", "nonsense"), "--url"),
    ):
        done = run(*words, environment={"LANGO_STORE_URL": url})
        assert done.returncode == 2, done
        assert option in done.stderr
        assert not API.search(done.stderr), done.stderr


def test_command_with_an_invalid_argument_exits_2(url: str) -> None:
    for words in (("sessions", "show", "x" * 513), ("sessions", "list", "--agent", "\ud800")):
        assert run(*words, "--url", url).returncode == 2


def test_import_of_a_missing_file_exits_1(url: str, tmp_path: Path) -> None:
    assert run("import", str(tmp_path / "missing"), "--url", url).returncode == 1
