"""Read the end of a window for a prompt, with the instructions at the start of the window."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import IS_RECORD, MESSAGE, SESSION, number, of_session
from lango_store._operations.log import messages
from lango_store._operations.rows import MESSAGE_COLUMNS
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message
from lango_store.window.repair import INSTRUCTIONS


@dataclass(frozen=True)
class LastMessages:
    """The last messages of a window, and what is known about the window.

    Attributes:
        messages: The messages.
        summary_turn: The turn number of the window's summary.
        is_whole: If the window has no other messages.
        leading: The instructions at the start of the window, if it has no summary.
    """

    messages: Sequence[Message]
    summary_turn: int | None
    is_whole: bool
    leading: Sequence[Message]


def _of_first(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """Select a column of the first message of a window without a summary."""
    is_later = MESSAGE.c.seq > messages.of_live_session(SESSION.c.summarized_upto)
    in_window = sa.select(column).where(of_session(MESSAGE), is_later, ~IS_RECORD)
    return in_window.order_by(MESSAGE.c.seq).limit(1).scalar_subquery()


_FIRST: Final = _of_first(MESSAGE.c.seq), _of_first(MESSAGE.c.role)
_last: Final = Statement(functools.partial(messages.build_last, others=_FIRST))


def read_last(
    connection: AnyConnection, now: Moment, key: str, last: int, *, newest: int | None = None
) -> LastMessages:
    """Read the last messages of a live session's window, and the instructions at its start.

    With `newest`, only the `newest` messages with the highest seqs are considered, and no instructions. Instructions
    that are not among the last messages take one more statement.
    """
    last = max(last, 1)  # no row shows nothing about the start of the window
    read, row = messages.read_with(connection, now, key, last, _last, newest=newest)
    if row is None:
        return LastMessages([], None, is_whole=True, leading=[])
    summary_turn, first_seq, first_role = row[messages.SUMMARY_TURN :]
    if summary_turn is not None or newest is not None:
        return LastMessages(read, summary_turn, is_whole=len(read) < last, leading=[])
    is_whole = bool(read) and read[0].seq == first_seq
    if first_role not in INSTRUCTIONS:
        return LastMessages(read, None, is_whole, [])
    if is_whole:
        return LastMessages(read, None, is_whole, list(takewhile(lambda message: message.role in INSTRUCTIONS, read)))
    return LastMessages(
        read, None, is_whole, messages.select(connection, _instructions, checked_key(key), first=first_seq)
    )


def _build_instructions(_: Dialect) -> sa.Executable:
    of_window = (of_session(MESSAGE), MESSAGE.c.seq >= number("first"), ~IS_RECORD)
    roles = (sa.literal_column(f"'{role.value}'", sa.Text()) for role in sorted(INSTRUCTIONS))
    others = sa.select(MESSAGE.c.seq).where(*of_window, *(MESSAGE.c.role != role for role in roles))
    first_other = others.order_by(MESSAGE.c.seq).limit(1).scalar_subquery()
    end = sa.func.coalesce(first_other, sa.literal_column(str(messages.ALL), sa.BigInteger()))
    return sa.select(*MESSAGE_COLUMNS).where(*of_window, MESSAGE.c.seq < end).order_by(MESSAGE.c.seq)


_instructions: Final = Statement(_build_instructions)
