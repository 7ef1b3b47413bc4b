"""The SQL statements of the page on tables run on both databases and return the rows that the page describes."""

from datetime import timedelta

from support.factories import message
from support.pages import blocks

from lango_store import Message, Store, ToolCall
from lango_store.tables import SCHEMA_REVISION

LARGE = "x" * 70_000


def test_statements_on_the_tables_page_return_the_described_rows(url: str) -> None:
    with Store(url, keep_removed=timedelta(days=1)) as store:
        check_statements(store)


def check_statements(store: Store) -> None:
    conversation = store.open("telegram:9", user_id="ann", messages=[message("hello", tokens=3), message(LARGE)])
    conversation.save_turn([message("bye")], {"output_tokens": 4})
    conversation.compact(lambda _: [Message.assistant("We met.")])
    conversation.append_message(message("oops"))
    conversation.pop_message()
    conversation.save_turn([message("gone")])
    conversation.pop_message()
    store.conversation("telegram:9").values.set({"state": 1})
    store.shared_values("user:ann").set({"language": "nb"})
    conversation.inbox.put(message("later"))
    asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="c", name="pay", arguments={})]))
    effect = conversation.calls.begin(asking.seq, 0)
    conversation.suspensions.create([(asking.seq, 0)], reason="Pay?")
    turn = conversation.turn("given up").begin()
    turn.write("half of an ans")
    turn.abandon()
    results = []
    with store.engine.connect() as connection:
        for statement in blocks("docs/reference/tables.md", "sql"):
            rows = connection.exec_driver_sql(statement.strip().rstrip(";")).all()
            results.append([tuple(row) for row in rows])
    sessions, texts, whole, compactions, values, drafts, inbox, *remaining = results
    calls, suspensions, shared, changes, removed, *schema = remaining
    assert [row[0] for row in sessions] == ["telegram:9"]
    assert {row[2] for row in texts} == {"hello", "", "bye"}
    assert {row[2] for row in whole} == {"hello", LARGE, "bye", "We met."}
    assert [row[2] for row in compactions] == [3]
    assert [row[0] for row in values] == ["state"]
    assert [row[:3] for row in drafts] == [("telegram:9", "given up", 1)]
    assert inbox == [("telegram:9", 1)]
    assert [row[:4] for row in calls] == [("telegram:9", asking.seq, 0, effect.key)]
    assert [row[:3] for row in suspensions] == [("telegram:9", "ann", "Pay?")]
    assert [row[0] for row in shared] == ["language"]
    assert {row[2] for row in changes} == {"compact", "pop"}
    assert [row[1:3] for row in removed] == [(8, "pop"), (6, "pop")]
    assert schema == [[("telegram:9", 1)], [("payloads",)], [(SCHEMA_REVISION,)]]
