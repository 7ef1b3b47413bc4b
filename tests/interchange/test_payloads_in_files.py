"""Payloads in backups, copies, archives and files of other systems."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.factories import contents, message
from support.golden_backup import BACKUPS
from support.payloads import LARGE, bodies, large_message
from support.session_checks import assert_sound

from lango_store import DamagedMessage, Message, Store
from lango_store.interchange import export, import_path, writable
from lango_store.interchange.copying import copy

OTHER = "y" * 70_000


@pytest.fixture
def target(make_database: MakeDatabase) -> Iterator[Store]:
    """Yield an empty store that keeps all strings of new messages in the rows."""
    with Store(make_database(), payload_threshold=None) as opened:
        yield opened


def fill(store: Store) -> None:
    store.create("k", messages=[message(LARGE), large_message(LARGE, OTHER), message([LARGE]), message("short")])
    store.create("other", messages=[message(OTHER)])


def lose_a_payload(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM lango_payload WHERE session_key = 'k' AND body = '{OTHER}'")


# Backups and copies


@pytest.mark.slow
def test_backup_has_each_payload_once_and_restores_it(store: Store, target: Store, tmp_path: Path) -> None:
    fill(store)
    export(store, tmp_path / "backup.jsonl", "backup", everything=True)
    text = (tmp_path / "backup.jsonl").read_text()
    assert (text.count(LARGE), text.count(OTHER)) == (1, 2)
    assert '"payloads":2' in text
    (report,) = import_path(target, tmp_path / "backup.jsonl")
    assert (report.error, target.conversation("k").messages(), target.conversation("other").messages()) == (
        None,
        store.conversation("k").messages(),
        store.conversation("other").messages(),
    )
    assert (bodies(target), bodies(target, "other")) == ([LARGE, OTHER], [OTHER])
    assert_sound(target)


def test_copy_transfers_all_payloads(store: Store, target: Store) -> None:
    fill(store)
    for expected in ((2, 0), (0, 2)):
        report = copy(store, target)
        assert (report.copied, report.already_there, report.failed) == (*expected, [])
    assert (bodies(target), target.conversation("k").messages()) == ([LARGE, OTHER], store.conversation("k").messages())
    assert_sound(target)


def test_session_with_a_missing_payload_is_reported_and_left_out(store: Store, target: Store, tmp_path: Path) -> None:
    fill(store)
    lose_a_payload(store)
    (failure,) = copy(store, target).failed
    exported = {each.key: each.error for each in export(store, tmp_path / "a.jsonl", "backup", everything=True)}
    assert failure.key == "k"
    for reason in (failure.reason, str(exported["k"])):
        assert "payloads: 1 are missing" in reason
    assert exported["other"] is None
    (report,) = import_path(target, tmp_path / "a.jsonl")
    assert (report.error, report.already_there, target.exists("k")) == (None, ["other"], False)


def test_backup_without_the_line_of_a_payload_is_refused(store: Store, target: Store, tmp_path: Path) -> None:
    path = tmp_path / "backup.jsonl"
    lines = (BACKUPS / "0105.jsonl").read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith('{"payload"'))
    path.write_text("\n".join(lines[:number] + lines[number + 1 :]))
    (report,) = import_path(target, path)
    assert "session 'payloads' is damaged" in str(report.error)


# Files of other systems


@pytest.mark.parametrize("format", sorted(set(writable()) - {"backup", "openai"}))
def test_files_in_other_formats_contain_the_full_text_of_payloads(
    store: Store, target: Store, tmp_path: Path, format: str
) -> None:
    sent = [Message.user(LARGE), Message.assistant(OTHER), Message.user("short")]
    store.create("k", messages=sent)
    folder = tmp_path / "exported"  # the database of the store may be in tmp_path
    folder.mkdir()
    export(store, folder, format, keys=["k"])
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(LARGE in path.read_text() and OTHER in path.read_text() for path in files)
    with Store(target.engine) as importing:
        reports = import_path(importing, folder, format=format)
        (key,) = [key for report in reports for key in report.keys]
        log = importing.conversation(key).messages()
        assert [text in str(each.content) for text, each in zip((LARGE, OTHER, "short"), log, strict=True)] == [
            True
        ] * 3
        assert bodies(importing, key) == [LARGE, OTHER]
        assert_sound(importing)


# Archives


def part_of(text: str) -> bytes:
    """Return a part of a text that a page of a SQLite file holds as a whole."""
    return text[:1_000].encode()


@pytest.mark.slow
def test_archived_payloads_are_restored(store: Store, tmp_path: Path) -> None:
    fill(store)
    before = store.conversation("k").messages()
    store.expire(older_than=timedelta(0), archive=tmp_path / "cold.db")
    assert store.stats().payload_bytes == 0
    restored = store.restore("k", tmp_path / "cold.db")
    assert restored.messages == store.conversation("k").messages() == before
    assert (bodies(store), bodies(store, "other")) == ([LARGE, OTHER], [])
    assert_sound(store)


@pytest.mark.slow
def test_redaction_in_an_archive_removes_payloads_without_references(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "cold.db"
    fill(store)
    store.expire(older_than=timedelta(0), archive=path)
    store.restore("k", path)
    store.restore("other", path)
    store.conversation("other").edits.redact(1, archive=path)
    assert part_of(OTHER) in path.read_bytes()  # of session k
    store.conversation("k").edits.redact(2, archive=path)
    assert part_of(OTHER) not in path.read_bytes()
    assert part_of(LARGE) in path.read_bytes()
    store.delete("k")
    assert contents(store.restore("k", path).messages) == [LARGE, "(redacted)", [LARGE], "short"]
    assert_sound(store)


def test_session_with_a_missing_payload_is_archived_but_cannot_be_restored(store: Store, tmp_path: Path) -> None:
    fill(store)
    lose_a_payload(store)
    assert store.expire(older_than=timedelta(0), archive=tmp_path / "cold.db").sessions == 2
    with pytest.raises(DamagedMessage, match="payloads: 1 are missing"):
        store.restore("k", tmp_path / "cold.db")
    assert store.restore("other", tmp_path / "cold.db").messages[0].content == OTHER


# Memory


def peak(call: Callable[[], object]) -> float:
    """Return the most memory in megabytes that Python objects use during a call."""
    tracemalloc.start()
    call()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


@pytest.mark.slow
def test_copies_and_purges_do_not_load_all_payloads_at_once(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    with Store(make_sqlite()) as store, Store(make_sqlite()) as other, Store(make_sqlite()) as third:
        store.create("k")
        for number in range(300):
            store.append_message("k", message(f"{number} ".ljust(200_000, "x")))  # 60 MB
        assert peak(lambda: copy(store, other)) < 30
        assert peak(lambda: export(store, tmp_path / "backup.jsonl", "backup", everything=True)) < 30
        assert peak(lambda: import_path(third, tmp_path / "backup.jsonl")) < 30
        assert peak(lambda: store.expire(older_than=timedelta(0), archive=tmp_path / "cold.db")) < 50
        assert other.stats().payload_bytes == third.stats().payload_bytes == 60_000_000
        assert json.loads((tmp_path / "backup.jsonl").read_text().splitlines()[-2])["end"]["payloads"] == 300
