"""The queries and the program on the page about analysing a store, on both databases."""

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.pages import blocks

from lango_store import Message, Store, ToolCall

PAGE: Final = "docs/howto/queries.md"
GROWTH, FAILURES, CHANGES = blocks(PAGE, "sql")
TIMES = blocks(PAGE, "python")[0].split('"""')[1]
DAY: Final = datetime(2026, 11, 25, 12, tzinfo=UTC)

needs_arrow = pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 38), reason="this SQLite has no operator ->>")


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
        return [tuple(row) for row in connection.execute(sa.text(query))]


@needs_arrow
def test_queries_count_messages_failures_answer_times_and_changes(empty_url: str) -> None:
    now = DAY
    with Store(empty_url, migrate=True, clock=lambda: now) as store:
        conversation = store.open("chat:ann")
        conversation.inbox.put(Message.user("When?"))
        now += timedelta(seconds=90)
        with conversation.turn("t") as turn:
            turn.take_inbox()
            calls = [ToolCall(id="c", name="clock"), ToolCall(id="d", name="clock")]
            failed = Message.tool("no clock", tool_call_id="c", name="clock", failed=True)
            result = Message.tool("noon", tool_call_id="d", name="clock")
            turn.append_messages([Message.assistant(tool_calls=calls), failed, result])
        now += timedelta(days=1)
        last = conversation.info().last_seq
        conversation.append_message(Message.user("Again?"))
        conversation.append_messages([Message.user("And now?")], replace_after=last)
        assert [(str(day), *rest) for day, *rest in rows(store, GROWTH)] == [("2026-11-25", 4, 1), ("2026-11-26", 1, 1)]
        assert rows(store, FAILURES) == [("clock", 2, 1)]
        ((key, asked, answered),) = rows(store, TIMES)
        assert key == "chat:ann"
        seconds = [datetime.fromisoformat(str(each)) for each in (asked, answered)]
        assert seconds[1] - seconds[0] == timedelta(seconds=90)
        ((kind, changes, sessions),) = rows(store, CHANGES)
        assert (kind, changes, sessions) == ("truncate", 1, 1)
