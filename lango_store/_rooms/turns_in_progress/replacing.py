"""Replace a question, or ask for another answer to it: stop its turn, cut the log, and owe another turn."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import SESSION, of_session
from lango_store._operations.log import messages, removals
from lango_store._operations.log.appends import Batch
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import Expected
from lango_store._rooms.turns_in_progress import inbox, owed, stopping
from lango_store._rows.payloads import Threshold
from lango_store._values.model import Message
from lango_store.errors import InvalidMessage, quoted

_MOST_TURNS: Final = 100

_owe: Final = Statement(sa.update(SESSION).where(of_session(SESSION)).values(owed.arrived(owed.ANSWERED)))


def replace(
    connection: sa.Connection,
    now: datetime,
    key: str,
    new: Batch,
    expected: Expected,
    after: int,
    metadata: str | None,
    counted: Callable[[Message], Message],
    threshold: Threshold | None,
    *,
    keeps_removed: bool,
    set_aside: removals.Cut | None,
) -> tuple[list[Message], list[int]]:
    """Put messages in the place of the inbox and of the log after a seq; without messages, owe a turn nevertheless.

    With `set_aside`, the messages of the inbox are set aside with this end of the log.

    Returns:
        The messages, and the tokens of the leases that were taken away.

    Raises:
        Conflict: The session is not as expected.
        InvalidCut: A compaction discarded messages with a `seq` above `after`.
        InvalidMessage: Some messages have known ids, which messages that are set aside keep.
    """
    messages.check_seq("replace_after", after)
    known = messages.read_by_ids(connection, key, new.ids) if set_aside else {}
    if known:
        if len(known) < len(new.rows):
            raise InvalidMessage("id", f"{quoted(min(known))} is the id of a stored message, which keeps it")
        return [each.model_copy(update={"replayed": True}) for each in known.values()], []
    expected.check(key, sessions.lock(connection, now, key))
    removals.reject_gap(connection, key, after)
    tokens: list[int] = []
    for _ in range(_MOST_TURNS):  # several, if earlier turns were not saved
        turn, token = stopping.stop(
            connection, now, key, metadata, counted, threshold, None, keeps_removed=keeps_removed
        )
        tokens += [] if token is None else [token]
        if turn is None:
            break
    if set_aside:  # waiting messages belong to the answers that they follow
        after = min(after, sessions.lock(connection, now, key).last_seq)
        inbox.append(connection, now, key, threshold, lambda each: inbox.is_own(each.id) and each.id not in new.ids)
    inbox.empty(connection, now, key)
    (set_aside or removals.cut)(connection, now, key, after, sessions.lock(connection, now, key).last_seq)
    if not new.rows:
        _owe.run_many(connection, [{"key": key, "now": dialect_of(connection).time(now)}])
    return inbox.enqueue(connection, now, key, new), tokens
