"""Scripts of the pages in a real shell, with real tools, on both databases where they say so."""

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

SERVE = "from lango_store import Store; import os; Store(os.environ['LANGO_STORE_URL']).ping(); print('serving')"
"""An application that needs the schema."""


@pytest.fixture
def path() -> Iterator[str]:
    """Where a shell finds our command, an application, PostgreSQL's own, and what is in every shell."""
    with shell_commands({"lango-store": LANGO_STORE, "serve": SERVE}) as folder:
        yield os.pathsep.join([str(folder), str(programs()), os.environ["PATH"]])


def started(script: str, *words: str, path: str, folder: Path, url: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"PATH": path, "LANGO_STORE_URL": url, "NO_COLOR": "1"}
    command = ["sh", "-eu", "-c", script, "sh", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finished(shell: subprocess.Popen[str]) -> str:
    out, error = shell.communicate(timeout=100)
    assert shell.returncode == 0, error
    return out


def plain(url: str) -> str:
    """Return a URL as PostgreSQL's own programs take it."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def test_replicas_that_start_at_once_all_come_up(empty_url: str, path: str, tmp_path: Path) -> None:
    (entry_point,) = (each for each in blocks("docs/production/migrations.md", "sh") if "exec" in each)
    starting = [started(entry_point, "serve", path=path, folder=tmp_path, url=empty_url) for _ in range(2)]
    assert ["serving" in finished(each) for each in starting] == [True] * 2


def test_somebody_else_runs_what_an_upgrade_would(make_postgres: MakeDatabase, path: str, tmp_path: Path) -> None:
    url = make_postgres(migrated=False)
    (script,) = (each for each in blocks("docs/production/migrations.md", "sh") if "upgrade.sql" in each)
    for role in ("app", "owner"):
        script = script.replace(f"postgresql://agents_{role}@db/agents", f"'{plain(url)}'")
    finished(started(script, path=path, folder=tmp_path))
    assert schema.check(url) == []


@not_on_a_cluster("a search index is refused on distributed tables")
def test_a_dump_comes_back_whole_and_searchable(make_postgres: MakeDatabase, path: str, tmp_path: Path) -> None:
    url, other = make_postgres(), make_postgres(migrated=False)
    with Store(url) as store:
        store.create(
            "k", messages=[Message.user("Weather in Oslo? \x00\ud800", id="1"), *messages(3)], ttl=timedelta(1)
        )
        store.set_values("k", {"step": 1})
        store.conversation("k").save_turn(messages(2), {"tokens": 3}, id="turn")
        schema.enable_search(store.engine)
        before = store.get("k"), store.values("k"), store.conversation("k").turns()
    (script,) = (each for each in blocks("docs/howto/backups.md", "sh") if "pg_dump" in each)
    script = script.replace("postgresql://agents_owner@db/agents", f"'{plain(url)}'")
    script = script.replace("postgresql://agents_owner@other/agents", f"'{plain(other)}'")
    restored = script.partition("lango-store doctor")[0]  # which would find that this server has no fsync
    finished(started(restored, path=path, folder=tmp_path))
    with Store(other) as store:
        assert (store.get("k"), store.values("k"), store.conversation("k").turns()) == before
        assert [hit.seq for hit in store.search("oslo").items] == [1]
        store.append_message("k", Message.user("And in Bergen?"))
        assert [hit.seq for hit in store.search("bergen").items] == [7]
        assert [finding for finding in store.examine() if finding.name != "settings"] == []
