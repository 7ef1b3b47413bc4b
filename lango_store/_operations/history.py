"""The end of a window: its last messages, and the part of them that fits a model."""

from __future__ import annotations

import functools
from itertools import takewhile
from typing import Any, Final

import sqlalchemy as sa

from lango_store import window
from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import sessions
from lango_store._operations.binds import LIVE_SESSION, MESSAGE, SESSION, TURN, number, of_session
from lango_store._operations.messages import in_window
from lango_store._operations.rows import MESSAGE_COLUMNS, decode_messages
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message, MessageRole

_ALL: Final = 2**62  # leaves room to add the length of a summary
_FIRST_PAGE: Final = 64
_INSTRUCTIONS: Final = (MessageRole.SYSTEM, MessageRole.DEVELOPER)


def _of_live_session(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    return sa.select(column).where(LIVE_SESSION).scalar_subquery()


def _build_tail(_: Dialect, *, records: bool) -> sa.Executable:
    summary_turn = _of_live_session(SESSION.c.summary_turn)
    in_summary = sa.select(TURN.c.last_seq - TURN.c.first_seq + sa.literal_column("1", sa.BigInteger())).where(
        of_session(TURN), TURN.c.turn_no == summary_turn
    )
    # A summary precedes messages with a lower seq: with its length added, the limit covers the last messages as well.
    limit = number("limit") + sa.func.coalesce(in_summary.scalar_subquery(), sa.literal_column("0", sa.BigInteger()))
    return (
        sa.select(*MESSAGE_COLUMNS, summary_turn)
        .where(of_session(MESSAGE), MESSAGE.c.seq > _of_live_session(SESSION.c.summarized_upto), in_window(records))
        .order_by(MESSAGE.c.seq.desc())
        .limit(limit)
    )


_tail = {records: Statement(functools.partial(_build_tail, records=records)) for records in (False, True)}


def tail(
    connection: AnyConnection, now: Moment, key: str, last: int, *, newest: int | None = None, records: bool = False
) -> tuple[list[Message], int | None]:
    """Read the last messages of a live session's window, and the turn of its summary.

    With `newest`, only that many of the newest messages of the log are used.
    """
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now), "limit": min(last, _ALL)}
    rows = _tail[records].run(connection, values)
    if not rows:
        sessions.refuse(connection, now, key)
        return [], None
    summary_turn: int | None = rows[0][-1]
    by_seq = list(reversed(rows[:newest]))
    shown = sorted(by_seq, key=lambda row: summary_turn is not None and row[1] != summary_turn)
    return decode_messages(key, [row[:-1] for row in shown[max(len(shown) - last, 0) :]]), summary_turn


def read(
    connection: AnyConnection,
    now: Moment,
    key: str,
    *,
    last: int | None,
    max_tokens: int | None,
    from_consolidated: bool,
    count: window.Count | None,
) -> list[Message]:
    """Return at most the `last` messages and `max_tokens` tokens of a live session's window, fit for a model.

    With `max_tokens` or `from_consolidated` it takes several statements.
    """
    newest = None
    if from_consolidated:
        info = sessions.info(connection, now, key)
        newest = info.message_count - info.last_consolidated
    wanted = _ALL if last is None else last
    size = wanted if max_tokens is None else min(_FIRST_PAGE, wanted)
    while True:
        found, summary_turn = tail(connection, now, key, size, newest=newest)
        fitting = found if max_tokens is None else window.tail_within(found, max_tokens, count=count)
        if len(fitting) < len(found) or len(found) < size or size == wanted:
            return _legal(fitting, summary_turn)
        size = min(4 * size, wanted)


def _legal(found: list[Message], summary_turn: int | None) -> list[Message]:
    """Remove from the front the messages that a model would refuse or misunderstand."""
    summary = [message for message in found if summary_turn is not None and message.turn_no == summary_turn]
    later = found[len(summary) :]
    if summary:  # it covers everything that came before
        asking = [message for message in summary if message.role.canonical is MessageRole.ASSISTANT]
        called = {call.id for message in asking for call in message.tool_calls}
        return [*window.without_orphans(summary), *window.without_orphans(later, called)]
    system = list(takewhile(lambda message: message.role in _INSTRUCTIONS, later))
    return [*system, *window.legal_suffix(later[len(system) :])]
