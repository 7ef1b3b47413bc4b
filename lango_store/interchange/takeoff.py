"""The way out: a stored session as a `Draft`, its parts rebuilt page by page over the caller's connection."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store.columns import as_kept, decode_json, decode_time
from lango_store.errors import DamagedMessage
from lango_store.interchange.draft import Draft, Part
from lango_store.model import Message
from lango_store.operations import messages, sessions
from lango_store.operations.messages import Range
from lango_store.operations.sessions import SESSION, TURN

PAGE: Final = 500
_FIELDS: Final = ("agent_id", "user_id", "title", "model", "settings", "metadata", "tools")


def draft(connection: sa.Connection, now: datetime, key: str) -> Draft:
    """Read a live session; its parts can be read as long as the connection shows the same moment."""
    info = sessions.info(connection, now, key)
    given = {name: getattr(info, name) for name in _FIELDS}
    return Draft(
        key=key,
        parts=lambda: _parts(connection, now, key),
        fields={name: value for name, value in given.items() if value not in (None, {}, [])},
        created_at=info.created_at,
        updated_at=info.updated_at,
        last_consolidated=info.last_consolidated,
        forked_from=info.forked_from,
        extra=_extra(connection, key),
    )


def log(connection: sa.Connection, now: datetime, key: str) -> Iterator[Message]:
    """Read the messages of a session, a page of them in memory."""
    for page in messages.pages(lambda chosen: messages.read(connection, now, key, chosen), Range(), PAGE):
        yield from page


def keys(connection: sa.Connection, now: datetime, user_id: str | None = None) -> Iterator[str]:
    """Read the keys of live sessions, of a user or all, in their order."""
    live = SESSION.c.expires_at.is_(None) | (SESSION.c.expires_at > now)
    query = sa.select(SESSION.c.key).where(live).order_by(SESSION.c.key).limit(PAGE)
    if user_id is not None:
        query = query.where(SESSION.c.user_id == user_id)
    page = connection.execute(query).scalars().all()
    while page:
        yield from page
        page = connection.execute(query.where(SESSION.c.key > page[-1])).scalars().all()


def _extra(connection: sa.Connection, key: str) -> dict[str, Any]:
    text = connection.execute(sa.select(as_kept(SESSION.c.extra)).where(SESSION.c.key == key)).scalar()
    found = _json(key, "extra", text) or {}
    return found if isinstance(found, dict) else {"extra": found}


def _json(key: str, field: str, text: str | None) -> Any:
    try:
        return None if text is None else decode_json(text)
    except ValueError as error:
        raise DamagedMessage(key, 0, field, str(error)) from None


def _parts(connection: sa.Connection, now: datetime, key: str) -> Iterator[Part]:
    """Put turns and messages together again: a turn has what lies in its range, the rest stands by itself."""
    waiting = log(connection, now, key)
    message = next(waiting, None)
    loose: list[Message] = []
    for turn in _turns(connection, key):
        while message is not None and message.seq < turn.first_seq:
            loose.append(message)
            message = next(waiting, None)
            if len(loose) == PAGE:
                yield _single(loose)
                loose = []
        if loose:
            yield _single(loose)
            loose = []
        while message is not None and message.seq <= turn.extra_last:
            turn.part.messages.append(message)
            message = next(waiting, None)
        yield turn.part
