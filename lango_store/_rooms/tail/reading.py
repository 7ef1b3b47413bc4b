"""The events of a session after a cursor: messages, changes, turns, and the draft of the turn in progress.

A cursor includes the incarnation of its session, and the length and the checksum of the draft that the reader has.
The checksum shows whether the stored draft continues that draft: a retry or another attempt can store other pieces.
It also includes the number of the last turn that the reader knows, and the attempt whose turn the reader has seen
begin. So the end of that turn follows from the session's row and the turns saved since then.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    BEFORE_ANY_EXPIRY,
    CHANGE,
    IS_COMPACTION,
    LIVE,
    SESSION,
    TURN,
    number,
    of_session,
    text,
)
from lango_store._operations.log import messages as log
from lango_store._operations.rows import TURN_COLUMNS, decode_turn, session_value, whole_number
from lango_store._operations.session import sessions
from lango_store._rooms.tail.values import Appended, Changed, Ended, Event, Piece, TurnBegan, TurnEnded
from lango_store._rooms.turns_in_progress import drafts, leases, running
from lango_store._rooms.turns_in_progress.tables import DRAFT
from lango_store._rows.columns import as_stored
from lango_store._values.model import Message, Turn
from lango_store.errors import InvalidCursor, quoted

PAGE: Final = 200
"""The maximum number of messages, of changes and of turns in a batch."""

_CURSOR: Final = re.compile(
    r"(\d{1,19})(?:(?:\.(\d{1,10})\.([0-9a-f]{8}))?-([0-9a-f]{8})(?:~(\d{1,19})(?:\.([0-9a-f]{16}))?)?)?", re.ASCII
)


class Cursor(NamedTuple):
    """The position of a reader in the events of a session. A plain seq has no incarnation.

    `attempt` identifies the attempt of a turn that has begun and not ended: see `_attempt`.
    """

    seq: int
    length: int = 0
    checksum: int = 0
    incarnation: str | None = None
    turn_no: int = 0
    attempt: str = ""

    @classmethod
    def of(cls, after: int | str) -> Cursor:
        """Return the cursor of a seq, or of the text of a cursor."""
        if not isinstance(after, str):
            if type(after) is not int:
                raise ValueError(f"after={quoted(after)}: give a seq or the cursor of an event; 0 is the beginning")
            log.check_seq("after", after)
            return cls(after)
        match = _CURSOR.fullmatch(after)
        if match is None or max(int(match[1]), int(match[5] or 0)) > log.MAX_SEQ:
            raise InvalidCursor(f"after={quoted(after)} is not a cursor: give a seq, or the cursor of an event")
        seq, length, checksum, incarnation, turn_no, attempt = match.groups()
        return cls(int(seq), int(length or 0), int(checksum or "0", 16), incarnation, int(turn_no or 0), attempt or "")

    @property
    def text(self) -> str:
        """The cursor as text, as in `Event.cursor`."""
        draft = f".{self.length}.{self.checksum:08x}" if self.length else ""
        attempt = f".{self.attempt}" if self.attempt else ""
        turns = f"~{self.turn_no}{attempt}" if self.turn_no or attempt else ""
        return f"{self.seq}{draft}-{self.incarnation}{turns}"


class _State(NamedTuple):
    """The columns of a session of which at least one changes with each event.

    For a piece of a draft this is `lease_until` or, if the clock is frozen, `last_piece`.
    """

    is_live: Any
    incarnation: Any
    last_seq: Any
    last_turn_no: Any
    lease_token: Any
    lease_turn: Any
    lease_is_held: Any
    lease_until: Any
    user_id: Any
    last_piece: Any


State = _State | None
"""The state of a session; None if the session does not exist."""


class EventBatch(NamedTuple):
    """Events, and the cursor after them.

    `state` is the state of the session if `end` is its newest event, otherwise None. `is_over` is True after `Ended`.
    """

    events: Sequence[Event]
    end: Cursor
    state: State = None
    is_over: bool = False


_LAST_PIECE: Final = sa.select(sa.func.max(DRAFT.c.n)).where(of_session(DRAFT, SESSION.c.key)).scalar_subquery()
_STATE: Final = _State(
    is_live=LIVE,
    incarnation=SESSION.c.incarnation,
    last_seq=SESSION.c.last_seq,
    last_turn_no=SESSION.c.last_turn_no,
    lease_token=SESSION.c.lease_token,
    lease_turn=SESSION.c.lease_turn,
    lease_is_held=leases.HELD,
    lease_until=as_stored(SESSION.c.lease_until),
    user_id=as_stored(SESSION.c.user_id),
    last_piece=_LAST_PIECE,
)
_MISSING: Final = _State(False, 0, 0, 0, None, None, None, None, None, None)
_state: Final = Statement(lambda _: sa.select(*_STATE).where(of_session(SESSION)))
_states: Final = Statement(
    lambda dialect: sa.select(SESSION.c.key, *_STATE).where(SESSION.c.key.in_(dialect.texts_of_list(text("keys"))))
)


def states(connection: AnyConnection, now: Moment, keys: Sequence[str]) -> dict[str, State]:
    """Return the states of the sessions with these keys, by key; missing sessions are left out."""
    values = {"keys": json.dumps(keys), "now": dialect_of(connection).time(now)}
    return {key: _State(*row) for key, *row in _states.run(connection, values)}


class _Change(NamedTuple):
    seq: int
    kind: Any
    after_seq: Any


_changes: Final = Statement(
    lambda _: (
        sa.select(*(CHANGE.c[name] for name in _Change._fields))
        .where(of_session(CHANGE), CHANGE.c.seq > number("after"), CHANGE.c.seq <= number("upto"))
        .order_by(CHANGE.c.seq)
        .limit(number("limit"))
    )
)


_turns: Final = Statement(
    lambda _: (
        sa.select(*TURN_COLUMNS)
        .where(of_session(TURN), TURN.c.turn_no > number("after"), ~IS_COMPACTION)
        .order_by(TURN.c.turn_no)
        .limit(number("limit"))
    )
)
_last_turn: Final = Statement(
    lambda _: (
        sa.select(TURN.c.turn_no)
        .where(of_session(TURN), TURN.c.last_seq <= number("seq"))
        .order_by(TURN.c.turn_no.desc())
        .limit(1)
    )
)


def newest(connection: sa.Connection, now: Moment, key: str, turn_id: str) -> Cursor:
    """Return the cursor after all messages of a live session; the end of a turn comes after it, even if it is saved.

    Needs a snapshot.
    """
    number, info = sessions.info_with_incarnation(connection, now, key)
    if turn := running.find(connection, key, turn_id):
        turn_no = turn.turn_no - 1
    else:
        turns = _last_turn.run(connection, {"key": key, "seq": info.last_seq})
        turn_no = turns[0][0] if turns else 0
    return Cursor(info.last_seq, incarnation=_incarnation(key, number), turn_no=turn_no)


def read(connection: sa.Connection, now: Moment, key: str, after: Cursor) -> EventBatch:
    """Read the next events of a session, at most a page. Needs a snapshot.

    If the session is not live, a plain seq raises `SessionNotFound` or `SessionExpired`, but a cursor returns `Ended`.
    """
    rows = _state.run(connection, {"key": key, "now": dialect_of(connection).time(now)})
    state = _State(*rows[0]) if rows else None
    current = state or _MISSING
    incarnation = _incarnation(key, current.incarnation)
    if after.incarnation is None:
        if not current.is_live:
            sessions.row_of(connection, now, key)
        turns = _last_turn.run(connection, {"key": key, "seq": after.seq}) if after.seq and current.last_turn_no else []
        after = after._replace(incarnation=incarnation, turn_no=turns[0][0] if turns else 0)
    reason = "deleted" if state is None else "replaced" if after.incarnation != incarnation else "expired"
    if reason != "expired" or not current.is_live:
        return end_of(key, after, reason)
    last_seq = whole_number(key, "last_seq", current.last_seq)
    last_turn = whole_number(key, "last_turn_no", current.last_turn_no)
    newest = after._replace(seq=last_seq, turn_no=last_turn)
    events, end = _log(connection, key, after, newest)
    if end.seq < newest.seq or end.turn_no < newest.turn_no:
        return EventBatch(events, end)
    end = _follow_turn(key, events, end, current)
    turn_id, draft = _draft(connection, key, current.lease_token)
    if (draft_end := after_draft(end, draft)) != end:
        known = end.length if after_draft(end, draft[: end.length]) == end else 0
        events.append(Piece(cursor=draft_end.text, turn_id=turn_id, n=known, text=draft[known:]))
    return EventBatch(events, draft_end, state if end.seq == last_seq else None)


def end_of(key: str, after: Cursor, reason: str) -> EventBatch:
    """Return the last batch of a reader, whose session no longer exists."""
    return EventBatch([session_value(Ended, {"cursor": after.text, "reason": reason}, key)], after, is_over=True)


def _incarnation(key: str, number: int) -> str:
    return f"{whole_number(key, 'incarnation', number) & 0xFFFFFFFF:08x}"


def _log(connection: sa.Connection, key: str, after: Cursor, newest: Cursor) -> tuple[list[Event], Cursor]:
    """Read a page of messages, changes and saved turns as events; return them, and the cursor after them.

    Turns are in the order of their numbers, each after its last message.
    """
    changes, messages, turns = [], [], []
    if after.seq < newest.seq:
        bound = {"key": key, "after": after.seq, "upto": newest.seq, "limit": PAGE}
        changes = [(each.seq, each) for each in (_Change(*row) for row in _changes.run(connection, bound))]
        chosen = log.Range(after.seq, newest.seq + 1, PAGE)
        # The session is live in this snapshot.
        messages = [(each.seq, each) for each in log.read(connection, BEFORE_ANY_EXPIRY, key, chosen)]
    position = after.seq
    if after.turn_no < newest.turn_no:
        for row in _turns.run(connection, {"key": key, "after": after.turn_no, "limit": PAGE}):
            turn = decode_turn(key, row)
            position = max(position, turn.last_seq)
            turns.append((position, turn))
    pages = (changes, messages, turns)
    upto = min([max(after.seq, newest.seq), *(page[-1][0] for page in pages if len(page) == PAGE)])
    events: list[Event] = []
    at = after
    for seq, entry in sorted(itertools.chain(*pages), key=itemgetter(0)):  # stable: a turn follows its last message
        if seq > upto:
            break
        if isinstance(entry, Turn):
            is_known = at.attempt[8:] == _checksum(entry.id or "")
            at = at._replace(turn_no=entry.turn_no, attempt="" if is_known else at.attempt)
            events.append(TurnEnded(cursor=at.text, turn_id=entry.id, outcome="saved", turn=entry))
            continue
        at = at._replace(seq=seq)
        if not isinstance(entry, Message):
            fields = {"cursor": at.text} | entry._asdict()
            events.append(session_value(Changed, fields, key))
        elif events and isinstance(events[-1], Appended):
            events[-1].messages.append(entry)
            events[-1].cursor = at.text
        else:
            events.append(Appended(cursor=at.text, messages=[entry]))
    has_all_turns = len(turns) < PAGE and position <= upto
    return events, at._replace(seq=upto, turn_no=max(after.turn_no, newest.turn_no) if has_all_turns else at.turn_no)


def _follow_turn(key: str, events: list[Event], end: Cursor, state: _State) -> Cursor:
    """Add the events that the lease at the end of the log shows; return the cursor after them."""
    token, turn_id = state.lease_token, state.lease_turn
    attempt = _attempt(key, token, turn_id) if token is not None and state.lease_is_held else ""
    if end.attempt not in ("", attempt):
        end = end._replace(attempt="")
        events.append(TurnEnded(cursor=end.text, outcome="given_up" if token is None else "lease_lost"))
    if end.attempt != attempt:
        end = end._replace(attempt=attempt)
        events.append(session_value(TurnBegan, {"cursor": end.text, "turn_id": turn_id}, key))
    return end


def _attempt(key: str, token: int, turn_id: str | None) -> str:
    """Identify an attempt in a cursor: a half of its token, and the checksum of its turn's id."""
    return leases.draft_id(key, token)[8:] + _checksum(str(turn_id))


def _checksum(turn_id: str) -> str:
    return f"{zlib.crc32(turn_id.encode('utf-8', 'surrogatepass')):08x}"


def _draft(connection: sa.Connection, key: str, token: int | None) -> tuple[str | None, str]:
    """Return the turn and the text of the draft of the turn in progress; only the holder of the lease writes one."""
    if token is not None:
        for draft in drafts.read(connection, BEFORE_ANY_EXPIRY, key):
            if draft.id == leases.draft_id(key, token):
                return draft.turn_id, draft.text
    return None, ""


def after_draft(cursor: Cursor, draft: str) -> Cursor:
    """Return a cursor of a reader that has this draft."""
    return cursor._replace(length=len(draft), checksum=zlib.crc32(draft.encode("utf-8", "surrogatepass")))
