"""Records: what nobody said and no model sees. They lie in the log, and in nothing that a model is shown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from commands import run
from conftest import Clock, Counts, MakeDatabase, counted, watched
from factories import contents, message, messages, seqs
from session_checks import assert_sound

from lango_store import (
    Conflict,
    Conversation,
    DatabaseUnavailable,
    Message,
    MessageRole,
    Store,
    ToolCall,
    create_engine,
    interchange,
    window,
)
from lango_store.archive import Archive


def record(content: Any = "a record", **fields: Any) -> Message:
    return message(content, role=MessageRole.RECORD, **fields)


def noted(store: Store, key: str = "k", **fields: Any) -> Conversation:
    """A session of a question and its answer, with a record before, between and behind them."""
    conversation = store.open(key, messages=[record("mode")], **fields)
    conversation.save_turn([message("hello"), record("cost"), message("hi", role="assistant")], {"tokens": 3})
    conversation.append_message(record("attachment", id="r"))
    return conversation


LOG = ["mode", "hello", "cost", "hi", "attachment"]
SAID = ["hello", "hi"]


# Where they are, and where not


def test_a_record_is_in_the_log_and_in_no_window(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.all_messages()) == contents(conversation.iter_messages(page_size=2)) == LOG
    assert contents(each for each in conversation.salvage() if isinstance(each, Message)) == LOG
    assert contents(conversation.all_messages(last=2)) == ["hi", "attachment"]
    found = conversation.find_message("r")
    assert found is not None
    assert (found.role, found.seq) == (MessageRole.RECORD, 5)

    assert contents(conversation.get().messages) == contents(conversation.messages()) == SAID
    assert contents(conversation.messages(last=1)) == ["hi"]
    assert contents(conversation.messages(last=9)) == SAID
    assert conversation.history(last=2) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]
    last = conversation.last_message()
    assert last is not None
    assert last.content == "hi"
    assert conversation.last_message(MessageRole.RECORD) is None
    (turn,) = conversation.turns()
    assert contents(conversation.messages_of(turn)) == ["hello", "cost", "hi"]


def test_a_session_of_nothing_but_records_shows_nothing(store: Store) -> None:
    conversation = store.open("k", messages=[record(), record()])
    assert conversation.messages() == conversation.get().messages == conversation.messages(last=3) == []
    assert conversation.history() == []
    assert conversation.last_message() is None
    assert conversation.compact(lambda shown: pytest.fail("nothing to sum up")) is None
    assert seqs(conversation.all_messages()) == [1, 2]
    assert_sound(store)


def test_what_create_gives_is_what_get_gives(store: Store) -> None:
    made = store.create("k", messages=[record(tokens=7), message(tokens=2), record()])
    assert made == store.get("k")
    assert (made.message_count, made.record_count, made.last_seq, made.token_count) == (1, 2, 3, 2)
    assert store.create("of records", messages=[record()]) == store.get("of records")


def test_records_are_counted_apart(store: Store) -> None:
    conversation = noted(store)
    conversation.append_messages([record(tokens=100), message(tokens=5)])
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_seq, info.token_count) == (3, 4, 7, 5)
    found = store.stats()
    assert (found.messages, found.tokens, found.roles) == (3, 5, {"record": 4, "user": 2, "assistant": 1})
    assert_sound(store)


def test_the_tokens_of_a_record_are_not_counted_for_it(url: str) -> None:
    with Store(url, token_counter=lambda each: len(each.content)) as store:
        store.create("k", messages=[record({"no": "text"}), message("four")])
        assert store.info("k").token_count == 4
        assert store.all_messages("k")[0].tokens is None


def test_an_id_of_a_record_is_stored_once(store: Store) -> None:
    conversation = noted(store)
    again, new = conversation.append_messages([record("attachment", id="r"), record("another")])
    assert (again.seq, again.replayed, new.seq, new.replayed) == (5, True, 6, False)
    assert conversation.info().record_count == 4
    made = store.append_message("new", record(id="r"), create=True)
    assert (made.seq, store.info("new").record_count, store.info("new").message_count) == (1, 1, 0)
    assert_sound(store)


def test_a_summary_is_put_in_though_records_came_in_while_it_was_written(opened: Store) -> None:
    conversation = noted(opened)
    pending = conversation.begin_compaction()
    assert pending is not None
    conversation.append_messages([record(), message("meanwhile"), record()])
    done = conversation.finish_compaction(pending, message("summary"))
    assert done.replaced_messages == 2
    assert contents(conversation.messages()) == ["summary", "meanwhile"]


# What an append and a read cost


@pytest.mark.parametrize("batch", [[record()], [record(id="a"), message()], [message(), *[record()] * 500]])
def test_an_append_of_records_is_one_statement_and_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, batch: list[Message]
) -> None:
    with Store(one_connection) as store:
        for key in ("other", "k"):
            store.create(key)
            with counted(one_connection, tmp_path) as counts:
                store.append_messages(key, batch)
        assert counts == Counts(1, 1)


def test_a_load_of_a_log_with_records_is_two_round_trips(one_connection: sa.Engine, tmp_path: Path) -> None:
    with Store(one_connection) as store:
        noted(store)
        with counted(one_connection, tmp_path) as counts:
            assert contents(store.get("k").messages) == SAID
        assert counts == Counts(2, 2)


def test_an_append_without_records_says_nothing_of_them(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        store.create("k")
        with watched(engine) as statements:
            store.append_message("k", message())
            store.conversation("k").save_turn(messages(2))
    assert statements
    assert not [each for each in statements if "record" in each]


def cost_of_the_end(engine: sa.Engine, number: int) -> tuple[int, int]:
    """Say what the last 50 of a log cost whose every fourth row is a message: rows and pages, or SQLite's steps."""
    with Store(engine) as store:
        store.create("k", messages=[each for n in range(number) for each in (message(n), *[record("x" * 300)] * 3)])
        with watched(engine) as statements:
            assert contents(store.messages("k", last=50)) == list(range(number - 50, number))
    (statement,) = statements
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        if engine.dialect.name == "sqlite":
            steps: list[int] = []
            driver.set_progress_handler(lambda: steps.append(1), 1)
            driver.execute(statement).fetchall()
            driver.set_progress_handler(None, 0)
            return len(steps), 0
        connection.exec_driver_sql("ANALYZE lango_message")  # as autovacuum does
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        values = {"key": "k", "limit": 50, "now": None}
        plan = connection.exec_driver_sql(explained, values).scalar_one()[0]["Plan"]
        (walk,) = [part for part in _parts(plan) if part.get("Index Name") == "pk_lango_message"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return walk["Actual Rows"] + walk["Rows Removed by Filter"], pages


def _parts(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(part for below in plan.get("Plans", []) for part in _parts(below))]


def test_the_end_of_a_log_of_records_costs_no_more_the_longer_the_log_is(make_database: MakeDatabase) -> None:
    engines = [create_engine(make_database()) for _ in range(2)]
    short, long = map(cost_of_the_end, engines, (500, 5_000))
    for engine in engines:
        engine.dispose()
    assert long[0] == pytest.approx(short[0], rel=0.02)
    assert long[1] <= short[1] + 3  # the index is a level deeper
    if engines[0].dialect.name == "postgresql":
        assert short[0] == 200  # four rows for each message


def test_what_a_large_record_holds_is_not_read_with_the_messages(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    large = "r" * 100_000
    with Store(url) as store:
        store.create("k", messages=[message("first"), record(large), message("last"), record(large)])
    path = Path(sa.make_url(url).database or "")
    pages = path.read_bytes()
    holding = b"r" * 4_000
    damaged = [b"\xff" * 4 + each[4:] if holding in each else each for each in _pages(pages)]
    assert sum(holding in each for each in damaged) > 40
    path.write_bytes(b"".join(damaged))
    with Store(url) as store:
        with pytest.raises(DatabaseUnavailable, match="malformed"):
            store.all_messages("k")
        assert contents(store.get("k").messages) == contents(store.messages("k", last=2)) == ["first", "last"]
        assert len(store.conversation("k").history()) == 2
        last = store.conversation("k").last_message()
        assert last is not None
        assert last.content == "last"


def _pages(file: bytes, size: int = 4096) -> list[bytes]:
    return [file[at : at + size] for at in range(0, len(file), size)]


# Taken away


def test_a_pop_passes_records_by(store: Store) -> None:
    conversation = noted(store)
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.content == "hi"
    assert contents(conversation.all_messages()) == ["mode", "hello", "cost", "attachment"]
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns()] == [(2, 3)]
    popped = store.pop_message("k")
    assert popped is not None
    assert popped.content == "hello"
    (turn,) = conversation.turns()
    assert contents(conversation.messages_of(turn)) == ["cost"]
    assert (conversation.pop_message(), conversation.total_usage()) == (None, {"tokens": 3})
    assert_sound(store)


def test_a_pop_with_records_takes_the_last_of_the_log(store: Store) -> None:
    conversation = noted(store)
    popped = [conversation.pop_message(records=True) for _ in range(6)]
    assert contents(each for each in popped if each is not None) == LOG[::-1]
    assert popped[-1] is None
    assert conversation.turns() == []
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_seq) == (0, 0, 10)
    assert_sound(store)


def test_a_turn_whose_messages_are_popped_keeps_the_records_behind_them(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("hello"), message("hi", role="assistant"), record("cost")], {"tokens": 3})
    for left in ["hello", "cost"], ["cost"]:
        assert conversation.pop_message() is not None
        (turn,) = conversation.turns()
        assert contents(conversation.messages_of(turn)) == left
    assert conversation.total_usage() == {"tokens": 3}
    assert_sound(store)


def test_cuts_take_records_and_count_messages(store: Store) -> None:
    conversation = noted(store)
    assert conversation.truncate(after=4) == 0
    assert contents(conversation.all_messages()) == LOG[:4]
    assert conversation.truncate(after=1) == 2
    assert contents(conversation.all_messages()) == LOG[:1]
    conversation.append_messages([message("stays", role="system"), message("goes"), record()])
    assert conversation.clear(keep_system=True) == 1
    assert contents(conversation.all_messages()) == ["stays"]
    assert conversation.info().record_count == 0
    assert_sound(store)


def test_a_replacement_takes_the_records_behind_it(store: Store) -> None:
    conversation = noted(store)
    conversation.append_messages([message("hi again", role="assistant"), record("new")], replace_after=3)
    assert contents(conversation.all_messages()) == ["mode", "hello", "cost", "hi again", "new"]
    assert conversation.info().record_count == 3
    assert_sound(store)


def test_a_record_is_edited_as_a_message_is(store: Store) -> None:
    conversation = noted(store)
    window_before = conversation.messages()
    assert conversation.update_message("r", record("smaller", tokens=9)).content == "smaller"
    redacted = conversation.redact_message(3)
    assert (redacted.role, redacted.content, redacted.turn_no) == (MessageRole.RECORD, None, 1)
    conversation.delete_message("r")
    assert conversation.messages() == window_before
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count) == (2, 2, 0)
    assert_sound(store)


def test_a_message_that_becomes_a_record_leaves_the_window_and_its_count(store: Store) -> None:
    conversation = store.open("k", messages=[message(n, tokens=n) for n in (1, 2, 3)])
    conversation.update(last_consolidated=2)
    conversation.update_message(1, record(1, tokens=1))
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.last_consolidated) == (2, 1, 5, 1)
    assert contents(conversation.messages()) == [2, 3]
    assert len(conversation.history(from_consolidated=True)) == 1
    conversation.update_message(1, message("one", tokens=4))
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.last_consolidated) == (3, 0, 9, 2)
    conversation.update_message(3, record())
    assert (conversation.info().last_consolidated, conversation.history(from_consolidated=True)) == (2, [])
    assert_sound(store)


def test_a_record_behind_what_is_consolidated_becomes_a_message_that_is_not(store: Store) -> None:
    conversation = store.open("k", messages=[message(1), record(2), message(3)])
    conversation.update(last_consolidated=1)
    conversation.update_message(2, message("two"))
    assert conversation.info().last_consolidated == 1
    assert len(conversation.history(from_consolidated=True)) == 2
    conversation.delete_message(2)
    assert conversation.info().last_consolidated == 1


# Summaries and branches


def test_a_summary_replaces_messages_and_leaves_records_in_the_log(store: Store) -> None:
    conversation = noted(store)
    done = conversation.compact(lambda shown: [message(f"{contents(shown)}"), record("of the summary")])
    assert done is not None
    assert done.replaced_messages == 2
    assert contents(conversation.messages()) == [f"{SAID}"]
    assert contents(conversation.all_messages()) == [*LOG, f"{SAID}", "of the summary"]
    assert contents(conversation.messages(last=1)) == [f"{SAID}"]
    assert_sound(store)


def test_a_summary_that_discards_leaves_the_records_which_it_does_not_speak_of(store: Store) -> None:
    conversation = noted(store)
    conversation.update(last_consolidated=2)
    conversation.compact(lambda shown: message("summary"), discard=True)
    assert [(each.content, each.turn_no) for each in conversation.all_messages()] == [
        ("mode", None),
        ("cost", None),
        ("attachment", None),
        ("summary", 2),
    ]
    assert contents(conversation.messages()) == ["summary"]
    assert conversation.total_usage() == {"tokens": 3}
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_consolidated) == (1, 3, 0)
    with pytest.raises(Conflict):
        conversation.truncate(after=1)
    assert_sound(store)


def test_a_fork_takes_the_records_along(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.fork("whole").all_messages()) == LOG
    part = conversation.fork("part", upto=3)
    assert contents(part.all_messages()) == LOG[:3]
    info = part.info()
    assert (info.message_count, info.record_count) == (1, 2)
    before = conversation.fork("before", before_user_message=-1)
    assert (contents(before.all_messages()), before.messages()) == (["mode"], [])
    assert_sound(store)


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


def test_records_behind_a_deleted_message_count_for_nothing_that_was_consolidated(store: Store) -> None:
    store.create("k", messages=[*messages(3), record(), record()])
    store.update("k", last_consolidated=1)
    store.delete_message("k", 2)
    assert store.info("k").last_consolidated == 1
    store.delete_message("k", 1)
    assert store.info("k").last_consolidated == 0


def test_a_record_answers_no_call() -> None:
    assert window.answers(record(tool_calls=[ToolCall(id="c1", name="dice", output=6)])) == []


def test_a_record_is_in_no_form_of_openai() -> None:
    with pytest.raises(ValueError, match="record is in no prompt"):
        record().to_openai()
    assert window.as_prompt([record()]) == []


# On the way in and out


def test_records_travel_with_their_session(url: str, make_database: MakeDatabase, tmp_path: Path, clock: Clock) -> None:
    with Store(url, clock=clock) as store, Store(make_database(), clock=clock) as other:
        conversation = noted(store, ttl=timedelta(hours=1))
        log, info = conversation.all_messages(), conversation.info()
        interchange.export(store, tmp_path / "all.jsonl", "jsonl", everything=True)
        interchange.import_path(other, tmp_path / "all.jsonl")
        assert other.all_messages("k") == log
        assert other.info("k").model_copy(update={"revision": info.revision}) == info
        assert_sound(other)
        clock.move(hours=2)
        assert store.expire(archive=tmp_path / "cold.db").messages == 2
        with Archive(tmp_path / "cold.db") as archive:
            assert [each["key"] for each in archive.search("attachment")] == ["k"]
        store.restore(tmp_path / "cold.db", "k")
        assert store.all_messages("k") == log
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
    ran = run("export", "--url", url, "--format", format, "--to", str(tmp_path / "more"), "--all", "--verbose")
    assert ran.returncode == 0
    assert f"3 records were left out, as {format} has none" in ran.stdout
    assert ", 3 records left out" in ran.stdout
    assert "0 records" not in ran.stdout


SPOKEN = [message("hello"), message("hi", role="assistant")]


def test_what_another_system_calls_a_record_is_a_message_and_goes_back_as_it_was(opened: Store, tmp_path: Path) -> None:
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
    assert "2 messages, 5 records, 0 tokens" in "\n".join(shown)
    assert "1 record  mode" in shown
    assert r'6 record · claude · mode  {"type": "text", "lines": "a\nb"}' in shown
    (cut,) = [line for line in shown if line.startswith("7 record  long long")]
    assert cut.endswith("…")
    full = run("sessions", "show", "k", "--url", url, "--full").stdout
    assert full.count("long") == 100
    last = run("sessions", "show", "k", "--url", url, "--last", "2").stdout
    assert "5 earlier messages and records" in last


# What the doctor says


def test_a_wrong_count_of_records_is_found_and_mended(opened: Store) -> None:
    noted(opened)
    with opened.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET record_count = 1, message_count = 4")
    (finding,) = [each for each in opened.examine(repair=True) if each.name == "wrong counters"]
    assert "record_count is 1, there are 3" in finding.detail
    info = opened.info("k")
    assert (info.message_count, info.record_count) == (2, 3)
    assert_sound(opened)
