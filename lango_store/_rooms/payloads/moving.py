"""Move large strings of stored messages to payloads, and back to the rows."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import KEY, MESSAGE, column, number, of_session
from lango_store._operations.log import payloads
from lango_store._operations.pace import Pace
from lango_store._operations.session import sessions
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import decode_json
from lango_store._rows.payloads import COLUMNS as STRINGS
from lango_store._rows.payloads import FAULTS, Threshold, move, put_back

_HAS_PAYLOADS: Final = MESSAGE.c.payloads.is_not(None)
_NAMES: Final = (*STRINGS, "payloads")
_COLUMNS: Final = [as_stored(MESSAGE.c[name]) for name in _NAMES]
_POSITION: Final = (MESSAGE.c.session_key, MESSAGE.c.seq)

Position = tuple[str, int]
"""The session key and the seq of a message."""


_columns: Final = Statement(
    lambda _: sa.select(*_COLUMNS, MESSAGE.c.role).where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
)
_update: Final = Statement(
    lambda _: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq == number("seq"))
        .values({name: column(MESSAGE.c[name]) for name in _NAMES})
    )
)


def _choose(
    connection: sa.Connection, _: Moment, after: Position, limit: int, threshold: Threshold | None
) -> list[Position]:
    """Return the next messages to move: long ones without payloads or, if `threshold` is None, those with payloads."""
    key, seq = after
    bound = {"key": key, "seq": seq, "limit": limit}
    if threshold is None:
        return [(key, seq) for key, seq in _with_payloads.run(connection, bound)]
    return [(key, seq) for key, seq in _long.run(connection, bound | {"least": threshold.small})]


def _build_choice(is_chosen: sa.ColumnElement[bool]) -> sa.Executable:
    is_later = sa.tuple_(*_POSITION) > sa.tuple_(KEY, number("seq"))
    return sa.select(*_POSITION).where(is_later, is_chosen).order_by(*_POSITION).limit(number("limit"))


_ZERO: Final[sa.ColumnElement[int]] = sa.literal_column("0")
_SIZE: Final = sum((sa.func.coalesce(sa.func.length(as_stored(MESSAGE.c[name])), _ZERO) for name in STRINGS), _ZERO)
_with_payloads: Final = Statement(lambda _: _build_choice(_HAS_PAYLOADS))
_long: Final = Statement(lambda _: _build_choice(sa.and_(~_HAS_PAYLOADS, number("least") <= _SIZE)))


def _move_rows(connection: sa.Connection, _: datetime, chosen: Sequence[Position], threshold: Threshold | None) -> int:
    """Move strings to payloads or, if `threshold` is None, back to the rows; return the number of changed messages."""
    moved = 0
    for key, positions in groupby(chosen, key=itemgetter(0)):
        sessions.lock_any(connection, key)
        moved += sum(move_row(connection, key, seq, threshold) for _, seq in positions)
        if threshold is None:
            payloads.release(connection, key)
    return moved


def move_row(
    connection: sa.Connection, key: str, seq: int, threshold: Threshold | None, *, fills_missing: bool = False
) -> bool:
    """Move strings of a message to payloads or, if `threshold` is None, back to its row; return True if it changed.

    The session must be locked. With `fills_missing`, a missing payload becomes empty text.
    """
    stored = _columns.run(connection, {"key": key, "seq": seq})
    row: dict[str, Any] = dict(zip((*_NAMES, "role"), stored[0], strict=True)) if stored else {}
    if not row or (row["payloads"] is None) == (threshold is None):  # changed since it was chosen
        return False
    try:
        if threshold is None:
            digests = payloads.digests_of([row["payloads"]])
            filled = dict.fromkeys(digests, "") if fills_missing else {}
            put_back(row, decode_json(row["payloads"]), filled | payloads.read(connection, key, digests))
            row["payloads"] = None
        elif bodies := move(row, threshold):
            payloads.insert(connection, key, bodies)
        else:
            return False
    except FAULTS:  # a damaged row is not changed, and `doctor` reports it
        return False
    _update.run_many(connection, [row | {"key": key, "seq": seq}])
    return True


def move_all(context: Context, threshold: Threshold | None, on_batch: Callable[[int], None] | None) -> int:
    """Move large strings of stored messages to payloads or, with the threshold None, back to the rows, in batches."""
    after, moved = ("", 0), 0
    pace = Pace(dialect_of(context.engine))
    while chosen := context.read_together(_choose, after, pace.rows, threshold):
        with pace.batch():
            moved += context.transact(_move_rows, chosen, threshold)
        after = chosen[-1]
        if on_batch is not None:
            on_batch(moved)
    return moved
