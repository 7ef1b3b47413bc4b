"""Payloads of sessions, read with SQL."""

from typing import Any, Final

import sqlalchemy as sa

from lango_store import Message, Store, ToolCall
from lango_store._operations.binds import MESSAGE, PAYLOAD, of_session

LARGE: Final = "x" * 65_536
"""A string that is just long enough to become a payload."""

IMAGE: Final = "data:image/png;base64," + "iVBORw0K" * 1_000


def bodies(store: Store, key: str = "k") -> list[str]:
    """Return the stored payloads of a session."""
    with store.engine.connect() as connection:
        query = sa.select(PAYLOAD.c.body).where(of_session(PAYLOAD, key))
        return sorted(connection.execute(query).scalars())


def listings(store: Store, key: str = "k") -> list[Any]:
    """Return the column `payloads` of each message of a session."""
    with store.engine.connect() as connection:
        query = sa.select(MESSAGE.c.payloads).where(of_session(MESSAGE, key)).order_by(MESSAGE.c.seq)
        return list(connection.execute(query).scalars())


def row(store: Store, seq: int = 1, key: str = "k") -> dict[str, Any]:
    """Return the stored row of a message, with its JSON as text."""
    columns = [sa.cast(column, sa.Text).label(column.name) for column in MESSAGE.c]
    with store.engine.connect() as connection:
        query = sa.select(*columns).where(of_session(MESSAGE, key), MESSAGE.c.seq == seq)
        return dict(connection.execute(query).mappings().one())


def large_message(*texts: str, **fields: Any) -> Message:
    """Make a message with these strings in content, arguments, output and extra."""
    call = ToolCall(id="call_1", name="f", arguments={"a": [*texts]}, output={"out": [*texts]})
    content = [{"type": "text", "text": text} for text in texts]
    return Message.assistant(content, tool_calls=[call], extra={"raw": [[*texts]]}, **fields)
