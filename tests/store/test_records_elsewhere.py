"""Records in lists of messages, in files and archives, and on the screen."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message
from support.recorded import noted, record
from support.session_checks import assert_sound

from lango_store import MessageRole, Store, ToolCall, interchange, window
from lango_store.archive import Archive
from lango_store.testing import Clock

# Lists of messages


TALK = [
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
PLAIN = [each for each in TALK if each.role is not MessageRole.RECORD]


def test_a_window_of_a_list_leaves_records_out() -> None:
    assert window.as_prompt(TALK) == window.as_prompt(PLAIN)
    assert window.without_orphans(TALK) == PLAIN
    assert window.tail_within(TALK, 11) == PLAIN[-2:]
    for number in range(len(TALK)):
        assert window.legal_suffix(TALK, number) == window.legal_suffix(PLAIN, number)
    for budget in range(25):
        assert window.fit(TALK, budget) == window.fit(PLAIN, budget)
    assert window.evict(TALK, []) == window.evict(TALK, [(5, 2)]) == PLAIN


def test_a_plan_of_what_to_evict_names_places_of_the_list_and_no_records() -> None:
    plan = window.plan_eviction(TALK, 10)
    assert plan == [(2, 3), (5, 5), (7, 7)]
    assert window.evict(TALK, plan) == window.fit(PLAIN, 11)


def test_a_record_answers_no_call() -> None:
    assert window.answers(record(tool_calls=[ToolCall(id="c1", name="dice", output=6)])) == []


def test_a_record_is_in_no_form_of_openai() -> None:
    with pytest.raises(ValueError, match="record is never part of a prompt"):
        record().to_openai()
    assert window.as_prompt([record()]) == []


# On the way in and out


def test_records_travel_with_their_session(url: str, make_database: MakeDatabase, tmp_path: Path, clock: Clock) -> None:
    with Store(url, clock=clock) as store, Store(make_database(), clock=clock) as other:
        conversation = noted(store, ttl=timedelta(hours=1))
        log, info = conversation.all_messages(), conversation.info()
        interchange.export(store, tmp_path / "all.jsonl", "jsonl", everything=True)
        interchange.import_path(other, tmp_path / "all.jsonl")
        assert other.conversation("k").all_messages() == log
        assert other.info("k").model_copy(update={"revision": info.revision}) == info
        assert_sound(other)
        clock.move(hours=2)
        assert store.expire(archive=tmp_path / "cold.db").messages == 2
        with Archive(tmp_path / "cold.db") as archive:
            assert [each["key"] for each in archive.search("attachment")] == ["k"]
        store.restore(tmp_path / "cold.db", "k")
        assert store.conversation("k").all_messages() == log
        assert_sound(store)


@pytest.mark.parametrize("format", [name for name in interchange.writable() if name != "jsonl"])
def test_an_export_to_another_system_leaves_records_out_and_says_how_many(
    url: str, tmp_path: Path, format: str
) -> None:
    with Store(url) as store:
        store.create("plain", messages=SPOKEN)
        store.create("k", messages=SPOKEN)
        (plain,) = interchange.export(store, tmp_path / "plain", format, keys=["k"])
        store.delete("k")
        ((key,),) = [each.keys for each in interchange.import_path(store, str(plain.path), format=format)]
        store.append_messages(key, [record("mode"), record("cost"), record("attachment")])
        done = interchange.export(store, tmp_path / "out", format, keys=[key, "plain"])
        assert [(each.key, each.records, each.error) for each in done] == [(key, 3, None), ("plain", 0, None)]
        assert "attachment" not in Path(str(done[0].path)).read_text()
        (again,) = interchange.import_path(store, str(plain.path), format=format)
        assert (again.already_there, again.error) == ([key], None)
    ran = run("export", "--url", url, "--format", format, "--to", str(tmp_path / "more"), "--all")
    assert ran.returncode == 0
    assert "3 records left out" in ran.stdout


SPOKEN = [message("hello"), message("hi", role="assistant")]


def test_what_another_system_calls_a_record_is_a_message_and_goes_back_as_it_was(url: str, tmp_path: Path) -> None:
    with Store(url) as opened:
        (tmp_path / "in").mkdir()
        file = tmp_path / "in" / "cli_direct.jsonl"
        head = '{"_type": "metadata", "key": "cli:direct", "created_at": "2026-01-01T12:00:00", "metadata": {}}'
        file.write_text(head + '\n{"role": "record", "content": "x"}\n{"role": "user", "content": "y"}\n')
        (report,) = interchange.import_path(opened, file)
        assert (report.messages, opened.info("cli:direct").record_count) == (2, 0)
        (done,) = interchange.export(opened, tmp_path / "out", "nanobot", everything=True)
        assert Path(str(done.path)).read_text().splitlines()[1:] == file.read_text().splitlines()[1:]


@pytest.fixture
def opened(url: str) -> Any:
    with Store(url) as store:
        yield store


def test_show_prints_a_record_on_one_line(url: str) -> None:
    with Store(url) as store:
        noted(store)
        store.append_message("k", record({"type": "text", "lines": "a\nb"}, author="claude", name="mode"))
        store.append_message("k", record("long " * 100))
    shown = run("sessions", "show", "k", "--url", url).stdout.splitlines()
    assert "2 messages, 5 records" in "\n".join(shown)
    assert "1 record  mode" in shown
    assert r'6 record · claude · mode  {"type": "text", "lines": "a\nb"}' in shown
    (cut,) = [line for line in shown if line.startswith("7 record  long long")]
    assert cut.endswith("…")
    full = run("sessions", "show", "k", "--url", url, "--full").stdout
    assert full.count("long") == 100
    last = run("sessions", "show", "k", "--url", url, "--last", "2").stdout
    assert "5 earlier messages and records" in last
