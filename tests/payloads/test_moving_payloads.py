"""`move_payloads`: large strings of stored messages are moved to payloads and back, in batches."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import contents, message
from support.locks import until_one_waits
from support.payloads import LARGE, bodies, large_message, listings, row
from support.processes import run_program
from support.session_checks import assert_sound

from lango_store import Message, Store, ToolCall
from lango_store._rows.payloads import digest_of

KEYS = ("a", "b", "c")


@pytest.fixture
def whole(url: str) -> Iterator[Store]:
    """Yield a store that keeps all strings in the rows, with three sessions of six messages."""
    with Store(url, payload_threshold=None) as store:
        for key in KEYS:
            sent = [message(LARGE), message("short"), large_message(LARGE, key * 70_000), message([LARGE], id="x")]
            store.create(key, messages=sent)
            store.conversation(key).save_turn([message({"é": [LARGE, None]})], {"tokens": 1})
            store.append_message(key, message(LARGE + "\0", role="record"))
        yield store


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first batch two messages long."""
    monkeypatch.setattr("lango_store._operations.pace._FIRST", 2)


def everything(store: Store) -> list[Any]:
    return [(store.get(key), store.conversation(key).all_messages()) for key in KEYS]


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_reads_are_unchanged_after_payloads_are_moved(whole: Store) -> None:
    before = everything(whole)
    numbers: list[int] = []
    assert whole.maintenance.move_payloads(on_batch=numbers.append) == 12
    assert everything(whole) == before
    assert [bodies(whole, key) for key in KEYS] == [sorted([LARGE, key * 70_000]) for key in KEYS]
    assert [listing is not None for listing in listings(whole, "a")] == [True, False, True, True, True, False]
    assert numbers == sorted(numbers)
    assert len(numbers) > 2
    assert numbers[-1] == 12
    assert whole.maintenance.move_payloads(on_batch=numbers.append) == 0
    assert_sound(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_rows_are_unchanged_after_payloads_are_moved_and_moved_back(whole: Store) -> None:
    before = everything(whole), [row(whole, seq, key) for key in KEYS for seq in range(1, 7)]
    for _ in range(2):
        assert whole.maintenance.move_payloads() == 12
        assert whole.maintenance.move_payloads(threshold=None) == 12
        assert (everything(whole), [row(whole, seq, key) for key in KEYS for seq in range(1, 7)]) == before
        assert [bodies(whole, key) for key in KEYS] == [[], [], []]
    assert whole.maintenance.move_payloads(threshold=None) == 0
    assert_sound(whole)


def test_rows_after_a_move_of_payloads_equal_rows_of_messages_appended_with_payloads(
    whole: Store, store: Store
) -> None:
    sent = [each.model_copy(update={"id": None}) for each in whole.conversation("a").all_messages()]
    whole.conversation("new").append_messages(sent, create=True)
    whole.maintenance.move_payloads()
    store.conversation("direct").append_messages(sent, create=True)
    assert bodies(store, "new") == bodies(store, "direct")
    assert listings(store, "new") == listings(store, "direct")
    for seq in range(1, 7):
        moved, appended = row(store, seq, "new"), row(store, seq, "direct")
        own = dict.fromkeys(("session_key", "created_at", "logged_at"))
        assert moved | own == appended | own


@pytest.mark.parametrize("threshold", [70_000, 65_537, 1])
def test_strings_shorter_than_the_given_length_are_not_moved(whole: Store, threshold: int) -> None:
    before = everything(whole)
    whole.maintenance.move_payloads(threshold=threshold)
    assert {*bodies(whole, "a")} - {"short", "text"} == ({LARGE} if threshold == 1 else set()) | {"a" * 70_000}
    assert everything(whole) == before
    assert_sound(whole)


def test_move_payloads_skips_messages_of_several_shorter_strings(store: Store) -> None:
    store.create("k", messages=[message(["x" * 60, "y" * 60])])
    assert store.maintenance.move_payloads(threshold=100) == 0
    assert bodies(store) == []


def test_move_payloads_skips_messages_that_already_have_payloads(store: Store) -> None:
    store.create("k", messages=[message([LARGE, "y" * 100]), message("y" * 100)])
    assert store.maintenance.move_payloads(threshold=100) == 1
    assert bodies(store) == [LARGE, "y" * 100]
    assert [row(store, seq)["text"] or row(store, seq)["content"] for seq in (1, 2)] == [f'["","{"y" * 100}"]', None]


@pytest.mark.parametrize("threshold", [0, -1])
def test_invalid_length_is_refused(store: Store, threshold: int) -> None:
    with pytest.raises(ValueError, match=f"threshold={threshold} is not positive"):
        store.maintenance.move_payloads(threshold=threshold)


def test_ids_and_names_of_tool_calls_are_not_moved(whole: Store) -> None:
    call = ToolCall(id="i" * 50, name="n" * 50, arguments={"name": "m" * 50})
    whole.create("k", messages=[Message.assistant(tool_calls=[call])])
    whole.maintenance.move_payloads(threshold=50)
    assert bodies(whole) == ["m" * 50]
    assert whole.conversation("k").messages()[0].tool_calls == [call]


# Interruptions and other processes


class Stopped(Exception):
    pass


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("threshold", [65_536, None])
def test_interrupted_move_can_be_repeated(whole: Store, threshold: int | None) -> None:
    if threshold is None:
        whole.maintenance.move_payloads()
    before = everything(whole)

    def stop(moved: int) -> None:
        if moved:
            raise Stopped

    interruptions = 0
    while interruptions < 20:
        try:
            assert whole.maintenance.move_payloads(threshold=threshold, on_batch=stop) == 0
            break
        except Stopped:
            interruptions += 1
            assert everything(whole) == before
            assert_sound(whole)
    assert 2 < interruptions < 20
    assert [bool(bodies(whole, key)) for key in KEYS] == [threshold is not None] * 3


APPENDER = """
import sys
from lango_store import Message, Store
with Store(sys.argv[1]) as store:
    for key in ("a", "b", "c"):
        store.append_message(key, Message.user(sys.argv[2] * 70_000))
        store.append_message(key, Message.user("x" * 65_536))
        store.conversation(key).edits.update(1, Message.user([sys.argv[2] * 70_000]))
        store.conversation(key).edits.delete("x")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("threshold", [65_536, None])
def test_another_process_can_write_between_batches_of_a_move(whole: Store, url: str, threshold: int | None) -> None:
    if threshold is None:
        whole.maintenance.move_payloads()
    texts = iter("pqr")

    def write(_: int) -> None:
        if text := next(texts, None):
            for each in KEYS:
                whole.append_message(each, message("again", id="x"))
            done = run_program(APPENDER, url, text)
            assert (done.returncode, done.stderr) == (0, "")

    whole.maintenance.move_payloads(threshold=threshold, on_batch=write)
    for key in KEYS:
        log = contents(whole.conversation(key).all_messages())
        assert log[0] == ["r" * 70_000]
        assert log[-6:] == [text for each in "pqr" for text in (each * 70_000, LARGE)]
    assert_sound(whole)


@pytest.mark.parametrize("threshold", [65_536, None])
def test_move_waits_for_a_transaction_that_edits_the_session(
    make_postgres: MakeDatabase, threshold: int | None
) -> None:
    url = make_postgres()
    with Store(url, payload_threshold=None if threshold else 65_536) as store, ThreadPoolExecutor(1) as pool:
        store.create("k", messages=[message(LARGE), message(LARGE)])
        with store.engine.connect() as host:
            store.using(host).conversation("k").edits.update(1, message("y" * 70_000))
            moving = pool.submit(store.maintenance.move_payloads, threshold=threshold)
            until_one_waits(store.engine)
            host.commit()
        moving.result()
        assert contents(store.conversation("k").messages()) == ["y" * 70_000, LARGE]
        assert_sound(store)


def test_move_leaves_revision_and_times_unchanged(whole: Store) -> None:
    before = [whole.conversation(key).info() for key in KEYS]
    whole.maintenance.move_payloads()
    assert [whole.conversation(key).info() for key in KEYS] == before


# Command line and statistics


@pytest.mark.slow
def test_payloads_move_command_moves_strings_out_and_back(whole: Store, url: str) -> None:
    before = everything(whole)
    assert run("payloads", "move", "--url", url).stdout == "changed 12 messages\n"
    assert bodies(whole, "a") == ["a" * 70_000, LARGE]
    assert run("payloads", "move", "--url", url).stdout == "changed 0 messages\n"
    assert everything(whole) == before
    assert run("payloads", "move", "--back", "--url", url).stdout == "changed 12 messages\n"
    assert (bodies(whole, "a"), everything(whole)) == ([], before)
    assert run("payloads", "move", "--threshold", "70000", "--url", url).stdout == "changed 3 messages\n"
    assert bodies(whole, "a") == ["a" * 70_000]


def test_payloads_move_command_refuses_a_length_below_one(url: str) -> None:
    done = run("payloads", "move", "--threshold", "0", "--url", url)
    assert (done.returncode, "--threshold" in done.stderr) == (2, True)


def test_stats_show_what_payloads_save(whole: Store, url: str) -> None:
    assert (whole.stats().payload_bytes, whole.stats().saved_bytes) == (0, 0)
    assert "payloads" not in run("stats", "--url", url).stdout
    whole.maintenance.move_payloads()
    unique, all_places = 3 * (65_536 + 70_000), 3 * (7 * 65_536 + 4 * 70_000)
    stats = whole.stats()
    assert (stats.payload_bytes, stats.saved_bytes) == (unique, all_places - unique)
    shown = run("stats", "--url", url).stdout
    assert "406.6 kB of payloads, 1.8 MB saved by storing each once per session" in shown
    shown_json = json.loads(run("stats", "--json", "--url", url).stdout)
    assert (shown_json["payload_bytes"], shown_json["saved_bytes"]) == (unique, all_places - unique)


def test_stats_count_payloads_of_messages_and_removed_versions_once_per_session(url: str) -> None:
    with Store(url, keep_removed=timedelta(days=1)) as store:
        for key in KEYS:
            store.create(key, messages=[message(LARGE), message(LARGE)])
            store.conversation(key).edits.delete(1)
        stats = store.stats()
    assert (stats.payload_bytes, stats.saved_bytes) == (3 * 65_536, 3 * 65_536)


# Doctor


@pytest.mark.slow
def test_doctor_reports_missing_payloads(whole: Store) -> None:
    whole.maintenance.move_payloads()
    with whole.engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM lango_payload WHERE session_key = 'b' AND body = '{'b' * 70_000}'")
    found = [each for each in whole.maintenance.examine(repair=True) if each.name != "settings"]
    assert [(each.name, each.subject, each.repaired) for each in found] == [("missing payload", "b", False)]
    assert f"payload {digest_of('b' * 70_000)} of message 3 is missing" in found[0].detail
    assert "redact or delete message 3" in found[0].remedy
    damaged = whole.conversation("b").all_messages(damaged="return")[2]
    assert "payload" in str(damaged)
    assert whole.maintenance.move_payloads(threshold=None) == 11
    whole.conversation("b").edits.redact(3)
    assert_sound(whole)


@pytest.mark.slow
def test_doctor_deletes_unused_payloads(whole: Store) -> None:
    whole.maintenance.move_payloads()
    with whole.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO lango_payload VALUES ('a', 'unused 1', 'x'), ('a', 'unused 2', 'y')")
        other = f"SELECT 'c', digest, body FROM lango_payload WHERE body = '{'b' * 70_000}'"
        connection.exec_driver_sql(f"INSERT INTO lango_payload {other}")
    before = everything(whole)
    found = [each for each in whole.maintenance.examine() if each.name == "unused payload"]
    assert [(each.subject, each.repaired) for each in found] == [("a", False), ("c", False)]
    assert "session 'a': 2 payloads belong to no message" in found[0].detail
    repaired = [each for each in whole.maintenance.examine(repair=True) if each.name == "unused payload"]
    assert [(each.subject, each.repaired) for each in repaired] == [("a", True), ("c", True)]
    assert everything(whole) == before
    assert_sound(whole)


@pytest.mark.slow
def test_doctor_reports_a_changed_payload(whole: Store) -> None:
    whole.maintenance.move_payloads()
    with whole.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_payload SET body = 'changed' WHERE body = '{'a' * 70_000}'")
    (found,) = [each for each in whole.maintenance.examine() if each.name != "settings"]
    assert (found.subject, digest_of("a" * 70_000) in found.detail) == ("a", True)
    assert "body: does not match its digest" in found.detail
