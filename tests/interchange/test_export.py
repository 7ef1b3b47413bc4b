"""Exports in every format: consistent, and complete or absent."""

import errno
import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run, run_process
from support.drafts import draft
from support.factories import message, messages
from support.paths import DATA

from lango_store import InvalidFile, Store, interchange
from lango_store.interchange.files import atomic_writer
from lango_store.testing import Clock

CONVERSATION = DATA / "nanobot_g1" / "telegram_12345678.jsonl"


def test_export_selects_sessions_by_key_user_or_all(opened: Store, tmp_path: Path, clock: Clock) -> None:
    for number in range(3):
        opened.create(f"k:{number}", user_id="ann" if number else "bob", messages=messages(1))
    opened.create("old", user_id="ann", ttl=timedelta(hours=1))
    clock.move(hours=2)

    def exported(**chosen: Any) -> list[str]:
        return [each.key for each in interchange.export(opened, tmp_path / "out", "nanobot", **chosen)]

    assert exported(keys=["k:2", "k:0"]) == ["k:2", "k:0"]
    assert exported(user_id="ann") == ["k:1", "k:2"]
    assert exported(everything=True) == ["k:0", "k:1", "k:2"]
    assert exported(key_prefix="k:", updated_before=clock.time) == ["k:0", "k:1", "k:2"]
    opened.append_message("k:1", message())
    assert exported(updated_since=clock.time) == ["k:1"]
    assert exported(limit=2, user_id="ann") == ["k:1", "k:2"]
    assert exported(limit=1) == ["k:1"]
    with pytest.raises(TypeError, match="expired"):
        exported(expired=True)
    with pytest.raises(ValueError, match="give exactly one of keys"):
        exported()
    with pytest.raises(ValueError, match="give exactly one of keys"):
        exported(user_id="ann", everything=True)


def test_missing_session_does_not_stop_the_export_of_other_sessions(opened: Store, tmp_path: Path) -> None:
    opened.create("k")
    missing, there = interchange.export(opened, tmp_path, "nanobot", keys=["missing", "k"])
    assert "no session 'missing'" in str(missing.error)
    assert missing.path is None
    assert there.error is None


def test_damaged_session_leaves_no_partial_file(opened: Store, tmp_path: Path) -> None:
    opened.create("k", messages=messages(3))
    with opened.engine.begin() as connection:
        connection.execute(sa.text("UPDATE lango_message SET role = 'nobody' WHERE seq = 3"))
    (report,) = interchange.export(opened, tmp_path / "out", "nanobot", keys=["k"])
    assert "message 3 of session 'k' cannot be read" in str(report.error)
    assert not [*(tmp_path / "out").iterdir()]


@pytest.mark.parametrize("links", [True, False])
def test_only_one_concurrent_export_to_a_file_succeeds(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", refuse)

    def export(number: int) -> bytes | None:
        content = bytes([number]) * 100
        try:
            with atomic_writer(path) as file:
                file.write(content)
                together.wait()
        except InvalidFile:
            return None
        return content

    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for round_ in range(60):
            path = tmp_path / str(round_)
            (done,) = [content for content in threads.map(export, range(4)) if content is not None]
            assert path.read_bytes() == done
    assert len(list(tmp_path.iterdir())) == 60


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o600), (0o277, 0o400)])
@pytest.mark.parametrize("format", ["nanobot", "dive", "shepherd", "backup"])
def test_exported_files_are_readable_by_owner_only(
    opened: Store, tmp_path: Path, format: str, umask: int, mode: int
) -> None:
    opened.create("k")
    before = os.umask(umask)
    try:
        (done,) = interchange.export(opened, tmp_path, format, keys=["k"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(str(done.path)).stat().st_mode) == mode


def test_unwritable_folder_raises_store_error(opened: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    opened.create("k")
    (report,) = interchange.export(opened, tmp_path / "file", "nanobot", keys=["k"])
    assert "cannot be written" in str(report.error)


def test_unfinished_export_cannot_be_imported(opened: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    opened.create("k")
    interchange.export(opened, out, "backup", keys=["k"])
    done = out / "lango_store.jsonl"
    with atomic_writer(out / "next.jsonl") as file:
        file.write(done.read_bytes()[:-5])
        file.flush()
        assert len(list(out.iterdir())) == 2
        assert interchange.files_of(out) == [(done, "backup")]


def test_export_refuses_a_format_that_can_only_be_imported(opened: Store, given: Any) -> None:
    given(draft("k"))
    with pytest.raises(ValueError, match="given can only be imported: export to one of "):
        interchange.export(opened, ".", "given", everything=True)


def test_backup_to_a_pipe_holds_no_connection_while_its_reader_waits(opened: Store, tmp_path: Path) -> None:
    for key in ("a", "b"):
        opened.create(key, messages=messages(100, content="x" * 1000))  # more than a pipe takes without a reader
    reader, writer = os.pipe()

    def write() -> list[interchange.Exported]:
        with os.fdopen(writer, "wb") as file:
            return interchange.export(opened, file, "backup", everything=True)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(write)
        with os.fdopen(reader, "rb") as file:
            beginning = file.read(1)
            assert opened.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
            backup = beginning + file.read()
        assert [each.error for each in running.result()] == [None, None]
    interchange.export(opened, tmp_path / "a.jsonl", "backup", everything=True)
    assert backup == (tmp_path / "a.jsonl").read_bytes()


def test_earlier_name_of_the_backup_format_works_with_a_notice(opened: Store, tmp_path: Path) -> None:
    opened.create("k")
    with pytest.warns(DeprecationWarning, match="now called backup"):
        interchange.export(opened, tmp_path, "jsonl", everything=True)
    with pytest.warns(DeprecationWarning, match="backup"):
        (report,) = interchange.import_path(opened, tmp_path, format="jsonl")
    assert (report.format, report.already_there) == ("backup", ["k"])


def test_earlier_name_of_the_backup_format_is_an_option_with_a_notice(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        store.create("k")
    for words in (("export", "--all", "--to", str(tmp_path)), ("import", str(tmp_path))):
        done = run(*words, "--format", "jsonl", "--url", url)
        assert (done.returncode, "notice: --format jsonl is now called --format backup" in done.stderr) == (0, True)


@pytest.mark.one_database
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_export_that_ends_by_a_signal_leaves_no_file(url: str, tmp_path: Path, number: signal.Signals) -> None:
    with Store(url) as store:
        store.open("k", messages=[message("Hello"), message("Hi", role="assistant")])
    (tmp_path / "ending.py").write_text(
        # To this thread: another one could receive a signal of os.kill, and this one would continue.
        f"import os, signal\ndef end(text):\n    print(os.listdir('out'))\n    signal.raise_signal({int(number)})\n"
    )
    words = ("export", "--all", "--format", "openai", "--to", "out", "--redact", "ending:end", "--url", url)
    done = run_process(*words, folder=tmp_path)
    assert ".lango-" in done.stdout  # the file was begun
    assert done.returncode == 128 + number, done
    assert [*(tmp_path / "out").iterdir()] == []
