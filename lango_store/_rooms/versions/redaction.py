"""Redact a message in the store and in an archive."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._operations import derived_data
from lango_store._operations.binds import SESSION
from lango_store._operations.session.lists import Filter
from lango_store._rooms.expiry import archiving
from lango_store._rooms.versions import edits
from lango_store._values.model import Message
from lango_store.errors import MessageNotFound, SessionExpired, SessionNotFound
from lango_store.rows import transfer


def redact(context: Context, key: str, seq_or_id: int | str, reason: str | None, archive: str | Path | None) -> Message:
    """Redact a message in the store and, if given, in an archive.

    If only the archive contains the message, redact it there.
    """
    if archive is None:
        return context.transact(edits.redact, key, seq_or_id, reason)

    def redact_stored(connection: sa.Connection, now: datetime, key: str) -> tuple[Message, int]:
        message = edits.redact(connection, now, key, seq_or_id, reason)
        return message, transfer.incarnations(connection, [key])[key]

    with archiving.opened(context, archive) as cold:
        try:
            message, incarnation = context.transact(redact_stored, key)
        except (SessionNotFound, MessageNotFound) as error:
            if isinstance(error, SessionExpired):  # an expired session still contains the message
                raise
            try:
                message = cold.transact(edits.redact, key, seq_or_id, reason)
            except (SessionNotFound, MessageNotFound):
                raise error from None
        else:
            # A redacted message keeps its seq, so after an interruption here the caller can repeat the whole call.
            copies = sa.select(SESSION.c.key).where(archiving.is_copy(key, incarnation))
            every = Filter(expired=None)
            for copy in cold.read_together(lambda reading, *_: reading.execute(copies).scalars().all(), every):
                with suppress(MessageNotFound):
                    cold.transact(edits.redact, copy, message.seq, reason)
        derived_data.clean(cold)
    return message
