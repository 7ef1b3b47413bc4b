"""Owed turns of live sessions that no process is running, and those that were given up."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE, SESSION, time
from lango_store._rooms.turns_in_progress import owed
from lango_store._rows.encoding import decode_time
from lango_store.errors import DamagedDatabase


def _owed(*conditions: sa.ColumnElement[bool]) -> sa.Executable:
    return sa.select(sa.func.count(), sa.func.min(SESSION.c.owed_at)).where(
        LIVE, owed.IS_ENDED, ~owed.IS_FUTURE, *conditions
    )


_waiting: Final = Statement(_owed(SESSION.c.owed_at < time("never")))
_given_up: Final = Statement(_owed(SESSION.c.owed_at >= time("never")))


def count(connection: sa.Connection, now: datetime) -> dict[str, Any]:
    """Return the numbers of owed turns, by the names of the fields of `Stats`."""
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
    }
