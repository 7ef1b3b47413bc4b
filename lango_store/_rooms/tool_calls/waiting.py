"""Work of live sessions that waits for a person: unknown calls, and suspensions without an answer."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE, MESSAGE, NOW, SESSION, of_session
from lango_store._rooms.tool_calls.tables import CALL, SUSPENSION

IS_UNKNOWN: Final = sa.and_(CALL.c.result_seq.is_(None), CALL.c.token.is_not(None), CALL.c.until <= NOW)
"""Matches calls whose time limit has passed without a result."""
IS_UNANSWERED: Final = sa.and_(SUSPENSION.c.answered_at.is_(None), SUSPENSION.c.handle.is_(None))
"""Matches suspensions of people without an answer, expired ones too."""
IS_WAITING: Final = sa.and_(SUSPENSION.c.answered_at.is_(None), SUSPENSION.c.handle.is_not(None))
"""Matches calls that wait for a result from outside, those too whose time has passed."""


def _counting(rows: sa.Table, *conditions: sa.ColumnElement[bool]) -> Statement:
    is_of_session = of_session(SESSION, rows.c.session_key)
    return Statement(sa.select(sa.func.count()).select_from(rows).join(SESSION, is_of_session).where(LIVE, *conditions))


_is_in_log: Final = sa.exists().where(of_session(MESSAGE, CALL.c.session_key), MESSAGE.c.seq == CALL.c.message_seq)
_unknown: Final = _counting(CALL, IS_UNKNOWN, _is_in_log)
_unanswered: Final = _counting(
    SUSPENSION, IS_UNANSWERED, sa.or_(SUSPENSION.c.due_at.is_(None), SUSPENSION.c.due_at > NOW)
)


def count(connection: sa.Connection, now: datetime) -> dict[str, Any]:
    """Return the numbers of calls and suspensions that wait, by the names of the fields of `Stats`."""
    bound = {"now": dialect_of(connection).time(now)}
    return {
        "unknown_calls": _unknown.run(connection, bound)[0][0],
        "unanswered_suspensions": _unanswered.run(connection, bound)[0][0],
    }
