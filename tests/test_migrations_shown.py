"""What is shown of a migration of a store in use: its SQL, to Alembic's own command line, on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from commands import run, run_on_terminal
from revisions import (
    NEWEST,
    ONLINE,
    SHOUTING,
    fill,
    value,
)

from lango_store import schema
from lango_store.tables import SCHEMA_REVISION


def test_sql_prints_each_revision_as_a_transaction_and_what_runs_in_batches(url: str, online: Path) -> None:
    script = schema.sql(url, NEWEST)
    assert "-- `lango-store db upgrade` runs this in batches of lango_message:" in script
    assert "UPDATE lango_message SET shout=upper(lango_message.role) WHERE lango_message.shout IS NULL;" in script
    concurrently = "CONCURRENTLY " if url.startswith("postgresql") else ""
    assert f"CREATE INDEX {concurrently}IF NOT EXISTS ix_lango_message_shout" in script
    assert script.count("BEGIN;") == script.count("COMMIT;") >= len(ONLINE)
    if concurrently:
        assert script.rindex("COMMIT;", 0, script.index("CONCURRENTLY")) > script.rindex(
            "BEGIN;", 0, script.index("CONCURRENTLY")
        )


def test_alembic_in_a_checkout_runs_the_same_revisions(
    url: str, online: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(url, 2000)
    config = Config()
    config.set_main_option("script_location", str(online))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, f"{SCHEMA_REVISION}:head", sql=True)
    assert "in batches of lango_message" in capsys.readouterr().out
    command.upgrade(config, "head")
    assert schema.current(url) == NEWEST
    assert value(url, SHOUTING) == 2000
    command.downgrade(config, SCHEMA_REVISION)
    assert schema.check(url) == []


def test_the_command_shows_how_far_it_is_on_a_terminal_and_nothing_elsewhere(url: str, online: Path) -> None:
    fill(url, 2000)
    before = (
        "from pathlib import Path; from lango_store.schema import options; "
        f"options._folder = lambda: Path({str(online)!r})"
    )
    shown, code = run_on_terminal("db", "upgrade", NEWEST, "--url", url, before=before)
    assert code == 0
    assert "changing lango_message" in shown
    assert "2000/2000" in shown
    assert shown.endswith(f"at revision {NEWEST}\n")
    back = run("db", "downgrade", SCHEMA_REVISION, "--yes", "--url", url)
    assert (back.returncode, back.stdout) == (0, f"at revision {SCHEMA_REVISION}\n")
    assert "changing" not in back.stderr
    again, code = run_on_terminal("db", "upgrade", ONLINE[0], "--url", url, before=before)
    assert again == f"at revision {ONLINE[0]}\n"
