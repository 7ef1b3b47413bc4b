"""Removals: delete messages of a session together with their turns.

A cut after a `seq` deletes the messages with a higher `seq`, and the turns that begin after it. A turn that begins
before the cut and ends after it is shortened.

Summaries need a separate rule. Their messages are appended at the end of the log, so their `seq` is higher than that of
the messages that they replace. A cut keeps a summary if it keeps all messages that the summary covers
(`replaced_upto`), and deletes it otherwise. With this rule, a cut at a lower `seq` never keeps a message that a
cut at a higher `seq` would delete.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from lango_store._dialect.statement import Statement
from lango_store._operations.binds import IN_SUMMARY, IS_COMPACTION, MESSAGE, OF_ITS_TURN, TURN, number, of_session
from lango_store._operations.log.changes import LogChange, Rows
from lango_store._operations.log.messages import check_seq
from lango_store._operations.rows import turn_json
from lango_store._operations.session import sessions
from lango_store._rows.columns import as_stored
from lango_store._values.model import ChangeKind, MessageRole
from lango_store.errors import InvalidCut


def truncate(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Delete the messages, records and turns after a seq, except summaries of earlier messages.

    Returns the number of deleted messages.
    """
    check_seq("after", after)
    last_seq = sessions.lock(connection, now, key).last_seq
    reject_gap(connection, key, after)
    return cut(connection, now, key, after, last_seq)


_AFTER: Final = number("after")

_ZERO: Final = sa.literal_column("0", sa.BigInteger())

IS_SUMMARY_BEFORE: Final = sa.and_(
    IS_COMPACTION, sa.func.coalesce(TURN.c.replaced_upto, _ZERO) <= _AFTER, _AFTER > _ZERO
)
"""Matches the compactions that cover only messages up to the seq `after`; for seq 0, it matches none."""

IS_AFTER: Final = sa.and_(MESSAGE.c.seq > _AFTER, ~sa.exists().where(OF_ITS_TURN, IS_SUMMARY_BEFORE))
"""Matches the messages that a cut after a seq deletes: later ones, except summaries of earlier messages."""

_covering: Final = Statement(
    sa.select(TURN.c.turn_no, TURN.c.replaced_upto, as_stored(TURN.c.metadata)).where(
        of_session(TURN), IS_COMPACTION, TURN.c.replaced_upto > _AFTER, TURN.c.metadata.is_not(None)
    )
)


def reject_gap(connection: sa.Connection, key: str, after: int) -> None:
    """Raise `InvalidCut` if a cut deletes a summary of discarded messages, unless the cut deletes the whole log."""
    for turn_no, replaced_upto, text in _covering.run(connection, {"key": key, "after": after}) if after else ():
        if has_discarded(key, turn_no, text):
            raise InvalidCut(key, after, replaced_upto)


def has_discarded(key: str, turn_no: int, metadata: str | None) -> bool:
    """Return True if a compaction deleted the messages that it replaced, according to its stored metadata."""
    decoded = None if metadata is None else turn_json(key, turn_no, "metadata", metadata)
    return isinstance(decoded, dict) and bool(decoded.get("discarded"))


_LATER: Final = Rows(MESSAGE, IS_AFTER)
_LATER_TURNS: Final = Rows(TURN, TURN.c.first_seq > _AFTER, ~IS_SUMMARY_BEFORE)
_DIVIDED: Final = Rows(TURN, TURN.c.first_seq <= _AFTER, TURN.c.last_seq > _AFTER, ~IS_COMPACTION, last_seq=_AFTER)


Cut = Callable[[sa.Connection, datetime, str, int, int], int]
"""Removes the log after a seq of a locked session, as `cut` does."""


def cut(
    connection: sa.Connection, now: datetime, key: str, after: int, last_seq: int, kind: ChangeKind = "truncate"
) -> int:
    """Delete the log after a seq of a locked session, by the module's rules; return the number of deleted messages."""
    if after > last_seq:
        return 0
    with LogChange(connection, now, key, kind, last_seq + 1, after, unless_empty=True) as change:
        delete_after(change, after)
    return change.messages


def delete_after(change: LogChange, after: int) -> None:
    """Delete the log after a seq, by the module's rules."""
    change.delete(_LATER, after=after)
    change.delete(_LATER_TURNS, after=after)
    if not change.is_empty:
        change.replace(_DIVIDED, after=after)


_ALL: Final = Rows(MESSAGE)
_SYSTEM: Final = sa.literal_column(f"'{MessageRole.SYSTEM.value}'", sa.Text())
_ALL_BUT_SYSTEM: Final = Rows(MESSAGE, sa.or_(MESSAGE.c.role != _SYSTEM, IN_SUMMARY))
_ALL_TURNS: Final = Rows(TURN)
_ALL_IN_TURNS: Final = Rows(MESSAGE, MESSAGE.c.turn_no.is_not(None), turn_no=sa.null())


def clear(connection: sa.Connection, now: datetime, key: str, *, keep_system: bool) -> int:
    """Delete all messages, records and turns; return the number of deleted messages.

    With `keep_system`, system messages stay, except those of summaries.
    """
    last_seq = sessions.lock(connection, now, key).last_seq
    with LogChange(connection, now, key, "clear", last_seq + 1, 0) as change:
        change.delete(_ALL_BUT_SYSTEM if keep_system else _ALL)
        change.delete(_ALL_TURNS)
        change.replace(_ALL_IN_TURNS)
        change.consolidated = 0
    return change.messages


def is_misplaced() -> sa.ColumnElement[bool]:
    """Match the messages that name a turn that does not contain them."""
    contains = sa.exists().where(OF_ITS_TURN, TURN.c.first_seq <= MESSAGE.c.seq, MESSAGE.c.seq <= TURN.c.last_seq)
    return sa.and_(MESSAGE.c.turn_no.is_not(None), ~contains)


def detach_misplaced(connection: sa.Connection, key: str | None = None) -> None:
    """Repair misplaced messages of one session, or of all: remove the number of the turn."""
    of_key = sa.true() if key is None else of_session(MESSAGE, key)
    connection.execute(sa.update(MESSAGE).where(of_key, is_misplaced()).values(turn_no=None))
