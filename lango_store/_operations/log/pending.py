"""Work of live sessions that waits: owed and given-up turns, unknown calls, and unanswered suspensions."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import CALL, LIVE, NOW, SESSION, SUSPENSION, of_session, time
from lango_store._operations.log import leases, owed
from lango_store._rows.encoding import decode_time
from lango_store.errors import DamagedDatabase

IS_UNKNOWN: Final = sa.and_(CALL.c.result_seq.is_(None), CALL.c.token.is_not(None), CALL.c.until <= NOW)
"""Matches calls whose time limit has passed without a result."""
IS_UNANSWERED: Final = SUSPENSION.c.answered_at.is_(None)
"""Matches suspensions without an answer, expired ones too."""

_COUNT: Final = sa.func.count()
_CAN_BE_ANSWERED: Final = sa.or_(SUSPENSION.c.due_at.is_(None), SUSPENSION.c.due_at > NOW)


def _owed(*conditions: sa.ColumnElement[bool]) -> sa.Executable:
    return sa.select(_COUNT, sa.func.min(SESSION.c.owed_at)).where(LIVE, leases.IS_ENDED, *conditions)


_waiting: Final = Statement(_owed(SESSION.c.owed_at < time("never")))
_given_up: Final = Statement(_owed(SESSION.c.owed_at >= time("never")))
_unknown: Final = Statement(
    sa.select(_COUNT).select_from(CALL).join(SESSION, of_session(SESSION, CALL.c.session_key)).where(LIVE, IS_UNKNOWN)
)
_unanswered: Final = Statement(
    sa.select(_COUNT)
    .select_from(SUSPENSION)
    .join(SESSION, of_session(SESSION, SUSPENSION.c.session_key))
    .where(LIVE, IS_UNANSWERED, _CAN_BE_ANSWERED)
)


def count(connection: sa.Connection, now: datetime) -> dict[str, Any]:
    """Return the numbers of waiting work, by the names of the fields of `Stats`."""
    encode = dialect_of(connection).time
    bound = {"now": encode(now), "never": encode(owed.NEVER)}
    ((turns, oldest),) = _waiting.run(connection, bound)
    ((given_up, _),) = _given_up.run(connection, bound)
    try:
        owed_since = None if oldest is None else decode_time(oldest)
    except ValueError as error:
        raise DamagedDatabase(f"owed_at of a session {error}: run `lango-store doctor`") from None
    return {
        "owed_turns": turns,
        "owed_since": owed_since,
        "given_up_turns": given_up,
        "unknown_calls": _unknown.run(connection, bound)[0][0],
        "unanswered_suspensions": _unanswered.run(connection, bound)[0][0],
    }
