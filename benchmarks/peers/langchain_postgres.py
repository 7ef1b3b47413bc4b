"""langchain-postgres: `PostgresChatMessageHistory`, which appends batches and always reads the whole history."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_URL, uuid5

import psycopg
import sqlalchemy as sa

from benchmarks.peers.contender import Said

TABLE = "chat_history"


class ChatHistory:
    """Histories on one connection, as in its documentation."""

    def __init__(self, url: str) -> None:
        from langchain_postgres import PostgresChatMessageHistory

        text = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(text)
        self._histories: dict[str, Any] = {}
        PostgresChatMessageHistory.create_tables(self._connection, TABLE)

    def create(self, key: str) -> None:
        from langchain_postgres import PostgresChatMessageHistory

        number = str(uuid5(NAMESPACE_URL, key))  # it accepts only UUIDs
        self._histories[key] = PostgresChatMessageHistory(TABLE, number, sync_connection=self._connection)

    def append(self, key: str, message: dict[str, Any]) -> None:
        self.append_many(key, [message])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> None:
        self._histories[key].add_messages([_made(message) for message in messages])

    def load(self, key: str) -> list[Any]:
        return list(self._histories[key].get_messages())

    def last(self, key: str, n: int) -> list[Any]:
        return self.load(key)[-n:]

    def close(self) -> None:
        self._connection.close()


def _made(message: dict[str, Any]) -> Any:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    text = message["content"]
    match message["role"]:
        case "user":
            return HumanMessage(text)
        case "tool":
            return ToolMessage(text, name=message["name"], tool_call_id=message["tool_call_id"])
        case _:
            calls = [
                {"id": call["id"], "name": call["name"], "args": call["arguments"]}
                for call in message.get("tool_calls", ())
            ]
            return AIMessage(text, name=message["author"], tool_calls=calls)


def said_by_langchain(message: Any) -> Said:
    """Read a message of LangChain."""
    return message.content, [(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())]
