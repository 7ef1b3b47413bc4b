"""The events of a session after a cursor: messages, changes, and the draft of the turn in progress.

A cursor includes the incarnation of its session, and the length and the checksum of the draft that the reader has.
The checksum shows whether the stored draft continues that draft: a retry or another attempt can store other pieces.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._features.turns_in_progress import drafts
from lango_store._operations.binds import BEFORE_ANY_EXPIRY, CHANGE, DRAFT, LIVE, SESSION, number, of_session, text
from lango_store._operations.log import leases
from lango_store._operations.log import messages as log
from lango_store._operations.rows import session_value, whole_number
from lango_store._operations.session import sessions
from lango_store._rows.columns import as_stored
from lango_store._values.events import Appended, Changed, Ended, Event, Piece
from lango_store._values.model import Message
from lango_store.errors import InvalidCursor, quoted

PAGE: Final = 200
"""The maximum number of messages in a batch."""

_CURSOR: Final = re.compile(r"(\d{1,19})(?:(?:\.(\d{1,10})\.([0-9a-f]{8}))?-([0-9a-f]{8}))?", re.ASCII)


class Cursor(NamedTuple):
    """The position of a reader in the events of a session. A plain seq has no incarnation."""

    seq: int
    length: int = 0
    checksum: int = 0
    incarnation: str | None = None

    @classmethod
    def of(cls, after: int | str) -> Cursor:
        """Return the cursor of a seq, or of the text of a cursor."""
        if not isinstance(after, str):
            if type(after) is not int:
                raise ValueError(f"after={quoted(after)}: give a seq or the cursor of an event; 0 is the beginning")
            log.check_seq("after", after)
            return cls(after)
        match = _CURSOR.fullmatch(after)
        if match is None or int(match[1]) > log.MAX_SEQ:
            raise InvalidCursor(f"after={quoted(after)} is not a cursor: give a seq, or the cursor of an event")
        seq, length, checksum, incarnation = match.groups()
        return cls(int(seq), int(length or 0), int(checksum or "0", 16), incarnation)

    @property
    def text(self) -> str:
        """The cursor as text, as in `Event.cursor`."""
        draft = f".{self.length}.{self.checksum:08x}" if self.length else ""
        return f"{self.seq}{draft}-{self.incarnation}"


State = tuple[Any, ...] | None
"""The columns `_STATE` of a session; None if the session does not exist."""


class EventBatch(NamedTuple):
    """Events, and the cursor after them.

    `state` is the state of the session if `end` is its newest event, otherwise None. `is_over` is True after `Ended`.
    """

    events: Sequence[Event]
    end: Cursor
    state: State = None
    is_over: bool = False


# With each event, at least one of these columns changes. For a piece of a draft this is `lease_until` or, if the clock
# is frozen, the `n` of the last piece.
_LAST_PIECE: Final = sa.select(sa.func.max(DRAFT.c.n)).where(of_session(DRAFT, SESSION.c.key)).scalar_subquery()
_COUNTERS: Final = [SESSION.c.incarnation, SESSION.c.last_seq, SESSION.c.lease_token]
_STATE: Final = [LIVE, *_COUNTERS, as_stored(SESSION.c.lease_until), _LAST_PIECE]
_state: Final = Statement(lambda _: sa.select(*_STATE).where(of_session(SESSION)))
_states: Final = Statement(
    lambda dialect: sa.select(SESSION.c.key, *_STATE).where(SESSION.c.key.in_(dialect.texts_of_list(text("keys"))))
)


def states(connection: AnyConnection, now: Moment, keys: Sequence[str]) -> dict[str, State]:
    """Return the states of the sessions with these keys, by key; missing sessions are left out."""
    values = {"keys": json.dumps(keys), "now": dialect_of(connection).time(now)}
    return {key: tuple(row) for key, *row in _states.run(connection, values)}


_changes: Final = Statement(
    lambda _: (
        sa.select(CHANGE.c.seq, CHANGE.c.kind, CHANGE.c.after_seq)
        .where(of_session(CHANGE), CHANGE.c.seq > number("after"), CHANGE.c.seq <= number("upto"))
        .order_by(CHANGE.c.seq)
        .limit(number("limit"))
    )
)


def read(connection: sa.Connection, now: Moment, key: str, after: Cursor) -> EventBatch:
    """Read the next events of a session, at most a page. Needs a snapshot.

    If the session is not live, a plain seq raises `SessionNotFound` or `SessionExpired`, but a cursor returns `Ended`.
    """
    rows = _state.run(connection, {"key": key, "now": dialect_of(connection).time(now)})
    state = tuple(rows[0]) if rows else None
    live, number, last_seq, token, *_ = state or (False, 0, 0, None)
    incarnation = f"{whole_number(key, 'incarnation', number) & 0xFFFFFFFF:08x}"
    if after.incarnation is None:
        if not live:
            sessions.row_of(connection, now, key)
        after = after._replace(incarnation=incarnation)
    reason = "deleted" if state is None else "replaced" if after.incarnation != incarnation else "expired"
    if reason != "expired" or not live:
        return EventBatch([session_value(Ended, {"cursor": after.text, "reason": reason}, key)], after, is_over=True)
    events, upto = _log(connection, key, after, whole_number(key, "last_seq", last_seq))
    end = after._replace(seq=upto)
    if upto < last_seq:
        return EventBatch(events, end)
    turn_id, draft = _draft(connection, key, token)
    if (draft_end := _after_draft(end, draft)) != end:
        known = end.length if _after_draft(end, draft[: end.length]) == end else 0
        events.append(Piece(cursor=draft_end.text, turn_id=turn_id, n=known, text=draft[known:]))
    return EventBatch(events, draft_end, state if upto == last_seq else None)


def _log(connection: sa.Connection, key: str, after: Cursor, last_seq: int) -> tuple[list[Event], int]:
    """Read a page of messages and changes; return them as events, with the seq up to which they are complete."""
    if after.seq >= last_seq:
        return [], after.seq
    changes = _changes.run(connection, {"key": key, "after": after.seq, "upto": last_seq, "limit": PAGE})
    chosen = log.Range(after.seq, last_seq + 1, PAGE)
    messages = log.read(connection, BEFORE_ANY_EXPIRY, key, chosen)  # the session is live in this snapshot
    entries = [(row[0], row) for row in changes], [(each.seq, each) for each in messages]
    upto = min([last_seq, *(each[-1][0] for each in entries if len(each) == PAGE)])
    events: list[Event] = []
    for seq, entry in sorted([*entries[0], *entries[1]], key=itemgetter(0)):
        if seq > upto:
            break
        cursor = after._replace(seq=seq).text
        if not isinstance(entry, Message):
            fields = {"cursor": cursor, "seq": seq, "kind": entry[1], "after_seq": entry[2]}
            events.append(session_value(Changed, fields, key))
        elif events and isinstance(events[-1], Appended):
            events[-1].messages.append(entry)
            events[-1].cursor = cursor
        else:
            events.append(Appended(cursor=cursor, messages=[entry]))
    return events, upto


def _draft(connection: sa.Connection, key: str, token: int | None) -> tuple[str | None, str]:
    """Return the turn and the text of the draft of the turn in progress; only the holder of the lease writes one."""
    if token is not None:
        for draft in drafts.read(connection, BEFORE_ANY_EXPIRY, key):
            if draft.id == leases.draft_id(key, token):
                return draft.turn_id, draft.text
    return None, ""


def _after_draft(cursor: Cursor, draft: str) -> Cursor:
    return cursor._replace(length=len(draft), checksum=zlib.crc32(draft.encode("utf-8", "surrogatepass")))
