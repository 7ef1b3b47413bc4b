"""Records in lists of messages, exports, imports, archives and the output of `sessions show`."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message
from support.recorded import noted, record
from support.session_checks import assert_sound

from lango_store import MessageRole, Store, ToolCall, interchange, window
from lango_store.testing import Clock

# Lists of messages

LOG = [
    record("mode"),
    message("be kind", role="system", tokens=1),
    message("weather?", tokens=2),
    message(None, role="assistant", tool_calls=[ToolCall(id="c", name="f")], tokens=3),
    record("cost", tool_calls=[ToolCall(id="c", name="f", output=1)]),
    message("sun", role="tool", tool_call_id="c", tokens=4),
    record(),
    message("sunny", role="assistant", tokens=5),
    message("thanks", tokens=6),
    record(),
]
MESSAGES = [each for each in LOG if each.role is not MessageRole.RECORD]


def test_functions_of_the_window_module_leave_out_records() -> None:
    assert window.as_prompt(LOG) == window.as_prompt(MESSAGES)
    assert window.close_calls(LOG) == MESSAGES
    assert window.prompt(LOG) == window.prompt(MESSAGES)
    assert window.last_within(LOG, 11) == MESSAGES[-2:]
    for number in range(len(LOG)):
        assert window.legal_suffix(LOG, number) == window.legal_suffix(MESSAGES, number)
    for budget in range(25):
        assert window.fit(LOG, budget) == window.fit(MESSAGES, budget)
    assert window.evict(LOG, []) == window.evict(LOG, [(5, 2)]) == MESSAGES


def test_plan_eviction_returns_no_ranges_with_records() -> None:
    plan = window.plan_eviction(LOG, 10)
    assert plan == [(2, 3), (5, 5), (7, 7)]
    assert window.evict(LOG, plan) == window.fit(MESSAGES, 11)


def test_function_answers_returns_an_empty_list_for_a_record() -> None:
    assert window.answers(record(tool_calls=[ToolCall(id="c1", name="dice", output=6)])) == []


def test_record_cannot_be_converted_to_openai() -> None:
    with pytest.raises(ValueError, match="record is never part of a prompt"):
        record().to_openai()
    assert window.as_prompt([record()]) == []


# Exports, imports and archives


@pytest.mark.slow
def test_records_are_kept_by_export_import_archive_and_restore(
    url: str, make_database: MakeDatabase, tmp_path: Path, clock: Clock
) -> None:
    with Store(url, clock=clock) as store, Store(make_database(), clock=clock) as other:
        conversation = noted(store, ttl=timedelta(hours=1))
        log, info = conversation.all_messages(), conversation.info()
        interchange.export(store, tmp_path / "all.jsonl", "backup", everything=True)
        interchange.import_path(other, tmp_path / "all.jsonl")
        assert other.conversation("k").all_messages() == log
        assert other.conversation("k").info().model_copy(update={"revision": info.revision}) == info
        assert_sound(other)
        clock.move(hours=2)
        assert store.expire(archive=tmp_path / "cold.db").messages == 2
        store.restore("k", tmp_path / "cold.db")
        assert store.conversation("k").all_messages() == log
        assert_sound(store)


@pytest.mark.parametrize("format", sorted(set(interchange.writable()) - {"backup", "openai"}))
def test_export_to_another_format_leaves_out_records_and_counts_them(url: str, tmp_path: Path, format: str) -> None:
    with Store(url) as store:
        store.create("plain", messages=EXCHANGE)
        store.create("k", messages=EXCHANGE)
        (plain,) = interchange.export(store, tmp_path / "plain", format, keys=["k"])
        store.delete("k")
        ((key,),) = [each.keys for each in interchange.import_path(store, str(plain.path), format=format)]
        store.conversation(key).append_messages([record("mode"), record("cost"), record("attachment")])
        exported = interchange.export(store, tmp_path / "out", format, keys=[key, "plain"])
        assert [(each.key, each.records, each.error) for each in exported] == [(key, 3, None), ("plain", 0, None)]
        assert "attachment" not in Path(str(exported[0].path)).read_text()
        (again,) = interchange.import_path(store, str(plain.path), format=format)
        assert (again.already_there, again.error) == ([key], None)
    completed = run("export", "--url", url, "--format", format, "--to", str(tmp_path / "more"), "--all")
    assert completed.returncode == 0
    assert "3 records left out" in completed.stdout


EXCHANGE = [message("hello"), message("hi", role="assistant")]


def test_nanobot_message_with_role_record_is_imported_as_message(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        (tmp_path / "in").mkdir()
        file = tmp_path / "in" / "cli_direct.jsonl"
        head = '{"_type": "metadata", "key": "cli:direct", "created_at": "2026-01-01T12:00:00", "metadata": {}}'
        file.write_text(head + '\n{"role": "record", "content": "x"}\n{"role": "user", "content": "y"}\n')
        (report,) = interchange.import_path(store, file)
        assert (report.messages, store.conversation("cli:direct").info().record_count) == (2, 0)
        (exported,) = interchange.export(store, tmp_path / "out", "nanobot", everything=True)
        assert Path(str(exported.path)).read_text().splitlines()[1:] == file.read_text().splitlines()[1:]


@pytest.mark.slow
def test_sessions_show_prints_a_record_on_one_line(url: str) -> None:
    with Store(url) as store:
        noted(store)
        store.append_message("k", record({"type": "text", "lines": "a\nb"}, author="claude", name="mode"))
        store.append_message("k", record("long " * 100))
    lines = run("sessions", "show", "k", "--url", url).stdout.splitlines()
    assert "2 messages, 5 records" in "\n".join(lines)
    assert "1 record  mode" in lines
    assert r'6 record · claude · mode  {"type": "text", "lines": "a\nb"}' in lines
    (shortened,) = [line for line in lines if line.startswith("7 record  long long")]
    assert shortened.endswith("…")
    full = run("sessions", "show", "k", "--url", url, "--full").stdout
    assert full.count("long") == 100
    last = run("sessions", "show", "k", "--url", url, "--last", "2").stdout
    assert "5 earlier messages and records" in last
