"""langchain-postgres: `PostgresChatMessageHistory`. It does not look at the ids of messages."""

from typing import Any
from uuid import NAMESPACE_URL, uuid5

import psycopg
import sqlalchemy as sa
from langchain_core.messages import HumanMessage
from langchain_postgres import PostgresChatMessageHistory

from benchmarks.proof.adapter import Adapter


class History(Adapter):
    """Histories on one connection, as in its documentation."""

    can = frozenset({"batch"})

    def __init__(self, url: str) -> None:
        text = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(text)
        PostgresChatMessageHistory.create_tables(self._connection, "chat_history")

    def _history(self, key: str) -> Any:
        return PostgresChatMessageHistory(
            "chat_history", str(uuid5(NAMESPACE_URL, key)), sync_connection=self._connection
        )

    def append(self, key: str, texts: list[str]) -> None:
        self._history(key).add_messages([HumanMessage(text) for text in texts])

    def read(self, key: str) -> list[str]:
        return [message.content for message in self._history(key).get_messages()]
