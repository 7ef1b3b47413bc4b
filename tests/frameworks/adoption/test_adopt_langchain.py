"""Adoption of LangChain's histories: afterwards, `LangoChatMessageHistory` has the messages that they had."""

import random
import sqlite3
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

pytest.importorskip("langchain_postgres")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # langchain-community warns that it is no longer developed
    from langchain_community.chat_message_histories import SQLChatMessageHistory
    from langchain_postgres import PostgresChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from support.databases import MakeDatabase

from lango_store import Message, Store, ToolCall
from lango_store.integrations.langchain import LangoChatMessageHistory

from .adopting import adopt, kill_adoption, random_text, states

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def random_messages(chance: random.Random) -> Iterator[BaseMessage]:
    def text() -> str:
        return random_text(chance).replace("\x00", "").replace("\ud800", "")  # JSONB has neither

    for number in range(chance.randrange(8)):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
        call: Any = {"name": "weather", "args": {"city": text()}, "id": f"c{number}", "type": "tool_call"}
        usage: Any = {"input_tokens": 3, "output_tokens": number, "total_tokens": 3 + number}
        yield chance.choice(
            [
                HumanMessage(text()),
                HumanMessage([{"type": "text", "text": text()}, image], name="ann"),
                AIMessage(text(), usage_metadata=usage, response_metadata={"model_name": "m"}, id=f"m{number}"),
                AIMessage("", tool_calls=[call, {**call, "id": None}]),
                AIMessage("", tool_calls=[call]),
                AIMessageChunk(content=text()),
                AIMessage(
                    "",
                    invalid_tool_calls=[
                        {"name": "f", "args": "{", "id": "1", "error": "e", "type": "invalid_tool_call"}
                    ],
                ),
                ToolMessage(text(), tool_call_id=f"c{number}", artifact={"x": 1}, status="error"),
                SystemMessage(text()),
                FunctionMessage(content=text(), name="f"),
                ChatMessage(content=text(), role="critic"),
            ]
        )


def check_killed_and_repeated(url: str, source: str, written: dict[str, list[BaseMessage]]) -> None:
    chance = random.Random(2)
    for _ in range(2):
        kill_adoption(url, source, chance.randrange(1, 25))
    reports = adopt(url, source)
    assert [each.skipped for each in reports if each.skipped] == []
    with Store(url) as store:
        for id, messages in written.items():
            assert LangoChatMessageHistory(id, store).messages == messages
    assert states(adopt(url, source)) == {"already there": len(reports)}


def sql_history(id: str, engine: sa.Engine) -> SQLChatMessageHistory:
    return SQLChatMessageHistory(id, connection=engine)


@pytest.mark.parametrize("shared", [False, True])
def test_sql_histories_are_equal_after_kills(url: str, make_database: MakeDatabase, shared: bool) -> None:
    source = url if shared else make_database(migrated=False)
    engine = sa.create_engine(source)
    chance, written = random.Random(1), {}
    histories = {f"user/{number}": [*random_messages(chance)] for number in range(50)}
    for position in range(8):  # interleaved
        for id, messages in histories.items():
            sql_history(id, engine).add_messages(messages[position : position + 1])
    for id in histories:
        written[id] = sql_history(id, engine).messages
    engine.dispose()
    check_killed_and_repeated(url, source, written)


def test_postgres_histories_are_equal_after_kills(url: str, make_postgres: MakeDatabase) -> None:
    source, chance, written = make_postgres(migrated=False), random.Random(1), {}
    dsn = sa.make_url(source).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn) as connection:
        PostgresChatMessageHistory.create_tables(connection, "chat_history")
        for _ in range(50):
            id = str(uuid.UUID(bytes=chance.randbytes(16), version=4))
            history = PostgresChatMessageHistory("chat_history", id, sync_connection=connection)
            history.add_messages([HumanMessage("Hello"), *random_messages(chance)])
            written[id] = history.messages
    check_killed_and_repeated(url, source, written)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def add(file: Path, *messages: BaseMessage) -> None:
    engine = sa.create_engine(f"sqlite:///{file}")
    sql_history("a", engine).add_messages(messages)
    engine.dispose()


def test_history_that_grew_is_continued_and_damaged_rows_are_reported(url: str, file: Path) -> None:
    add(file, HumanMessage("1"), HumanMessage("2"), HumanMessage("3"))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE message_store SET message = '{}' WHERE id = 2")
        connection.execute("INSERT INTO message_store (session_id, message) VALUES ('b', '{')")
        connection.execute("ALTER TABLE message_store ADD COLUMN created_at")
        connection.execute("ALTER TABLE message_store ADD COLUMN rating")
        connection.execute("UPDATE message_store SET rating = 5, created_at = '2026-11-01 12:00:00' WHERE id = 1")
    first, second = adopt(url, f"sqlite:///{file}")
    assert (first.messages, second.messages) == (2, 0)
    assert first.skipped[0].startswith("table message_store, row 2 is damaged")
    assert second.skipped[0].startswith("table message_store, row 4 is damaged")
    with Store(url) as store:
        LangoChatMessageHistory("a", store).add_messages([AIMessage("in the store")])
    add(file, HumanMessage("4"))
    assert [each.state for each in adopt(url, f"sqlite:///{file}")] == ["continued", "already there"]
    with Store(url) as store:
        assert [each.content for each in LangoChatMessageHistory("a", store).messages] == [
            "1",
            "3",
            "in the store",
            "4",
        ]
        message = store.conversation("a").messages()[0]
        assert (message.extra["adopted"], str(message.created_at)) == ({"rating": 5}, "2026-11-01 12:00:00+00:00")


def test_history_has_messages_of_other_writers_and_can_be_cleared(url: str) -> None:
    call = ToolCall(id="c", name="weather", arguments={"city": "Oslo"})
    with Store(url) as store:
        history = LangoChatMessageHistory("a", store)
        assert history.messages == []
        history.clear()
        store.create("a", messages=[Message.user("q"), Message.assistant(tool_calls=[call]), Message.system("s")])
        store.append_message("a", Message.tool("rain", tool_call_id="c"))
        found = history.messages
        assert [type(each) for each in found] == [HumanMessage, AIMessage, SystemMessage, ToolMessage]
        assert found[1].tool_calls[0]["args"] == {"city": "Oslo"}  # type: ignore[attr-defined]
        history.clear()
        assert history.messages == []
