"""Shell scripts of the pages run in a real shell with real tools."""

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import messages
from support.pages import blocks
from support.postgres_server import programs
from support.processes import LANGO_STORE
from support.shell_commands import shell_commands

from lango_store import Message, Store, schema

pytestmark = pytest.mark.slow

SERVE = "from lango_store import Store; import os; Store(os.environ['LANGO_STORE_URL']).ping(); print('serving')"
"""The source of an application that needs the schema."""


@pytest.fixture
def path() -> Iterator[str]:
    """A PATH with `lango-store`, an application, the programs of PostgreSQL and the usual commands."""
    with shell_commands({"lango-store": LANGO_STORE, "serve": SERVE}) as folder:
        yield os.pathsep.join([str(folder), str(programs()), os.environ["PATH"]])


def start_shell(script: str, *words: str, path: str, folder: Path, url: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"PATH": path, "LANGO_STORE_URL": url, "NO_COLOR": "1"}
    command = ["sh", "-eu", "-c", script, "sh", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(shell: subprocess.Popen[str]) -> str:
    out, error = shell.communicate(timeout=100)
    assert shell.returncode == 0, error
    return out


def libpq_url(url: str) -> str:
    """Return a URL in the form that the programs of PostgreSQL accept."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def test_services_started_at_once_by_the_script_on_an_empty_database_all_serve(
    empty_url: str, path: str, tmp_path: Path
) -> None:
    (entry_point,) = (each for each in blocks("docs/production/migrations.md", "sh") if "exec" in each)
    shells = [start_shell(entry_point, "serve", path=path, folder=tmp_path, url=empty_url) for _ in range(2)]
    assert all("serving" in wait_for(shell) for shell in shells)


def test_upgrade_script_that_db_sql_printed_runs_under_another_role(
    make_postgres: MakeDatabase, path: str, tmp_path: Path
) -> None:
    url = make_postgres(migrated=False)
    (script,) = (each for each in blocks("docs/production/migrations.md", "sh") if "upgrade.sql" in each)
    for role in ("app", "owner"):
        script = script.replace(f"postgresql://agents_{role}@db/agents", f"'{libpq_url(url)}'")
    wait_for(start_shell(script, path=path, folder=tmp_path))
    assert schema.check(url) == []


@not_on_a_cluster("a search index is refused on distributed tables")
@pytest.mark.parametrize(("name", "namespace"), [("agents", "public"), ("tenant_a", "tenant_a"), ("store", "public")])
def test_restored_dump_is_complete_and_searchable(
    make_postgres: MakeDatabase, path: str, tmp_path: Path, name: str, namespace: str
) -> None:
    url, other = make_postgres(migrated=False), make_postgres(migrated=False)
    execute(url, f"CREATE SCHEMA IF NOT EXISTS {namespace}")
    execute(url, "CREATE TABLE public.application (id integer)")
    script, options = dump_script(name, url, other), f"&options=-csearch_path%3D{namespace}"
    fill_and_check(script, url + options, other + options, path, tmp_path)


def dump_script(name: str, url: str, other: str) -> str:
    """Return the script that makes and restores the dump of this name."""
    (script,) = (each for each in blocks("docs/howto/backups.md", "sh") if f"{name}.dump" in each)
    script = script.replace("postgresql://agents_owner@db/agents", f"'{libpq_url(url)}'")
    script = script.replace("postgresql://agents_owner@other/agents", f"'{libpq_url(other)}'")
    return script.partition("lango-store doctor")[0]  # doctor would report that the test server has no fsync


def fill_and_check(script: str, url: str, other: str, path: str, folder: Path) -> None:
    """Fill and index a store, run a script that copies it, and check the copy."""
    schema.upgrade(url)
    with Store(url, keep_removed=timedelta(1)) as store:
        store.create(
            "k", messages=[Message.user("Weather in Oslo? \x00\ud800", id="1"), *messages(3)], ttl=timedelta(1)
        )
        store.conversation("k").values.set({"step": 1})
        store.conversation("k").save_turn(messages(2), {"tokens": 3}, id="turn")
        store.conversation("k").fork("a fork")
        store.conversation("k").pop_message()
        schema.enable_search(store.engine)
        before = store.get("k"), store.conversation("k").values.get(), store.conversation("k").turns.list()
        store.append_message("a fork", Message.user("still in the queue"))
    wait_for(start_shell(script, path=path, folder=folder))
    with Store(other) as store:
        assert (store.get("k"), store.conversation("k").values.get(), store.conversation("k").turns.list()) == before
        assert [hit.seq for hit in store.search("oslo", key_prefix="k").items] == [1]
        store.append_message("k", Message.user("And in Bergen?"))
        assert [hit.key for hit in store.search("bergen").items] == ["k"]
        assert [hit.key for hit in store.search("queue").items] == ["a fork"]
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
        assert schema.check(store.engine) == []


def execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
