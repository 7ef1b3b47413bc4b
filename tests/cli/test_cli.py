"""The command line as a process: output and exit codes."""

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commands import run, run_on_terminal, run_process
from support.databases import MakeDatabase
from support.paths import ROOT

import lango_store.cli
from lango_store import Message, Store, create_engine, schema
from lango_store.tables import SCHEMA_REVISION


@pytest.mark.slow
def test_version_option_prints_version() -> None:
    done = run_process("--version")
    assert (done.stdout, done.returncode) == ("lango-store 0.1.0\n", 0)


@pytest.mark.slow
def test_stats_and_doctor_show_progress_only_on_terminal(url: str) -> None:
    for command, shown in (("stats", "reading all sessions"), ("doctor", "checking: search index")):
        text, code = run_on_terminal(command, "--url", url)
        assert shown in text, text
        assert code == 0
        assert run(command, "--url", url).stderr == ""


@pytest.mark.slow
def test_db_commands_upgrade_check_and_downgrade_a_schema(empty_url: str) -> None:
    at = ("--url", empty_url)
    schema_name = "public" if empty_url.startswith("postgresql") else None
    where = f" in schema {schema_name!r}" if schema_name else ""
    assert run("db", "current", *at).stdout == f"no revision{where}, this release needs {SCHEMA_REVISION}\n"
    missing = run("db", "check", *at)
    assert missing.returncode == 1
    assert "lango-store db upgrade" in missing.stdout
    assert "CREATE TABLE lango_session" in run("db", "sql", *at).stdout
    upgraded = run("db", "upgrade", *at)
    assert (upgraded.stdout, upgraded.stderr, upgraded.returncode) == (f"at revision {SCHEMA_REVISION}\n", "", 0)
    assert run("db", "check", *at).returncode == 0
    assert json.loads(run("db", "check", "--json", *at).stdout) == {"ok": True, "differences": []}
    assert run("db", "downgrade", "base", "--yes", *at).stdout == "no revision\n"
    told = {"revision": None, "needed": SCHEMA_REVISION, "schema": schema_name}
    assert json.loads(run("db", "current", "--json", *at).stdout) == told
    assert run("db", "check", *at).returncode == 1
    assert run("db", "stamp", SCHEMA_REVISION, *at).returncode == 0
    drifted = run("db", "check", "--json", *at)
    assert drifted.returncode == 1
    assert "lango_session" in str(json.loads(drifted.stdout)["differences"])


def test_db_status_counts_the_connections_of_each_release(url: str) -> None:
    named = sa.make_url(url)
    if named.get_backend_name() == "postgresql":
        named = named.update_query_dict({"application_name": "a program"})
    with Store(url) as store, Store(named) as other:
        store.ping()
        other.ping()
        state = json.loads(run("db", "status", "--json", "--url", url).stdout)
        lines = run("db", "status", "--url", url).stdout.splitlines()
    is_server = url.startswith("postgresql")
    assert (state["revision"], state["features"]) == (SCHEMA_REVISION, ["payloads"])
    assert state["releases"] == ({"0.1.0": 1} if is_server else {})
    assert lines[1:] == ["feature payloads", *(["release 0.1.0: 1 connected"] if is_server else [])]


@pytest.mark.slow
def test_url_option_overrides_lango_store_url_which_overrides_database_url(tmp_path: Path) -> None:
    def current(*words: str, **environment: str) -> str:
        return run("db", "current", *words, environment=environment).stdout

    for name in ("option", "ours", "hosts"):
        schema.upgrade(f"sqlite:///{tmp_path}/{name}.db")
    with create_engine(f"sqlite:///{tmp_path}/option.db").begin() as connection:
        connection.exec_driver_sql("UPDATE lango_store_version SET version_num = '9999'")
    (tmp_path / "none.db").touch()
    ours, hosts = f"sqlite:///{tmp_path}/ours.db", f"sqlite:///{tmp_path}/none.db"
    assert "9999," in current("--url", f"sqlite:///{tmp_path}/option.db", LANGO_STORE_URL=ours, DATABASE_URL=hosts)
    assert f"{SCHEMA_REVISION}," in current(LANGO_STORE_URL=ours, DATABASE_URL=hosts)
    assert "no revision" in current(DATABASE_URL=hosts)
    nowhere = run("db", "current")
    assert nowhere.returncode == 2
    assert "LANGO_STORE_URL" in nowhere.stderr


def test_unreachable_database_exits_3_without_showing_password(tmp_path: Path) -> None:
    for url in (
        "postgresql://ann:hunter2@127.0.0.1:1/agents?connect_timeout=2",
        f"sqlite:///{tmp_path}/no/such/folder/x.db",
        f"sqlite:///{Path(__file__)}",
    ):
        done = run("db", "upgrade", "--url", url)
        assert done.returncode == 3, done
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        assert "hunter2" not in done.stdout + done.stderr


def test_command_with_invalid_arguments_exits_2() -> None:
    for words in (
        ("db", "upgrade", "--url", "mysql://x/y"),
        ("db", "upgrade", "--url", "nonsense"),
        ("db", "nonsense"),
        ("db", "upgrade", "--lock-timeout", "-1", "--url", "sqlite://"),
    ):
        done = run(*words)
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_demo_command_prints_and_stores_one_session(tmp_path: Path) -> None:
    for _ in range(2):
        done = run("demo", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        for shown in ("Oslo or Bergen?", "get_weather", '{"celsius": -3, "sky": "clear"}', "telegram:12345678"):
            assert shown in done.stdout
        assert "5 messages, 113 tokens" in done.stdout
        assert done.stdout.rstrip().endswith("demo.db")
    with lango_store.Store(f"sqlite:///{tmp_path}/demo.db") as store:
        assert store.conversation("telegram:12345678").info().message_count == 5


def test_demo_command_refuses_a_file_that_contains_other_sessions(tmp_path: Path) -> None:
    with lango_store.Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        store.create("telegram:12345678")
        store.create("another")
        done = run("demo", "--file", "agent.db", folder=tmp_path)
        assert (done.returncode, "agent.db contains other sessions" in done.stderr) == (2, True)
        assert store.conversation("telegram:12345678").info().message_count == 0


def test_mistyped_command_gets_a_suggestion() -> None:
    mistyped = run("sesions", "list")
    assert mistyped.returncode == 2
    assert "sessions" in mistyped.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "light"),
    [
        (None, ["alembic", "click", "mako", "markdown_it", "psycopg", "pygments", "rich", "starlette", "typer"]),
        (["--help"], ["alembic", "mako", "psycopg", "starlette", "uvicorn"]),
        (["stats"], ["alembic", "mako", "psycopg", "starlette", "uvicorn"]),
    ],
    ids=["import", "help", "stats"],
)
def test_command_imports_only_the_modules_that_it_needs(
    words: list[str] | None, light: list[str], make_sqlite: MakeDatabase
) -> None:
    program = f"""
import sys
import lango_store
if {words!r}:
    from lango_store.cli import app
    app({words!r}, standalone_mode=False)
print(*{{*{light!r}}} & {{*sys.modules}}, file=sys.stderr)
"""
    environment = os.environ | {"LANGO_STORE_URL": make_sqlite()}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("\n", 0)


@pytest.mark.parametrize(
    "command",
    [
        "stats URL",
        "db upgrade URL",
        "sessions list --json URL",
        "sessions show URL",
        "sessions list --since URL",
        "sessions list --order=URL",
        "usage --by URL",
        "stats url=URL",
        "export --all --format URL --to folder",
        "export --all --to URL",
        "import URL",
        "db sql --from URL",
        "copy --salvage --from URL --to sqlite:///target.db",
        "copy --from sqlite:///source.db --to sqlite:///target.db URL",
    ],
)
@pytest.mark.parametrize(
    "database", ["postgresql://ann:S3cr3t@127.0.0.1:1/agents", "postgres://127.0.0.1:1/agents?password=S3cr3t"]
)
def test_url_with_a_password_in_a_wrong_position_is_refused_without_printing_it(
    command: str, database: str, tmp_path: Path
) -> None:
    done = run(*command.replace("URL", database).split(), folder=tmp_path)
    assert done.returncode == 2
    assert "--url" in done.stderr
    assert "S3cr3t" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["stats --url URL", "stats --url=URL", "copy --from URL --to URL", "copy --from=URL --to=URL"]
)
def test_url_with_a_password_is_accepted_by_the_options_for_urls(command: str) -> None:
    done = run(*command.replace("URL", "postgresql://ann:S3cr3t@127.0.0.1:1/agents").split())
    assert done.returncode == 3  # nothing listens there
    assert "S3cr3t" not in done.stdout + done.stderr


def test_copy_names_the_option_of_a_missing_database(url: str, tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'missing.db'}"
    assert "for --to" in run("copy", "--from", url, "--to", missing).stderr
    assert "for --from" in run("copy", "--from", missing, "--to", url).stderr


# Standard streams


def shell(command: str, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `lango` is the command line, and whose exit code is that of the command."""
    program = f"lango() {{ {sys.executable} -c 'from lango_store.cli import main; main()' \"$@\" --url '{url}'; }}"
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"} | variables
    return subprocess.run(
        ["bash", "-c", f"{program}; {command}"], capture_output=True, text=True, env=environment, cwd=ROOT
    )


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_ends_early_is_no_failure(store: Store, url: str, unbuffered: str) -> None:
    for number in range(10):  # more than a pipe holds
        store.create(f"session {number}", messages=[Message.user("x" * 50_000)])
    done = shell("lango export --all --to - | head -n 1; exit ${PIPESTATUS[0]}", url, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_failed_command_without_a_reader_keeps_its_exit_code(store: Store, url: str, unbuffered: str) -> None:
    store.create("k")
    command = "lango sessions delete missing --yes | true; exit ${PIPESTATUS[0]}"
    assert shell(command, url, PYTHONUNBUFFERED=unbuffered).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_import_without_a_reader_imports_all_files(store: Store, url: str, tmp_path: Path, unbuffered: str) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    line = json.dumps({"role": "user", "content": "hi", "timestamp": "2026-01-01T00:00:00"})
    for number in range(100):
        (folder / f"telegram_{number}.jsonl").write_text(f"{line}\n")
    command = f"lango import {folder} --format nanobot --json | head -n 1; exit ${{PIPESTATUS[0]}}"
    assert shell(command, url, PYTHONUNBUFFERED=unbuffered).returncode == 0
    assert store.count() == 100


@pytest.mark.slow
def test_follower_ends_with_its_reader(store: Store, url: str) -> None:
    store.create("k", messages=[Message.user("first")])
    with ThreadPoolExecutor() as executor:
        done = executor.submit(shell, "lango tail k -f --json | head -n 1; exit ${PIPESTATUS[0]}", url)
        while not wait([done], timeout=0.05).done:
            store.append_message("k", Message.user("more"))
    assert (done.result().returncode, done.result().stderr) == (0, "")


@pytest.mark.slow
def test_export_to_standard_output_that_cannot_take_bytes_is_refused(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("k")
    done = shell("lango export --all --to - >&-", url)
    assert (done.returncode, "standard output is closed" in " ".join(done.stderr.split())) == (2, True)
    monkeypatch.setattr(sys, "argv", ["lango-store", "export", "--all", "--to", "-", "--url", url])
    with redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as ended:
        lango_store.cli.main()
    assert ended.value.code == 2


@pytest.mark.slow
def test_full_disk_under_standard_output_exits_with_3_and_a_short_message(store: Store, url: str) -> None:
    store.create("k")
    store.create("expired", ttl=timedelta(days=1))
    for command in ("lango sessions list --json", "lango stats", "lango export --all --to -", "lango expire --json"):
        done = shell(f"{command} > /dev/full", url)
        assert done.returncode == 3, command
        assert done.stderr.splitlines()[-1].startswith("error: standard output cannot be written: No space left"), (
            command
        )


@pytest.mark.slow
def test_closed_streams_are_like_empty_ones(store: Store, url: str) -> None:
    store.create("k")
    assert shell("lango sessions list >&-", url).returncode == 0
    done = shell("lango sessions delete k <&-", url)
    expected = f"deleting 1 session on {store.engine.url} cannot be undone: add --yes to confirm"
    assert (done.returncode, " ".join(done.stderr.split()).removeprefix("error: ")) == (2, expected)
    assert store.exists("k")


def test_json_is_printed_to_a_stream_without_an_encoding(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("å")
    monkeypatch.setattr(sys, "argv", ["lango-store", "sessions", "list", "--json", "--url", url])
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        lango_store.cli.main()
    assert json.loads(out.getvalue())["key"] == "å"


@pytest.mark.one_database
def test_remedy_for_a_missing_file_is_to_create_it_unless_it_is_a_source(tmp_path: Path) -> None:
    at = f"sqlite:///{tmp_path}/missing.db"
    stats, adopt = run("stats", "--url", at), run("adopt", at, "--to", f"sqlite:///{tmp_path}/new.db")
    assert (stats.returncode, adopt.returncode) == (2, 2)
    assert "db upgrade" in stats.stderr
    assert "check the path" in adopt.stderr
    assert "db upgrade" not in adopt.stderr
    assert list(tmp_path.iterdir()) == []
