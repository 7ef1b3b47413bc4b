"""Transcripts as they are stored: read in one statement, and made entries without a message in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect import AnyConnection, Moment, dialect_of
from lango_store.encoding import NO_CONTENT, checked_key, content_fault, decode_time
from lango_store.errors import DamagedMessage
from lango_store.integrations.claude_agent_sdk import foreign
from lango_store.integrations.claude_agent_sdk.entries import NAME, Parts, entry_of
from lango_store.model import MessageRole
from lango_store.operations.binds import LIVE_SESSION, MESSAGE, number, of_session
from lango_store.operations.paging import Pages
from lango_store.operations.rows import MESSAGE_COLUMNS, decode_messages, seq_or_zero, stored_json
from lango_store.statement import Statement

Entry = dict[str, Any]

_LIVES: Final = sa.exists().where(LIVE_SESSION)

_whole = Statement(lambda _: sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE), _LIVES).order_by(MESSAGE.c.seq))
_later = Pages(MESSAGE, "seq", MESSAGE_COLUMNS, _LIVES, MESSAGE.c.seq > number("behind"))


class Transcript:
    """The entries of one session, in their order; what else was written to it comes after the entry before it."""

    def __init__(self, key: str, session_id: str) -> None:
        self.key = checked_key(key)
        self._session_id = session_id
        self._leaf: str | None = None

    def read(self, connection: AnyConnection, now: Moment) -> list[Entry]:
        """Read the whole of it while the session lives."""
        return _whole.run(connection, self._values(connection, now), self._entries)

    def later(self, connection: AnyConnection, now: Moment, seq: int) -> Iterator[tuple[int, list[Entry]]]:
        """Yield what was written behind a seq, a page at a time, and up to which seq that is."""
        for rows in _later.read(connection, self.key, self._values(connection, now) | {"behind": seq}):
            yield rows[-1][0], self._entries(rows)

    def _values(self, connection: AnyConnection, now: Moment) -> dict[str, Any]:
        return {"key": self.key, "now": dialect_of(connection).time(now)}

    def _entries(self, rows: Sequence[Sequence[Any]]) -> list[Entry]:
        entries: list[Entry] = []
        for row in rows:
            entries += self._of(row)
            self._leaf = entries[-1].get("uuid", self._leaf) if entries else self._leaf
        return entries

    def _of(self, row: Sequence[Any]) -> list[Entry]:
        seq, _, id, role, author, _, tool_call_id, text, content, calls, _, extra, created_at = row
        ours = None if extra is None else stored_json(self.key, seq, "extra", extra)
        if not isinstance(ours, dict) or NAME not in ours:
            message = decode_messages(self.key, [row])[0]
            return list(foreign.entries_of(self.key, message, self._leaf, sessionId=self._session_id))
        if damaged := content_fault(text, content):
            raise DamagedMessage(self.key, seq_or_zero(seq), *damaged)
        if text is None and content != NO_CONTENT:
            text = stored_json(self.key, seq, "content", content)
        called = () if calls is None else stored_json(self.key, seq, "tool_calls", calls)
        try:
            moment = decode_time(created_at)
        except ValueError as error:
            raise DamagedMessage(self.key, seq_or_zero(seq), "created_at", str(error)) from None
        try:
            return [entry_of(Parts(MessageRole(role), text, ours[NAME], id, moment, author, tool_call_id, called))]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"holds no entry ({error!r})"
            raise DamagedMessage(self.key, seq_or_zero(seq), f"extra.{NAME}", reason) from None
