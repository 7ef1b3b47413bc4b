"""The operator's commands as processes, on both databases and with failures."""

import json
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import run, run_on_terminal
from support.databases import MakeDatabase
from support.factories import message, messages
from support.processes import LANGO_STORE, Program, run_program
from support.revisions import add_later_revisions

from lango_store import ExpiryReport, MessageRole, Store, ToolCall, create_engine

NOW = datetime.now(UTC)


@pytest.fixture
def filled(url: str) -> str:
    """The URL of a store with four sessions, two of them expired."""
    call = ToolCall(id="c1", name="get_weather", arguments={"city": "Oslo"})
    answer = ToolCall(id="c1", name="get_weather", output={"celsius": -3})
    time = [NOW - timedelta(days=40)]
    with Store(url, clock=lambda: time[0]) as store:
        for n, ttl in enumerate((None, timedelta(days=90), timedelta(days=1), timedelta(days=2))):
            time[0] = NOW - timedelta(days=40 - n)
            store.create(f"chat:{n}", agent_id=f"a{n % 2}", user_id=f"u{n}", title=f"Title {n}", ttl=ttl)
            store.conversation(f"chat:{n}").append_messages([message("Weather?", tokens=3), message("one\n" * 30)])
            store.append_message(
                f"chat:{n}", message(None, role=MessageRole.ASSISTANT, author="planner", tool_calls=[call])
            )
            store.append_message(f"chat:{n}", message(None, role=MessageRole.TOOL, tool_calls=[answer]))
    return url


@pytest.mark.slow
def test_list_command_prints_sessions(filled: str) -> None:
    done = run("sessions", "list", "--url", filled)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"chat:\d", done.stdout) == ["chat:1", "chat:0"]
    assert re.findall(r"chat:\d", run("sessions", "list", "--expired", "--url", filled).stdout) == ["chat:3", "chat:2"]
    lines = run("sessions", "list", "--json", "--agent", "a1", "--url", filled).stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["chat:1"]
    for words, found in {
        ("--user", "u0"): ["chat:0"],
        ("--prefix", "chat:1"): ["chat:1"],
        ("--prefix", "x"): [],
        ("--since", "39.5d"): ["chat:1"],
        ("--since", f"{NOW - timedelta(days=39, hours=12):%Y-%m-%dT%H:%M:%S}"): ["chat:1"],
        ("--limit", "1"): ["chat:1"],
    }.items():
        out = run("sessions", "list", "--json", *words, "--url", filled).stdout
        assert [json.loads(line)["key"] for line in out.splitlines()] == found, words


@pytest.mark.slow
def test_show_command_prints_messages(filled: str) -> None:
    done = run("sessions", "show", "chat:0", "--url", filled)
    assert done.returncode == 0, done.stderr
    for shown in (
        "chat:0 · Title 0",
        "3 assistant · planner",
        '→ get_weather({"city": "Oslo"})',
        '← get_weather: {"celsius": -3}',
        "3 tokens",
        "18 more lines: use --full",
    ):
        assert shown in done.stdout, shown
    assert "more lines" not in run("sessions", "show", "chat:0", "--full", "--url", filled).stdout
    lines = [
        json.loads(each) for each in run("sessions", "show", "chat:0", "--json", "--url", filled).stdout.splitlines()
    ]
    assert lines[0]["message_count"] == 4
    assert [line["seq"] for line in lines[1:]] == [1, 2, 3, 4]
    last = run("sessions", "show", "chat:0", "--json", "--last", "1", "--url", filled).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in last[1:]] == [4]
    for missing in ("nobody", "chat:2"):
        gone = run("sessions", "show", missing, "--url", filled)
        assert (gone.returncode, gone.stdout) == (1, "")
        assert missing in gone.stderr


def test_show_command_escapes_control_characters(url: str) -> None:
    with Store(url) as store:
        store.create(
            "[bold]k[/bold]", messages=[message("\ud800 a\0b \x1b[31m [red]x[/red] ☀"), message({"\udfff": 1})]
        )
    done = run("sessions", "show", "[bold]k[/bold]", "--url", url)
    assert done.returncode == 0, done.stderr
    for shown in ("[bold]k[/bold]", "\\ud800 a␀b", "[red]x[/red] ☀", "\\udfff"):
        assert shown in done.stdout
    assert "\x1b[31m" not in done.stdout
    lines = run("sessions", "show", "[bold]k[/bold]", "--json", "--url", url).stdout.splitlines()
    assert json.loads(lines[1])["content"] == "\ud800 a\0b \x1b[31m [red]x[/red] ☀"


def test_show_command_reports_a_damaged_message(filled: str) -> None:
    engine = create_engine(filled)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET role = 'weird' WHERE session_key = 'chat:0' AND seq = 2")
    engine.dispose()
    done = run("sessions", "show", "chat:0", "--url", filled)
    assert done.returncode == 1
    assert "2 damaged: role" in done.stdout
    assert "4 tool" in done.stdout
    doctor = run("doctor", "--url", filled)
    assert doctor.returncode == 1
    assert "unreadable message" in doctor.stdout


def test_delete_command_deletes_sessions(filled: str) -> None:
    done = run("sessions", "delete", "chat:0", "nobody", "--yes", "--url", filled)
    assert (done.stdout, done.returncode) == ("deleted 1 session\n", 1)
    assert "nobody" in done.stderr
    assert run("sessions", "delete", "--url", filled).returncode == 2
    assert run("sessions", "delete", "chat:1", "--user", "u1", "--url", filled).returncode == 2
    assert run("sessions", "delete", "--user", "u2", "--yes", "--url", filled).stdout == "deleted 1 session\n"
    with Store(filled) as store:
        assert {info.key for info in store.list_sessions(expired=None).items} == {"chat:1", "chat:3"}


def test_touch_command_restarts_ttl(filled: str) -> None:
    done = run("sessions", "touch", "chat:2", "--ttl", "30d", "--url", filled)
    assert done.stdout.startswith("expires 20"), done.stderr
    assert run("sessions", "touch", "chat:2", "--ttl", "never", "--url", filled).stdout == "never expires\n"
    assert json.loads(run("sessions", "touch", "chat:3", "--json", "--url", filled).stdout)["ttl_seconds"] == 172_800
    assert run("sessions", "touch", "nobody", "--url", filled).returncode == 1
    for wrong in ("soon", "5", "-1d", "1e9d"):
        assert run("sessions", "touch", "chat:2", "--ttl", wrong, "--url", filled).returncode == 2


@pytest.mark.slow
def test_expire_command_purges_sessions(filled: str, tmp_path: Path) -> None:
    at = ("--url", filled)
    dry = run("expire", "--dry-run", *at)
    assert "would purge 2 sessions, 8 messages" in dry.stdout
    assert re.findall(r"chat:\d", dry.stdout) == ["chat:2", "chat:3"]
    assert json.loads(run("expire", "--dry-run", "--older-than", "39.5d", "--json", *at).stdout)["sessions"] == 3
    assert (
        json.loads(run("expire", "--dry-run", "--created-before", "2001-01-01", "--json", *at).stdout)["sessions"] == 2
    )
    cold = tmp_path / "cold.db"
    done = run("expire", "--archive", str(cold), "--batch-size", "1", "--limit", "1", *at)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("purged 1 session, 4 messages")
    assert "purging on" in done.stderr
    assert "batch 1: 1 session" in done.stderr
    before = datetime.now(UTC)
    done = run("expire", "--archive", str(cold), "--json", *at)
    report = ExpiryReport.model_validate_json(done.stdout)
    assert (report.sessions, report.messages, report.dry_run, done.stderr) == (1, 4, False, "")
    assert report.at is not None
    assert before <= report.at <= datetime.now(UTC)
    with Store(filled) as store:
        assert store.count(expired=None) == 2

    restored = run("sessions", "restore", "chat:3", "--archive", str(cold), "--ttl", "30d", *at)
    assert restored.stdout == "restored 4 messages\n"
    for key in ("chat:3", "nobody"):
        assert run("sessions", "restore", key, "--archive", str(cold), *at).returncode == 1
    archived = ("--url", f"sqlite:///{cold}")
    rows = run("sessions", "list", *archived).stdout.splitlines()
    assert [row.split("\t")[0] for row in rows] == ["chat:3", "chat:2"]
    assert run("sessions", "delete", "--user", "u2", "--yes", *archived).stdout == "deleted 1 session\n"
    assert run("sessions", "restore", "x", "--archive", str(tmp_path / "none.db"), *at).returncode == 1
    for wrong in (("--older-than", "soon"), ("--created-before", "once"), ("--batch-size", "0"), ("--limit", "-1")):
        assert run("expire", *wrong, *at).returncode == 2


def test_stats_command_prints_totals(filled: str) -> None:
    done = run("stats", "--url", filled)
    assert "4 sessions (2 expired), 16 messages, 12 message tokens" in done.stdout
    assert "█" in done.stdout
    found = json.loads(run("stats", "--json", "--url", filled).stdout)
    assert (found["sessions"], found["messages"], found["records"]) == (4, 16, 0)


@pytest.mark.slow
def test_stats_command_on_a_narrow_terminal_breaks_no_word(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    assert "agent" not in run_on_terminal("stats", "--url", url, columns=40)[0]  # no tables
    with Store(url) as store:
        store.create("k", agent_id="support-agent", messages=messages(3))
    shown, code = run_on_terminal("stats", "--url", url, columns=40)
    narrow = re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", shown)  # of the progress bar
    assert (code, max(map(len, narrow.splitlines())) <= 40) == (0, True)
    words = {"agent", "sessions", "tokens", "messages", "within 30 days"}
    assert words <= set(re.split(r"\s{2,}|\n", narrow))
    assert "█" not in narrow.partition("By time to expiry")[0]
    assert "█" in run_on_terminal("stats", "--url", url, columns=80)[0]


@pytest.mark.slow
def test_doctor_command_reports_and_repairs_damage(filled: str) -> None:
    engine = create_engine(filled)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET message_count = 9 WHERE key = 'chat:0'")
        connection.exec_driver_sql("DROP INDEX ix_lango_session_expires_bucket")
    engine.dispose()
    sick = run("doctor", "--json", "--url", filled)
    assert sick.returncode == 1
    names = [json.loads(line)["name"] for line in sick.stdout.splitlines()]
    assert sorted(set(names) - {"settings"}) == ["missing index", "wrong counters"]
    mended = run("doctor", "--repair", "--url", filled)
    assert (mended.returncode, mended.stdout.count("repaired")) == (0, 2)
    assert run("doctor", "--url", filled).returncode == 0


@pytest.mark.slow
def test_ctrl_c_lets_expire_finish_the_batch_and_report_progress(filled: str) -> None:
    time = [NOW - timedelta(days=10)]
    with Store(filled, clock=lambda: time[0]) as store:
        for n in range(300):
            store.create(f"more:{n}", ttl=timedelta(days=1), messages=messages(3))
    process = Program(LANGO_STORE, "expire", "--batch-size", "1", "--url", filled)
    for line in process.stderr:
        if line.startswith("batch 3:"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (purged,) = re.findall(r"interrupted; purged (\d+) sessions", out)
    with Store(filled) as store:
        assert store.count(expired=None) == 304 - int(purged)
        assert 3 <= int(purged) < 302


def test_expire_command_on_a_terminal_shows_a_progress_bar(filled: str) -> None:
    seen, code = run_on_terminal("expire", "--url", filled, columns=100)
    assert code == 0
    assert "2/2" in seen
    assert "purged 2 sessions" in seen


READING = [
    ("sessions", "list"),
    ("sessions", "show", "chat:0"),
    ("turns",),
    ("stats",),
    ("expire", "--dry-run"),
    ("doctor",),
]
WRITING = [("expire",), ("sessions", "touch", "chat:0"), ("sessions", "delete", "chat:0", "--yes")]


@pytest.mark.parametrize("words", [*READING, *WRITING])
def test_command_on_an_outdated_schema_exits_1(
    url: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch, needed=True)
    done = run(*words, "--url", url)
    assert done.returncode == 1
    assert "lango-store db upgrade" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [*READING, *WRITING])
def test_command_on_an_unreachable_server_exits_3(words: tuple[str, ...]) -> None:
    done = run(*words, "--url", "postgresql://ann:hunter2@127.0.0.1:1/agents?connect_timeout=2")
    assert done.returncode == 3, done
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_commands_can_read_but_not_change_a_read_only_file(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    with Store(url, clock=lambda: NOW - timedelta(days=9)) as store:
        store.create("chat:0", messages=messages(2))
        store.create("chat:1", ttl=timedelta(days=1))
    read_only = f"sqlite:///file:{url.removeprefix('sqlite:///')}?mode=ro&uri=true"
    for words in READING:
        assert run(*words, "--url", read_only).returncode == 0, words
    for words in WRITING:
        done = run(*words, "--url", read_only)
        assert done.returncode == 3, done
        assert "writable" in done.stderr


@pytest.mark.slow
def test_delete_command_on_a_locked_database_exits_3(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    with Store(url) as store:
        store.create("chat:0")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            done = run("sessions", "delete", "chat:0", "--yes", "--url", f"{url}?timeout=0.2")
    assert done.returncode == 3, done
    assert "locked" in done.stderr


@pytest.mark.slow
def test_expire_command_on_a_full_disk_exits_3_and_purges_nothing(filled: str, tmp_path: Path) -> None:
    program = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_960, 40_960))
from lango_store.cli import main
sys.argv = ["lango-store", "expire", "--archive", sys.argv[1], "--url", sys.argv[2]]
main()
"""
    done = run_program(program, tmp_path / "cold.db", filled)
    assert done.returncode == 3, done
    assert "archive" in done.stderr
    with Store(filled) as store:
        assert store.count(expired=None) == 4
