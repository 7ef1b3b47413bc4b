"""Redact what a person wrote in the sessions of other users: messages, versions of them, and names of authors."""

from collections import Counter
from datetime import datetime
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect.statement import Statement
from lango_store._operations.binds import MESSAGE, column, number, of_session
from lango_store._operations.log import payloads
from lango_store._operations.rows import encode_message, encode_waiting
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import MESSAGES
from lango_store._rooms.erasure.person import AUTHORS, rows_by
from lango_store._rooms.turns_in_progress.tables import INBOX
from lango_store._rooms.versions import edits
from lango_store._values.model import Message, MessageRole

_REASON: Final = "erased"
AT_ONCE: Final = 500
"""The number of rows of a session that `redact` redacts; fewer were the last ones."""
_WAITING: Final = encode_waiting(encode_message(Message.user("(redacted)", extra={"redacted": _REASON})))
_redact_waiting: Final = Statement(
    sa.update(INBOX).where(of_session(INBOX), INBOX.c.n == number("n")).values(message=column(INBOX.c.message))
)


def redact(connection: sa.Connection, now: datetime, key: str, user_id: str) -> Counter[str]:
    """Redact the next rows that a person wrote in a session, live or expired; return their numbers by table.

    A redacted row names no author, so the next call redacts others. If one version of a message is of the person, all
    versions that a change removed are redacted.
    """
    sessions.lock_any(connection, key)
    sessions.check_hold(connection, key)
    rows = [*islice(rows_by(connection, user_id, key), AT_ONCE)]
    for table, row in rows:
        if table is MESSAGE:
            edits.redact(connection, now, key, row["seq"], _REASON, expired=True)
        elif table in MESSAGES:
            edits.redact_copies(connection, key, row["seq"], _REASON, row["role"])
        elif table is INBOX:
            _redact_waiting.run_many(connection, [{"key": key, "n": row["n"], "message": _WAITING}])
        if table is not INBOX:
            _forget_author(connection, table, row)
    if rows:
        payloads.release(connection, key)
    return Counter(table.name for table, _ in rows)


def _forget_author(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> None:
    named = {each.name: sa.null() for of, each in AUTHORS if of is table}
    if table in MESSAGES and row["role"] == MessageRole.USER.value:
        named["name"] = sa.null()  # the name of a participant; that of a tool message is the tool's
    named |= {name: sa.null() for name in ("answer", "answered_why") if name in table.c}
    is_row = (each == row[each.name] for each in table.primary_key)
    connection.execute(sa.update(table).where(*is_row).values(named))
