"""The search index beside everything else a store does: other roles and schemas, copies, backups, random writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import run
from conftest import MakeDatabase, not_on_a_cluster
from factories import message
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import all_rows
from searches import found

from lango_store import Message, Store, create_engine, schema

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


def test_a_role_that_may_write_messages_needs_no_grant_for_the_index(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    schema.enable_search(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE lango_writer LOGIN")
    try:
        with engine.begin() as connection:
            for table in ("lango_session", "lango_message", "lango_turn", "lango_value", "lango_store_version"):
                connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO lango_writer")
        with Store(f"{url}&options=-crole%3Dlango_writer") as store:
            store.create("a", messages=[message("oslo"), message("bergen")])
            store.pop_message("a")
        with Store(engine) as store:
            assert found(store, "oslo") == [("a", 1)]
            assert found(store, "bergen") == []
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY lango_writer; DROP ROLE lango_writer")
        engine.dispose()


def test_each_schema_has_an_index_of_its_own(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Tenant B"')
    tenant = create_engine(url, connect_args={"options": '-csearch_path="Tenant\\ B",public'})
    schema.enable_search(url)
    schema.upgrade(tenant)
    with Store(tenant) as theirs, Store(engine) as ours:
        assert schema.search_status(tenant).state == "disabled"
        schema.enable_search(tenant)
        theirs.create("a", messages=[message("oslo of theirs")])
        ours.create("a", messages=[message("oslo of ours")])
        assert [hit.snippet for hit in theirs.search("oslo").items] == ["oslo of theirs"]
        assert [hit.snippet for hit in ours.search("oslo").items] == ["oslo of ours"]
        schema.disable_search(url)
        assert schema.search_status(tenant).state == "ready"
    for each in (engine, tenant):
        each.dispose()


def test_a_copy_and_a_restored_backup_are_indexed_where_they_land(
    make_sqlite: MakeDatabase, make_postgres: MakeDatabase, tmp_path: Path
) -> None:
    first, second, third = make_sqlite(), make_postgres(), make_sqlite()
    for url in (first, second, third):
        schema.enable_search(url)
    with Store(first) as store:
        store.create("a", messages=[message("oslo"), message({"b": "bergen"}, role="tool", tool_call_id="1")])
    assert run("copy", "--from", first, "--to", second).returncode == 0
    backup = str(tmp_path / "backup.jsonl")
    assert run("export", "--all", "--format", "jsonl", "--to", backup, "--url", second).returncode == 0
    assert run("import", backup, "--url", third).returncode == 0
    for url in (first, second, third):
        with Store(url) as store:
            assert (found(store, "oslo"), found(store, "bergen")) == ([("a", 1)], [("a", 2)])
            assert [each for each in store.examine() if each.name == "search index"] == []


def test_the_index_is_in_no_backup_and_changes_no_row(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        store.create("a", messages=[message("oslo")])
        rows, files = all_rows(store), []
        for number in range(2):
            files.append(tmp_path / f"{number}.jsonl")
            assert run("export", "a", "--format", "jsonl", "--to", str(files[-1]), "--url", url).returncode == 0
            schema.enable_search(url)
        assert all_rows(store) == rows

    def lines(path: Path) -> list[str]:
        return path.read_text().splitlines()[1:-1]  # without the head and the end, which tell times

    assert lines(files[0]) == lines(files[1])


WORDS = ("oslo", "bergen", "weather", "Ærø", "42")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), TEXTS),
        st.tuples(st.just("block"), TEXTS),
        st.tuples(st.just("output"), TEXTS),
        st.tuples(st.just("update"), TEXTS),
        st.tuples(st.sampled_from(("pop", "truncate", "clear", "search", "delete", "turn")), st.just("")),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=15)
def test_a_search_finds_what_reading_every_message_finds(store: Store, url: str, steps: list[tuple[str, str]]) -> None:
    schema.enable_search(url)
    store.get_or_create("a")
    for step, text in steps:
        _write(store, step, text)
    said = {each.seq: str(each.content).lower() for each in store.all_messages("a")}
    for word in WORDS:
        assert {seq for _, seq in found(store, word)} == {seq for seq, text in said.items() if word.lower() in text}
    assert [each for each in store.examine() if each.name == "search index"] == []
    store.delete("a")


def _write(store: Store, step: str, text: str) -> None:
    last = store.info("a").last_seq
    match step:
        case "append":
            store.append_message("a", message(text))
        case "block":
            store.append_message("a", message([{"type": "text", "text": text}]))
        case "output":
            store.append_message("a", Message.tool({"deep": [text]}, tool_call_id="1"))
        case "update":
            for each in store.all_messages("a", last=1):
                store.update_message("a", each.seq, message(text))
        case "pop":
            store.pop_message("a")
        case "truncate":
            store.truncate("a", after=last // 2)
        case "clear":
            store.clear("a")
        case "search":
            store.search("oslo")
        case "delete":
            for each in store.all_messages("a", limit=1):
                store.delete_message("a", each.seq)
        case "turn":
            store.conversation("a").save_turn([message("oslo"), message("bergen")])


def test_a_search_for_which_nothing_waits_waits_for_no_writer(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    schema.enable_search(url)
    with Store(url) as store:
        store.create("a", messages=[message("oslo")])
        assert found(store, "oslo") == [("a", 1)]
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            assert found(store, "oslo") == [("a", 1)]


@pytest.mark.parametrize("gone", [False, True])
def test_a_hit_that_changes_before_it_is_shown_is_shown_as_what_is_left_of_it(undistributed: str, gone: bool) -> None:
    schema.enable_search(undistributed)
    engine = create_engine(undistributed)

    def meddle(text: str, _: float) -> None:
        if " rank " in text:
            other.delete_message("a", 1) if gone else other.update_message("a", 1, message("bergen"))

    with Store(engine) as other, Store(engine, on_statement=meddle) as store, engine.connect() as connection:
        other.create("a", messages=[message("oslo"), message("something else")])
        (hit,) = store.using(connection).search("oslo").items
        assert (hit.seq, hit.snippet, hit.places) == (1, "" if gone else "bergen", [])
    engine.dispose()
