"""The turn that answers a message or a suspension, which may not have begun yet."""

from typing import Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import MESSAGE, SESSION, TURN, number, of_session, text
from lango_store._operations.log import messages
from lango_store._operations.log.messages import Range
from lango_store._operations.rows import stored_time
from lango_store._operations.session import sessions
from lango_store._rooms.turns_in_progress import inbox, owed, running, working
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import encode_id
from lango_store._values.model import Message, MessageRole


class AwaitedTurn(NamedTuple):
    """A turn that a reader waits for.

    Attributes:
        id: The id of the turn; None if it has not begun.
        is_owed: True if a worker is running the turn, or will run it; False if it is saved, or was given up.
    """

    id: str | None = None
    is_owed: bool = False


_state: Final = Statement(
    lambda _: sa.select(
        SESSION.c.lease_turn,
        sa.func.coalesce(SESSION.c.waiting, sa.literal_column("0", sa.BigInteger())),
        sa.and_(SESSION.c.owed_at.is_not(None), ~owed.IS_FUTURE),
        sa.and_(sa.func.coalesce(SESSION.c.owed_at < owed.NEVER_STORED, sa.false()), ~owed.IS_FUTURE),
    ).where(of_session(SESSION))
)
_delay: Final = Statement(
    lambda _: sa.select(SESSION.c.last_error, as_stored(SESSION.c.owed_at)).where(
        of_session(SESSION), SESSION.c.last_error.like(text("waits_for")), owed.IS_ENDED
    )
)
_number: Final = Statement(lambda _: sa.select(TURN.c.id).where(of_session(TURN), TURN.c.turn_no == number("turn_no")))
_last: Final = Statement(
    lambda _: sa.select(TURN.c.id).where(of_session(TURN)).order_by(TURN.c.turn_no.desc()).limit(1)
)
_has_taken: Final = Statement(
    lambda _: (
        sa.select(MESSAGE.c.seq)
        .where(of_session(MESSAGE), MESSAGE.c.taken_by == text("turn_id"), MESSAGE.c.turn_no.is_(None))
        .limit(1)
    )
)


def of_message(connection: AnyConnection, now: Moment, key: str, id: str) -> AwaitedTurn:
    """Return the turn that has taken a message, or that will take it; for a question, the turn of its newest answer."""
    current, waiting, is_open, is_due = _row(connection, now, key)
    for stored in messages.read_by_ids(connection, key, frozenset([str(encode_id(id))])).values():
        turn_id = _turn_of(connection, key, stored)
        if stored.role is MessageRole.USER and not (is_open and current == turn_id is not None):
            later = messages.read(connection, now, key, Range(after=stored.seq, limit=1))
            if not later and waiting & owed.ANSWERED:
                return AwaitedTurn(None, is_due)
            if not later and is_open:
                turn_id = current
            for answer in later:
                if answer.role is not MessageRole.USER:
                    turn_id = _turn_of(connection, key, answer)
        return AwaitedTurn(turn_id, turn_id is not None and is_owed(connection, now, key, turn_id))
    return AwaitedTurn(None, is_due and any(each.id == id for each in inbox.read(connection, now, key)))


def _turn_of(connection: AnyConnection, key: str, message: Message) -> str | None:
    """Return the id of the turn of a message, saved or not."""
    if message._taken_by is not None or message.turn_no is None:
        return message._taken_by
    rows = _number.run(connection, {"key": key, "turn_no": message.turn_no})
    return rows[0][0] if rows else None


def after_answer(connection: AnyConnection, now: Moment, key: str) -> AwaitedTurn:
    """Return the turn that begins after the last answer to a suspension; if it is saved, the last saved turn."""
    turn_id, waiting, _, is_due = _row(connection, now, key)
    if waiting & owed.ANSWERED:
        return AwaitedTurn(None, is_due)
    if turn_id is not None:
        return AwaitedTurn(turn_id, is_due)
    rows = _last.run(connection, {"key": key})
    return AwaitedTurn(rows[0][0] if rows else None)


def next_turn(connection: AnyConnection, now: Moment, key: str) -> AwaitedTurn:
    """Return the turn in progress, or the one that is owed next. Without an id, nothing else is owed."""
    turn_id, _, is_open, is_due = _row(connection, now, key)
    return AwaitedTurn(turn_id if is_open else None, is_due)


def budget_awaited(connection: AnyConnection, now: Moment, key: str) -> dict[str, str] | None:
    """Return the scope of the budget that the owed turn waits for, and the time of its next try."""
    waits_for = working.waits_for("")
    bound = {"key": key, "waits_for": f"{waits_for}%", "now": dialect_of(connection).time(now)}
    for error, owed_at in _delay.run(connection, bound):
        until = stored_time(key, "owed_at", owed_at)
        return {"scope": error.removeprefix(waits_for), "until": until.isoformat()}
    return None


def is_owed(connection: AnyConnection, now: Moment, key: str, turn_id: str) -> bool:
    """Return True if a turn is in progress, or is owed another attempt."""
    current, _, _, is_due = _row(connection, now, key)
    if not is_due or running.find(connection, key, turn_id):
        return False
    return current == turn_id or bool(_has_taken.run(connection, {"key": key, "turn_id": turn_id}))


def _row(connection: AnyConnection, now: Moment, key: str) -> tuple[str | None, int, bool, bool]:
    """Return the turn that has begun, the waiting messages, whether one is owed, and whether one not given up is."""
    sessions.row_of(connection, now, key)
    bound = {"key": key, "now": dialect_of(connection).time(now)}
    ((turn_id, waiting, is_open, is_due),) = _state.run(connection, bound)
    return turn_id, waiting, bool(is_open), bool(is_due)
