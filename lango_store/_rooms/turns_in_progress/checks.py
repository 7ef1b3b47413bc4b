"""The check of `doctor` for the inbox."""

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from lango_store._operations.binds import SESSION, of_session
from lango_store._parts.checks import Check, Fault, lock, shown
from lango_store._rooms.turns_in_progress import owed
from lango_store._rooms.turns_in_progress.tables import INBOX

_AWAITS_NOTHING: Final = sa.and_(owed.has(owed.IN_INBOX), ~sa.exists().where(of_session(INBOX, SESSION.c.key)))
"""The condition that a session waits for a turn that takes its inbox, which has no messages."""


def _find(connection: sa.Connection) -> Iterator[Fault]:
    for key in connection.scalars(sa.select(SESSION.c.key).where(_AWAITS_NOTHING)):
        detail = f"session {key!r} waits for a turn that takes its inbox, which has no messages"
        yield shown(key), detail, "doctor --repair ends the wait; put the messages again if they are not answered"


def end_wait(connection: sa.Connection, key: str) -> None:
    """End the wait of a session whose inbox has no messages."""
    lock(connection, key)
    awaiting = sa.update(SESSION).where(of_session(SESSION, key), _AWAITS_NOTHING)
    connection.execute(awaiting.values(owed.EMPTIED))


EMPTY_INBOX: Final = Check("empty inbox", _find, end_wait)
