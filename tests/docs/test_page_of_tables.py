"""The SQL statements of the page on tables run on both databases and return the rows that the page describes."""

from support.factories import message
from support.pages import blocks

from lango_store import Message, Store, ToolCall

LARGE = "x" * 70_000


def test_statements_on_the_tables_page_return_the_described_rows(url: str) -> None:
    with Store(url) as store:
        check_statements(store)


def check_statements(store: Store) -> None:
    conversation = store.open("telegram:9", user_id="ann", messages=[message("hello", tokens=3), message(LARGE)])
    conversation.save_turn([message("bye")], {"output_tokens": 4})
    conversation.compact(lambda _: [Message.assistant("We met.")])
    asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="c", name="pay", arguments={})]))
    effect = conversation.calls.begin(asking.seq, 0)
    conversation.suspensions.create([(asking.seq, 0)], reason="Pay?")
    results = []
    with store.engine.connect() as connection:
        for statement in blocks("docs/reference/tables.md", "sql"):
            rows = connection.exec_driver_sql(statement.strip().rstrip(";")).all()
            results.append([tuple(row) for row in rows])
    whole, calls, suspensions = results
    assert {row[2] for row in whole} == {"hello", LARGE, "bye", "We met."}
    assert [row[:4] for row in calls] == [("telegram:9", asking.seq, 0, effect.key)]
    assert [row[:3] for row in suspensions] == [("telegram:9", "ann", "Pay?")]
