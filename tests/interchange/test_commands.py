"""`lango-store import` and `export`."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message
from support.paths import DATA

from lango_store import Store

CONVERSATION = DATA / "nanobot_g1" / "telegram_12345678.jsonl"


@pytest.fixture
def home(tmp_path: Path, make_sqlite: MakeDatabase, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command on a database in a separate folder."""
    folder, url = tmp_path / "home", make_sqlite()
    folder.mkdir()
    monkeypatch.chdir(folder)
    return lambda *words: run(*words, environment={"LANGO_STORE_URL": url})


def test_import_and_export_commands_round_trip_sessions(home: Any, tmp_path: Path) -> None:
    done = home("import", str(DATA / "nanobot_g1"))
    assert done.returncode == 0, done.stderr
    assert "imported 8 sessions, 14 messages from 8 files" in done.stdout
    assert "golden.json: skipped, the format is unknown" in done.stderr
    again = home("import", str(DATA / "nanobot_g1"))
    assert again.returncode == 0
    assert "imported 0 sessions, 0 messages from 8 files; 8 already there, 0 collided" in again.stdout
    out = home("export", "--all", "--to", "out", "--format", "nanobot")
    assert out.returncode == 0, out.stderr
    for path in (tmp_path / "home" / "out").iterdir():
        assert path.read_bytes() == (DATA / "nanobot_g1" / path.name).read_bytes()
    again = home("export", "--all", "--to", "out", "--format", "nanobot")
    assert (again.returncode, again.stdout) == (0, "exported 0 sessions to out, 8 unchanged, 0 failed\n")


def test_import_with_json_option_prints_one_line_per_file(home: Any) -> None:
    done = home("import", str(DATA / "nanobot_g2" / "corrupt"), "--json", "--dry-run")
    told = {Path(each["path"]).stem: each for each in map(json.loads, done.stdout.splitlines())}
    assert len(told) == 7
    assert told["blank_lines"] | {"path": "", "skipped": []} == {
        "path": "",
        "format": "nanobot",
        "keys": ["k:1"],
        "sessions": 1,
        "messages": 1,
        "values": 0,
        "already_there": [],
        "collided": [],
        "skipped": [],
        "error": None,
        "dry_run": True,
    }
    assert told["truncated_last_line"]["skipped"][0]["line"] == 3
    assert done.returncode == 1


def test_import_exits_1_for_an_unreadable_file_and_2_for_a_wrong_format_or_url(home: Any, tmp_path: Path) -> None:
    assert home("import", str(CONVERSATION)).returncode == 0
    changed = tmp_path / "telegram_12345678.jsonl"
    changed.write_text(CONVERSATION.read_text().replace("weather?", "rain?"))
    collided = home("import", str(changed))
    assert (collided.returncode, "collides" in collided.stdout) == (0, True)
    bad = home("import", str(DATA / "nanobot_g2" / "corrupt" / "all_bad.jsonl"))
    assert (bad.returncode, "has no readable line" in bad.stderr) == (1, True)
    assert home("import", "missing").returncode == 1
    assert home("import", str(CONVERSATION), "--format", "foo").returncode == 2
    assert home("import", str(CONVERSATION), "--url", "sqlite:////nowhere/a.db").returncode == 2


@pytest.mark.slow
def test_export_exits_1_for_a_missing_session_and_2_for_wrong_options(home: Any) -> None:
    home("import", str(CONVERSATION))
    nanobot = ("--to", "out", "--format", "nanobot")
    assert home("export", "telegram:12345678", *nanobot).returncode == 0
    assert home("export", "missing", *nanobot).returncode == 1
    assert home("export", *nanobot).returncode == 2
    assert home("export", "--all", "--to", "out", "--format", "lango").returncode == 2
    assert home("export", "--all", "--to", "-", "--format", "nanobot").returncode == 2
    assert home("export", "--all", "--format", "nanobot").returncode == 2
    told = home("export", "--all", *nanobot, "--json")
    assert json.loads(told.stdout) == {
        "key": "telegram:12345678",
        "path": str(Path("out") / "telegram_12345678.jsonl"),
        "records": 0,
        "unchanged": True,
        "error": None,
    }


def test_export_with_names_option_writes_readable_names(home: Any) -> None:
    home("import", str(DATA / "nanobot_g2"))
    done = home("export", "telegram:12345678", "--to", "out", "--format", "nanobot", "--names", "readable")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in Path("out").iterdir()] == ["telegram_12345678.jsonl"]
    assert home("export", "telegram:12345678", "--to", "out", "--names", "readable").returncode == 2


def test_import_and_export_print_a_summary(home: Any) -> None:
    assert home("import", str(CONVERSATION)).stdout.splitlines() == [
        "imported 1 session, 6 messages from 1 file; 0 already there, 0 collided, 0 lines skipped or changed, "
        "0 files failed"
    ]
    done = home("export", "--all", "--to", "out", "--format", "nanobot")
    assert (done.stdout, done.stderr) == ("exported 1 session to out, 0 unchanged, 0 failed\n", "")


@pytest.mark.parametrize("format", ["backup", "nanobot", "dive", "shepherd", "open-webui"])
def test_export_with_replace_overwrites_existing_files(home: Any, format: str) -> None:
    home("import", str(CONVERSATION))
    nightly = ("export", "--all", "--to", "backup", "--format", format)
    assert home(*nightly).returncode == 0
    home("import", str(DATA / "nanobot_g1" / "cli_direct.jsonl"))
    with Store(_url()) as store:
        store.append_message("telegram:12345678", message("tomorrow"))
    refused = home(*nightly)
    assert refused.returncode == 1
    assert "exists with different content" in refused.stderr
    assert home(*nightly, "--force").returncode == 0
    assert "tomorrow" in "".join(path.read_text() for path in Path("backup").iterdir())


def _url() -> str:
    return f"sqlite:///{next(Path('..').glob('*.db')).resolve()}"


@pytest.mark.slow
def test_plain_and_gzipped_backup_files_can_be_imported(home: Any, make_sqlite: MakeDatabase) -> None:
    home("import", str(DATA / "nanobot_g1"))
    for name in ("today.jsonl", "today.jsonl.gz"):
        done = home("export", "--all", "--to", f"nights/{name}")
        assert (done.returncode, done.stdout) == (0, f"exported 8 sessions to nights/{name}, 0 unchanged, 0 failed\n")
        again = home("export", "--all", "--to", f"nights/{name}")
        assert (again.returncode, again.stdout) == (0, f"exported 0 sessions to nights/{name}, 8 unchanged, 0 failed\n")
        back = home("import", f"nights/{name}", "--url", make_sqlite())
        assert "imported 8 sessions, 14 messages from 1 file" in back.stdout
    packed, plain = Path("nights/today.jsonl.gz"), Path("nights/today.jsonl")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    for damaged in (packed.read_bytes()[:-20], packed.read_bytes()[:40] + b"xx" + packed.read_bytes()[42:], b"no"):
        Path("damaged.jsonl.gz").write_bytes(damaged)
        done = home("import", "damaged.jsonl.gz", "--format", "backup", "--url", make_sqlite())
        assert done.returncode == 1
        assert "damaged.jsonl.gz" in done.stderr


def test_export_to_stdout_prints_only_the_backup(home: Any, make_sqlite: MakeDatabase) -> None:
    home("import", str(CONVERSATION))
    done = run("export", "--all", "nobody", "--to", "-", "--url", _url())
    assert done.returncode == 2
    done = run("export", "telegram:12345678", "nobody", "--to", "-", "--url", _url())
    assert done.returncode == 1
    assert "exported 1 session to standard output, 0 unchanged, 1 failed" in done.stderr
    Path("out.jsonl").write_text(done.stdout)
    assert home("import", "out.jsonl", "--url", make_sqlite()).returncode == 0


@pytest.mark.parametrize(
    "lines", ['{"level": "info", "msg": "up"}\n{"level": "warn"}\n', "started\nstopped\n", "{}\n", "1\n"]
)
def test_import_refuses_log_files_of_other_programs(home: Any, lines: str) -> None:
    Path("logs").mkdir()
    Path("logs/app.jsonl").write_text(lines)
    Path("logs/README").touch()
    for source in ("logs", "logs/app.jsonl"):
        done = home("import", source)
        assert done.returncode == 1
        assert "app.jsonl" in done.stderr
        assert "imported 0 sessions" in done.stdout
    with Store(_url()) as store:
        assert store.count(expired=None) == 0
