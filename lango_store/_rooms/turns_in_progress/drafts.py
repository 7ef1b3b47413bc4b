"""Drafts: the pieces of an answer that a turn is streaming, in a separate table until the answer is in the log."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import numbered_insert, of_session, text
from lango_store._operations.log import appends, messages
from lango_store._operations.log.appends import Batch
from lango_store._operations.rows import session_value, stored_json, stored_time
from lango_store._operations.session import sessions
from lango_store._rooms.turns_in_progress import leases
from lango_store._rooms.turns_in_progress.errors import DraftNotFound, TurnInProgress
from lango_store._rooms.turns_in_progress.tables import DRAFT
from lango_store._rooms.turns_in_progress.values import Draft
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, encode_json
from lango_store._values.model import Message
from lango_store.errors import DamagedMessage, quoted

INTERRUPTED: Final = {"interrupted": True}
"""The `extra` of an answer that was not streamed to its end."""

_ID: Final = re.compile("[0-7][0-9a-f]{15}")


_insert: Final = Statement(lambda _: numbered_insert(DRAFT, "token", "turn_id", "piece", "written_at"))


def write(connection: sa.Connection, now: datetime, key: str, turn_id: str, token: int, text: str, whole: bool) -> None:
    """Add `text` to a draft or, with `whole`, replace the draft with it. The session must be locked."""
    if whole:
        leases.delete_draft(connection, key, token)
    row = {"token": token, "turn_id": turn_id, "piece": encode_json(text, "text")}
    _insert.run_many(connection, [row | {"key": key, "written_at": dialect_of(connection).time(now)}])


_PIECES: Final = [DRAFT.c.n, DRAFT.c.token, DRAFT.c.turn_id, as_stored(DRAFT.c.piece), as_stored(DRAFT.c.written_at)]
_read: Final = Statement(lambda _: sa.select(*_PIECES).where(of_session(DRAFT)).order_by(DRAFT.c.n))


def read(connection: AnyConnection, now: Moment, key: str) -> list[Draft]:
    """Return the drafts of a live session, in the order of their first pieces."""
    sessions.row_of(connection, now, key)
    pieces: dict[int, list[tuple[str, str, datetime]]] = {}
    for n, token, turn_id, piece, written_at in _read.run(connection, {"key": checked_key(key)}):
        text, time = stored_json(key, 0, f"draft {n}", piece), stored_time(key, f"draft {n}", written_at)
        if not isinstance(text, str):
            raise DamagedMessage(key, 0, f"draft {n}", "is not text")
        pieces.setdefault(token, []).append((turn_id, text, time))
    return [_draft(key, token, written) for token, written in pieces.items()]


def _draft(key: str, token: int, written: Sequence[tuple[str, str, datetime]]) -> Draft:
    turn_ids, texts, times = zip(*written, strict=True)
    fields = {"turn_id": turn_ids[0], "text": joined(texts), "created_at": times[0], "updated_at": times[-1]}
    return session_value(Draft, fields | {"id": leases.draft_id(key, token)}, key)


def joined(pieces: Iterable[str]) -> str:
    """Join pieces of a text. A surrogate pair that was divided between two pieces becomes one character."""
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def keep(connection: sa.Connection, now: datetime, key: str, id: str, encode: Callable[[Message], Batch]) -> Message:
    """Append the draft of an ended attempt as an interrupted answer, and delete the draft.

    If an earlier call has appended the answer, return the stored answer.

    Raises:
        TurnInProgress: The attempt has the lease of the session, and the lease has not ended.
        LangoStoreError: There is no such draft.
    """
    token, message_id = _checked(connection, now, key, id), f"draft-{id}"
    for stored in messages.read_by_ids(connection, key, frozenset([message_id])).values():  # by an earlier call
        return stored.model_copy(update={"replayed": True})
    for draft in read(connection, now, key):
        if draft.id == id:
            answer = Message.assistant(draft.text, id=message_id, extra=INTERRUPTED)
            leases.delete_draft(connection, key, token)
            return appends.append(connection, now, key, encode(answer))[0]
    raise DraftNotFound(f"session {quoted(key)} has no draft {quoted(id)}: drafts.list() lists its drafts")


def delete(connection: sa.Connection, now: datetime, key: str, id: str) -> bool:
    """Delete the draft of an ended attempt; return False if there is no such draft."""
    return leases.delete_draft(connection, key, _checked(connection, now, key, id))


def _checked(connection: sa.Connection, now: datetime, key: str, id: str) -> int:
    """Lock the session, and return the token of a draft; raise `TurnInProgress` if the draft's lease has not ended."""
    sessions.lock(connection, now, key)
    if not (isinstance(id, str) and _ID.fullmatch(id)):
        raise ValueError(f"id={quoted(id)} is not the id of a draft: give Draft.id")
    current = leases.find(connection, now, key)
    if current is not None and current.held and current.draft_id == id:
        raise TurnInProgress(key, current.id, current.until)
    return int(id, 16)


_delete_of_turn: Final = Statement(
    lambda _: sa.delete(DRAFT).where(of_session(DRAFT), DRAFT.c.turn_id == text("turn_id"))
)


def delete_of_turn(connection: AnyConnection, key: str, turn_id: str) -> None:
    """Delete the drafts of all attempts of a turn."""
    _delete_of_turn.run_many(connection, [{"key": key, "turn_id": turn_id}])
