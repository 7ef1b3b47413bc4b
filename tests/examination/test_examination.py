"""`examine`: findings and repairs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa
from support.databases import AS_ROWS_LIE, MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.locks import until_one_waits
from support.triggers import eat

from lango_store import (
    Message,
    Store,
    ToolCall,
    create_engine,
    schema,
)


@pytest.mark.slow
def test_doctor_names_server_settings_that_can_lose_rows(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres(), connect_args={"options": "-c synchronous_commit=off"})
    with engine.connect() as connection:
        names = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")
        off = {name for name in names if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off"}
    told = {
        each.detail.split(" is off: ")[0] for each in Store(engine).maintenance.examine() if " is off: " in each.detail
    }
    assert told == off >= {"synchronous_commit"}
    engine.dispose()


@pytest.mark.slow
@not_on_a_cluster("the database has to be created with another collation")
def test_doctor_names_a_changed_collation_library(make_postgres: MakeDatabase, administrator: sa.Engine) -> None:
    url = make_postgres(migrated=False)
    name = sa.make_url(url).database
    with administrator.connect() as connection:
        version = connection.dialect.server_version_info or ()
        provider = "builtin BUILTIN_LOCALE 'C.UTF-8'" if version >= (17,) else "icu ICU_LOCALE 'und'"
        connection.exec_driver_sql(f"DROP DATABASE {name}")
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER {provider}")
        connection.exec_driver_sql(f"UPDATE pg_database SET datcollversion = '0' WHERE datname = '{name}'")
    schema.upgrade(url)
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with Store(url) as store, engine.connect() as connection:
        (finding,) = [each for each in store.maintenance.examine() if "collation" in each.detail]
        assert finding.name == "settings"
        for statement in finding.remedy.rstrip(";").split(";"):
            connection.exec_driver_sql(statement)
        assert [each for each in store.maintenance.examine() if "collation" in each.detail] == []
    engine.dispose()


@pytest.mark.slow
@not_on_a_cluster("Citus has no triggers on distributed tables")
def test_doctor_names_triggers_on_tables_of_the_store(filled: Store) -> None:
    eat(filled.engine, "DELETE", "lango_turn")
    (finding,) = [finding for finding in filled.maintenance.examine() if finding.name == "trigger"]
    assert finding.subject.lower() == "eats_delete"
    assert "lango_turn" in finding.detail


@pytest.mark.slow
def test_doctor_finds_nothing_in_a_used_store(filled: Store) -> None:
    filled.conversation("chat:9").truncate(after=3)
    filled.conversation("chat:7").clear()
    assert [finding for finding in filled.maintenance.examine() if finding.name != "settings"] == []


@pytest.mark.slow
@not_on_a_cluster("nothing there allows damaging rows past a foreign key, or moving them to another session")
def test_doctor_finds_and_repairs_damage(filled: Store, url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.connection.dbapi_connection.execute("PRAGMA foreign_keys = OFF")  # type: ignore[union-attr]
        else:
            connection.exec_driver_sql("ALTER TABLE lango_message DISABLE TRIGGER ALL")
        for statement in (
            "DELETE FROM lango_message WHERE session_key = 'chat:3' AND seq = 2",
            "UPDATE lango_session SET token_count = 99, last_consolidated = 50 WHERE key = 'chat:5'",
            "UPDATE lango_session SET last_seq = 1 WHERE key = 'chat:6'",
            "UPDATE lango_message SET session_key = 'gone' WHERE session_key = 'chat:1'",
            "UPDATE lango_session SET message_count = 0 WHERE key = 'chat:1'",
            "UPDATE lango_message SET role = 'weird' WHERE session_key = 'chat:9' AND seq = 4",
            "UPDATE lango_session SET settings = '[1]' WHERE key = 'chat:8'",
            "DROP INDEX ix_lango_session_updated_bucket",
        ):
            connection.exec_driver_sql(statement)
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE lango_message ENABLE TRIGGER ALL")
        connection.commit()
    engine.dispose()
    found = [finding for finding in filled.maintenance.examine() if finding.name != "settings"]
    assert sorted((finding.name, finding.subject) for finding in found) == [
        ("missing index", "ix_lango_session_updated_bucket"),
        ("orphans", "lango_message"),
        ("unreadable message", "chat:9"),
        ("unreadable session", "chat:8"),
        ("wrong counters", "chat:3"),
        ("wrong counters", "chat:5"),
        ("wrong counters", "chat:6"),
    ]
    assert all(finding.remedy for finding in found)
    repaired = [finding for finding in filled.maintenance.examine(repair=True) if finding.name != "settings"]
    unreadable = ["unreadable session", "unreadable message"]
    assert [finding.name for finding in repaired if not finding.repaired] == unreadable
    assert [finding.name for finding in filled.maintenance.examine() if finding.name != "settings"] == unreadable
    with Store(url) as store:
        assert store.append_message("chat:5", message()).seq == 7


@pytest.mark.slow
@not_on_a_cluster("an index of a distributed table cannot be damaged from the coordinator")
def test_doctor_finds_ids_that_a_damaged_index_let_in_twice(undistributed: str) -> None:
    options = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashagg=off -c enable_sort=off"
    engine = create_engine(undistributed, connect_args={"options": options})  # prefers the damaged index
    new = [Message.user("x", id=f"m-{n}") for n in range(50)]
    with Store(engine) as store:
        store.create("k", messages=new)
        with engine.begin() as connection:  # searches the index in reverse order, as if the collation had changed
            index = "'uq_lango_message_id'::regclass"
            connection.exec_driver_sql(f"UPDATE pg_index SET indoption = '3 3' WHERE indexrelid = {index}")
        engine.dispose()
        store.conversation("k").append_messages(new)
        (finding,) = [each for each in store.maintenance.examine(repair=True) if each.name == "repeated id"]
        assert (finding.subject, finding.repaired) == ("k", False)
        assert "50 ids are stored more than once in lango_message" in finding.detail
    engine.dispose()


@pytest.mark.slow
def test_index_of_ids_can_be_created_after_the_remedy_for_repeated_ids(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_messages([Message.user("x", id="a"), Message.user("y", id="b"), message()])
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX uq_lango_message_id")
        connection.exec_driver_sql("UPDATE lango_message SET id = 'a' WHERE seq = 2")
    found = [each for each in store.maintenance.examine(repair=True) if each.name != "settings"]
    assert [(each.name, each.repaired) for each in found] == [("missing index", False), ("repeated id", False)]
    assert "1 ids are stored more than once in lango_message, such as 'a'" in found[1].detail
    with store.engine.begin() as connection:  # the remedy
        connection.exec_driver_sql("UPDATE lango_message SET id = NULL WHERE seq = 2")
    assert [each.repaired for each in store.maintenance.examine(repair=True) if each.name != "settings"] == [True]
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.slow
def test_doctor_recounts_counters_of_wrong_type(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k", messages=messages(3))
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET message_count = x'33', last_seq = 'many'")
        (detail,) = [each.detail for each in store.maintenance.examine(repair=True) if each.name == "wrong counters"]
        assert "message_count is b'3', its rows say 3; last_seq is many, its rows say 3" in detail
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
        assert store.append_message("k", message()).seq == 4


def test_doctor_never_sets_a_counter_to_a_value_that_is_not_a_number(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k", messages=messages(3))
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_message SET seq = 'x' WHERE seq = 3")
        before = store.conversation("k").info()
        found = store.maintenance.examine(repair=True)
        assert {each.name for each in found} - {"settings"} == {"wrong counters", "unreadable message"}
        assert not any(each.repaired for each in found)
        assert ["could not be repaired" in each.remedy for each in found if each.name == "wrong counters"] == [True]
        assert store.conversation("k").info() == before


DOINGS: dict[str, Callable[[Store], object]] = {
    "deleted": lambda store: store.delete("k"),
    "mended": lambda store: store.maintenance.examine(repair=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("do", DOINGS.values(), ids=list(DOINGS))
def test_repair_tolerates_a_session_that_is_deleted_or_repaired_meanwhile(
    url: str, do: Callable[[Store], object]
) -> None:
    done: list[object] = []

    def meddle(text: str, _: float) -> None:
        if "replaced_upto" in text and not done:  # the counters have been compared
            done.append(do(other))

    with Store(url) as other, Store(url, on_statement=meddle) as store:
        revision = other.create("k", messages=messages(3)).revision
        with other.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET message_count = 9")
        (found,) = [each for each in store.maintenance.examine(repair=True) if each.name == "wrong counters"]
        assert [info.revision for info in other.iter_sessions()] == ([revision + 1] if found.repaired else [])
        assert found.repaired or found.remedy.startswith("could not be repaired")
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []


@pytest.mark.slow
def test_doctor_does_not_confuse_summaries_of_two_sessions(store: Store) -> None:
    for key, count in (("a", 2), ("b", 5)):
        store.create(key, messages=messages(count))
        store.conversation(key).compact(lambda _: [message("summary")])
    store.conversation("b").compact(lambda _: [message("another")])
    assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []


@pytest.mark.slow
def test_repair_waits_for_writes_to_the_session(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, store.engine.connect() as host, ThreadPoolExecutor(1) as pool:
        store.create("k", messages=messages(3))
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET message_count = 9")
        store.using(host).conversation("k").append_messages(messages(2))
        revision = store.using(host).conversation("k").info().revision
        repairing = pool.submit(store.maintenance.examine, repair=True)
        until_one_waits(store.engine)
        host.commit()
        (found,) = [each for each in repairing.result() if each.name != "settings"]
        assert (found.name, found.repaired) == ("wrong counters", True)
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
        assert store.conversation("k").info().revision == revision + 1


@pytest.mark.slow
def test_doctor_reports_the_reason_of_each_failed_check(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args={"options": "-c lock_timeout=50ms"})
    with Store(engine) as store, engine.connect() as holder:
        store.create("k", messages=messages(3))
        holder.exec_driver_sql("LOCK TABLE lango_session, lango_message IN ACCESS EXCLUSIVE MODE")
        reasons = [each.detail for each in store.maintenance.examine() if each.name == "check failed"]
        assert len(reasons) == 14  # all checks of these tables
        assert {"lock timeout" in reason for reason in reasons} == {True}
    engine.dispose()


def test_doctor_reports_missing_tables(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lango_turn")
    (finding,) = store.maintenance.examine(repair=True)
    assert (finding.name, finding.repaired) == ("schema", False)
    assert "lango_turn" in finding.detail


def test_examine_names_unreadable_shared_values_in_order_of_names(store: Store) -> None:
    for name in "edcba":
        store.shared_values("app").set({name: 1})
    number = "1" * 5_000  # more digits than Python parses
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_shared_value SET value = '{number}' WHERE name IN ('a', 'd', 'e')")
    named = [each.detail.split(", ")[1] for each in store.maintenance.examine() if each.name == "unreadable value"]
    assert named == ["value 'a'", "value 'd'", "value 'e'"]


@pytest.mark.slow
def test_examine_names_unreadable_sessions_and_messages_in_order_of_keys(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args=AS_ROWS_LIE)
    with Store(engine) as store:
        for key in "dbca":
            store.create(key, messages=messages(3))
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_message SET role = 'weird' WHERE session_key IN ('a', 'd')")
            connection.exec_driver_sql("UPDATE lango_session SET settings = '[1]' WHERE key IN ('a', 'd')")
        found = store.maintenance.examine()
        assert [each.subject for each in found if each.name == "unreadable message"] == list("aaaddd")
        assert [each.subject for each in found if each.name == "unreadable session"] == list("ad")
    engine.dispose()


@pytest.fixture
def waiting(store: Store) -> Store:
    """A store with two sessions that have drafts and messages in their inboxes."""
    for key in ("a", "b"):
        conversation = store.open(key)
        turn = conversation.turn("t", flush=timedelta(0)).begin()
        turn.write("half of ")
        turn.write("an ans")
        for content in ("first", ["second"]):
            conversation.inbox.put(message(content))
    return store


@pytest.mark.slow
def test_doctor_finds_no_fault_in_sound_drafts_and_inboxes(waiting: Store) -> None:
    assert [finding for finding in waiting.maintenance.examine() if finding.name != "settings"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("lango_draft SET piece = '5'", "piece 2, piece: 5 is not text"),
        ("lango_draft SET turn_id = ''", "piece 2, id: has 0 bytes"),
        ("lango_draft SET token = -1", "piece 2, token: -1 is not a number"),
        ("lango_inbox SET message = '5'", "inbox message 2, message: is not an object"),
        ("""lango_inbox SET message = '{"role":"weird"}'""", "inbox message 2, role"),
        ("""lango_inbox SET message = '{"role":"user","tokens":-1}'""", "inbox message 2, tokens"),
        ("""lango_inbox SET message = '{"role":"user","extra":[]}'""", "inbox message 2, extra"),
        ("""lango_inbox SET message = '{"role":"user","seq":1}'""", "inbox message 2, seq"),
    ],
)
def test_doctor_names_damaged_row_of_draft_or_inbox(waiting: Store, change: str, fact: str) -> None:
    with waiting.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {change} WHERE session_key = 'b' AND n = 2")
    (finding,) = [each for each in waiting.maintenance.examine(repair=True) if each.name != "settings"]
    assert (finding.name, finding.subject, finding.repaired) == (
        "unreadable draft, inbox, call or suspension",
        "b",
        False,
    )
    assert fact in finding.detail
    assert "doctor" not in finding.detail
    assert change.partition(" ")[0] in finding.remedy
    with waiting.engine.begin() as connection:  # what the remedy says
        connection.exec_driver_sql(f"DELETE FROM {change.partition(' ')[0]} WHERE session_key = 'b' AND n = 2")
    assert [each for each in waiting.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("lango_call SET token = -1", "call of message 1, token: -1 is not a number"),
        ("lango_call SET result_seq = 0", "call of message 1, result_seq: 0 is not a number"),
        ("lango_suspension SET positions = '{}'", "suspension of message 1, positions"),
        ("lango_suspension SET digest = ''", "suspension of message 1, id: has 0 bytes"),
    ],
)
def test_doctor_names_damaged_row_of_call_or_suspension(store: Store, change: str, fact: str) -> None:
    conversation = store.open("k")
    conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
    conversation.calls.begin(1, 0)
    conversation.suspensions.create([(1, 0)], state="x")
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {change}")
    (finding,) = [each for each in store.maintenance.examine() if each.name != "settings"]
    assert (finding.name, finding.subject) == ("unreadable draft, inbox, call or suspension", "k")
    assert fact in finding.detail


@pytest.mark.slow
def test_ping_examine_and_stats_use_the_callers_connection(url: str, empty_url: str) -> None:
    engine = create_engine(url)
    Store(engine).create("k", messages=messages(2))
    other = create_engine(empty_url)  # without our tables; its only connection is in use
    with other.connect(), engine.connect() as connection:
        bound = Store(other).using(connection)
        bound.ping()
        assert [finding for finding in bound.maintenance.examine() if finding.name != "settings"] == []
        assert bound.stats().messages == 2
    memory = create_engine("sqlite://", pool_timeout=0.1)
    with memory.connect() as in_use, engine.connect() as connection:
        in_use.exec_driver_sql("SELECT 1")
        findings = Store(memory).using(connection).maintenance.examine()
        assert [finding for finding in findings if finding.name != "settings"] == []
    for each in (engine, other, memory):
        each.dispose()
