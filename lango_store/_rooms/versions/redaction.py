"""Redact a message in the store and in an archive."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._operations import derived_data
from lango_store._operations.binds import SESSION
from lango_store._operations.log import messages
from lango_store._operations.log.messages import Range
from lango_store._operations.session.lists import Filter
from lango_store._rooms.expiry import archiving
from lango_store._rooms.versions import edits
from lango_store._values.model import Message
from lango_store.errors import MessageNotFound, SessionExpired, SessionNotFound
from lango_store.rows import transfer

_PAGE: Final = 500


def find(context: Context, key: str, archive: str | Path | None, replace: edits.Replace) -> list[int]:
    """Return the seqs of the messages that `redact` changes, in the store or only in the archive."""
    found: set[int] = set()
    incarnation = None
    try:
        found |= _changed(context, key, replace)
        incarnation = context.read_together(_incarnation, key)
    except SessionNotFound as error:
        if archive is None or isinstance(error, SessionExpired):
            raise
    if archive is not None:
        with archiving.opened(context, archive) as cold:
            for copy in [key] if incarnation is None else _copies(cold, key, incarnation):
                found |= _changed(cold, copy, replace)
    return sorted(found)


def _changed(context: Context, key: str, replace: edits.Replace) -> set[int]:
    found: set[int] = set()
    after, size = 0, _PAGE
    while size == _PAGE:
        page = context.on_primary().read(messages.read, key, Range(after=after, limit=_PAGE))
        found |= {each.seq for each in page if edits.with_texts(each, replace) != each}
        after, size = page[-1].seq if page else after, len(page)
    return found


def _incarnation(connection: sa.Connection, _: Any, key: str) -> int:
    return transfer.incarnations(connection, [key])[key]


def _copies(cold: Context, key: str, incarnation: int) -> list[str]:
    copies = sa.select(SESSION.c.key).where(archiving.is_copy(key, incarnation))
    every = Filter(expired=None)
    return [*cold.read_together(lambda reading, *_: reading.execute(copies).scalars().all(), every)]


def redact(
    context: Context,
    key: str,
    seq_or_id: int | str,
    reason: str | None,
    archive: str | Path | None,
    replace: edits.Replace | None,
) -> Message:
    """Redact a message in the store and, if given, in an archive.

    If only the archive contains the message, redact it there.
    """
    options: dict[str, Any] = {"replace": replace, "threshold": context.payload_threshold}
    if archive is None:
        return context.transact(edits.redact, key, seq_or_id, reason, **options)

    def redact_stored(connection: sa.Connection, now: datetime, key: str) -> tuple[Message, int]:
        message = edits.redact(connection, now, key, seq_or_id, reason, **options)
        return message, _incarnation(connection, now, key)

    with archiving.opened(context, archive) as cold:
        try:
            message, incarnation = context.transact(redact_stored, key)
        except (SessionNotFound, MessageNotFound) as error:
            if isinstance(error, SessionExpired):  # an expired session still contains the message
                raise
            try:
                message = cold.transact(edits.redact, key, seq_or_id, reason, **options)
            except (SessionNotFound, MessageNotFound):
                raise error from None
        else:
            # A redacted message keeps its seq, so after an interruption here the caller can repeat the whole call.
            for copy in _copies(cold, key, incarnation):
                with suppress(MessageNotFound):
                    cold.transact(edits.redact, copy, message.seq, reason, **options)
        derived_data.clean(cold)
    return message
