"""Copying a database into another: every row is copied once, also after interruptions."""

import json
import signal

import pytest
import sqlalchemy as sa
from support.commands import run, run_on_terminal
from support.databases import MakeDatabase
from support.factories import message, messages
from support.processes import run_program
from support.rows import MessageRowFactory, SessionRowFactory, all_fields, fill, put
from support.waiting import assert_waiting, stream_and_enqueue

from lango_store import Store
from lango_store._operations import paging
from lango_store._operations.session_tables import CHILDREN
from lango_store.interchange import copying
from lango_store.interchange.copying import copy


def url_of(store: Store) -> str:
    return store.engine.url.render_as_string(hide_password=False)


def test_copy_preserves_every_row_between_sqlite_and_postgresql(source: Store, target: Store) -> None:
    fill(source)
    report = copy(source, target)
    assert all_fields(target) == all_fields(source)
    assert (report.copied, report.already_there, report.complete) == (3, 0, True)
    assert report.messages == sum("seq" in row for rows in all_fields(source).values() for row in rows)


@pytest.mark.slow
def test_copy_transfers_drafts_and_inbox_but_no_lease(source: Store, target: Store) -> None:
    stored = stream_and_enqueue(source)
    assert copy(source, target).copied == 1
    assert_waiting(target, stored)
    assert copy(source, target).already_there == 1
    source.conversation("k").inbox.put(message("another"))
    assert copy(source, target).differing == ["k"]


def test_second_copy_reports_a_changed_session_and_does_not_overwrite_it(source: Store, target: Store) -> None:
    for key in ("a", "b", "c"):
        source.create(key, messages=messages(1))
    copy(source, target)
    source.append_message("a", message("later in the source"))
    target.append_message("c", message("later in the target"))
    source.create("d")
    before = all_fields(target)
    report = copy(source, target)
    assert (report.copied, report.already_there, report.differing) == (1, 1, ["a", "c"])
    assert not report.complete
    after = all_fields(target)
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize("column", ["title", "expires_at", "metadata", "last_turn_no", "ttl_seconds"])
def test_copy_detects_a_difference_in_any_session_column(source: Store, target: Store, column: str) -> None:
    other = {"title": "t", "expires_at": "2030-01-01T00:00:00.000001+00:00", "last_turn_no": 1, "ttl_seconds": 0.1}
    put(source, SessionRowFactory(key="k"))
    put(target, SessionRowFactory(key="k", **{column: other.get(column, "{}")}))
    assert copy(source, target).differing == ["k"]


@pytest.mark.slow
def test_copy_transfers_several_batches_of_sessions_and_pages_of_messages(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "BATCH", 10)
    monkeypatch.setattr(paging, "ROWS", 20)
    put(source, *(SessionRowFactory(key=f"k{number:04}") for number in range(2 * copying.BATCH)))
    number = 2 * paging.ROWS + 1
    put(
        source,
        SessionRowFactory(key="long", last_seq=number, message_count=number),
        *(MessageRowFactory(session_key="long", seq=seq) for seq in range(1, number + 1)),
    )
    seen: list[int] = []
    report = copy(source, target, on_batch=lambda so_far: seen.append(so_far.sessions))
    assert (report.copied, report.messages) == (2 * copying.BATCH + 1, number)
    assert seen == [copying.BATCH, 2 * copying.BATCH, 2 * copying.BATCH + 1]
    assert all_fields(target) == all_fields(source)


def test_copy_continues_past_unreadable_sessions(make_sqlite: MakeDatabase, target: Store) -> None:
    with Store(make_sqlite()) as source:
        for key in ("a", "b", "c", "d"):
            source.create(key, messages=messages(1))
        with source.engine.begin() as connection:
            damage = "UPDATE lango_message SET {} WHERE session_key = '{}'"
            connection.exec_driver_sql(damage.format("created_at = 'yesterday'", "a"))
            connection.exec_driver_sql(damage.format("text = NULL, content = '{no json'", "c"))
        report = copy(source, target)
    assert report.failed[0].key == "a"
    assert "created_at" in report.failed[0].reason
    assert [failure.key for failure in report.failed] == ["a", "c"]
    assert "content" in report.failed[1].reason
    assert not report.complete
    assert {"b", "d"} <= all_fields(target).keys()
    assert "a" not in all_fields(target)


KILLED = """
import os, signal, sys
import sqlalchemy as sa
from lango_store import Store
from lango_store.interchange import copying
from lango_store.rows import transfer

copying.BATCH = 5
written = 0
write = transfer.insert

def write_and_die(connection, table, rows):
    global written
    write(connection, table, rows)
    written += 1
    if written == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

transfer.insert = write_and_die
with Store(sys.argv[1]) as source, Store(sys.argv[2]) as target:
    copying.copy(source, target)
"""


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 2, 10, 28])
def test_killed_copy_can_be_continued(source: Store, target: Store, writes: int) -> None:
    for number in range(20):
        source.create(f"k{number:02}", messages=messages(3))
    done = run_program(KILLED, url_of(source), url_of(target), writes)
    assert done.returncode == -signal.SIGKILL
    expected = all_fields(source)
    halfway = all_fields(target)
    assert all(expected[key] == rows for key, rows in halfway.items())
    report = copy(source, target)
    assert (report.copied, report.already_there) == (20 - len(halfway), len(halfway))
    assert len(halfway) == (writes - 1) // len(CHILDREN) * 5  # whole batches, which insert into each of these tables
    assert all_fields(target) == expected


@pytest.mark.slow
def test_copy_command_copies_and_sets_exit_code(source: Store, target: Store) -> None:
    fill(source)
    words = ("copy", "--from", url_of(source), "--to", url_of(target))
    dry = run(*words, "--dry-run")
    assert (dry.returncode, all_fields(target)) == (0, {})
    assert dry.stdout.startswith("would copy 3 sessions")
    done = run(*words)
    assert (done.returncode, all_fields(target)) == (0, all_fields(source))
    source.create("more")
    target.create("more")
    different = run(*words, "--json")
    assert different.returncode == 1
    found = json.loads(different.stdout)
    assert (found["copied"], found["already_there"], found["differing"]) == (0, 3, ["more"])
    assert "differs, not changed: 'more'" in run(*words).stderr


def test_copy_to_a_database_without_tables_names_the_upgrade_command(
    make_sqlite: MakeDatabase, make_postgres: MakeDatabase
) -> None:
    source, target = make_sqlite(), make_postgres(migrated=False)
    done = run("copy", "--from", source, "--to", target)
    assert done.returncode == 1
    assert str(sa.make_url(target).database) in done.stderr
    assert "lango-store db upgrade" in done.stderr
    assert "copying" not in done.stderr


@pytest.mark.slow
def test_copy_shows_a_progress_bar_on_a_terminal_only(make_sqlite: MakeDatabase) -> None:
    source, target = make_sqlite(), make_sqlite()
    with Store(source) as store:
        store.create("k")
    assert "1/1" in run_on_terminal("copy", "--from", source, "--to", target)[0]
    assert "1/1" not in run("copy", "--from", source, "--to", target).stderr
