"""The way out: a stored session as a `Draft`, its parts put together page by page on the caller's connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Moment
from lango_store._operations import lists, messages, sessions, values
from lango_store._operations.binds import TURN
from lango_store._operations.lists import Filter
from lango_store._operations.paging import Pages
from lango_store._operations.rows import turn_json
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import decode_time
from lango_store._values.model import Message, MessageRole, SessionFields
from lango_store.interchange.draft import Draft, Part
from lango_store.interchange.fidelity import mapping

_KEYS: Final = 500
_FIELDS: Final = tuple(SessionFields.__annotations__)


def draft(connection: sa.Connection, now: Moment, key: str, system: str) -> Draft:
    """Return a live session for a system; its parts can be read as long as the connection shows the same moment."""
    info = sessions.info(connection, now, key)
    given = {name: getattr(info, name) for name in _FIELDS}
    return Draft(
        key=key,
        parts=lambda: _parts(connection, now, key),
        fields={name: value for name, value in given.items() if value not in (None, {}, [])},
        created_at=info.created_at,
        updated_at=info.updated_at,
        last_consolidated=info.last_consolidated,
        summarized_upto=info.summarized_upto,
        forked_from=info.forked_from,
        records=info.record_count,
        extra=_extra(connection, now, key, system),
    )


def log(connection: sa.Connection, now: Moment, key: str) -> Iterator[Message]:
    """Yield the messages of a session, records left out: no other system has them. A page of them is in memory."""
    for page in messages.log_pages(connection, now, key):
        said = [message for message in reversed(page) if message.role is not MessageRole.RECORD]
        page.clear()
        while said:
            yield said.pop()  # it may be large, and only the reader holds it


def keys(connection: sa.Connection, now: Moment, chosen: Filter) -> Iterator[str]:
    """Yield the keys of sessions in their order, a page of them in memory; of sessions that cannot be read too."""
    page = lists.keys(connection, now, chosen, "", _KEYS)
    while page:
        yield from page
        page = lists.keys(connection, now, chosen, page[-1], _KEYS)


def _extra(connection: sa.Connection, now: Moment, key: str, system: str) -> dict[str, Any]:
    value = mapping(values.read(connection, now, key, prefix=system).get(system))
    return {system: value.get("extra")} if value.get("key") == key else {}


def _parts(connection: sa.Connection, now: Moment, key: str) -> Iterator[Part]:
    """Put turns and messages together again: a turn has what lies in its range, the rest belongs to none."""
    waiting = _Log(log(connection, now, key))
    for part, last_seq in _turns(connection, key):
        yield from _loose(waiting.upto(part.first_seq - 1))
        part.messages.extend(waiting.upto(last_seq))
        yield part
    yield from _loose(waiting.upto(messages.MAX_SEQ))


class _Log:
    """Messages that are taken by their seq."""

    def __init__(self, found: Iterator[Message]) -> None:
        self._found = found
        self._next = next(found, None)

    def upto(self, seq: int) -> Iterator[Message]:
        while self._next is not None and self._next.seq <= seq:
            taken = [self._next]
            self._next = None  # it may be large: the next one is read when it is gone
            yield taken.pop()
            self._next = next(self._found, None)


def _loose(found: Iterator[Message]) -> Iterator[Part]:
    return (Part([message], first_seq=message.seq) for message in found)


def _turns(connection: sa.Connection, key: str) -> Iterator[tuple[Part, int]]:
    for page in _turn_pages.read(connection, key):
        page.reverse()
        while page:
            row = dict(zip(_TURN, page.pop(), strict=True))
            yield _part(key, row), row["last_seq"]


_TURN: Final = [column.name for column in TURN.c]
_turn_pages: Final = Pages(TURN, "turn_no", [as_stored(column) for column in TURN.c])


def _part(key: str, row: Mapping[str, Any]) -> Part:
    decoded = {
        name: turn_json(key, row["turn_no"], name, row[name])
        for name in ("usage", "metadata", "extra")
        if row[name] is not None
    }
    return Part(
        messages=[],
        kind=row["kind"],
        id=row["id"],
        **decoded,
        created_at=decode_time(row["created_at"]),
        first_seq=row["first_seq"],
        replaced_upto=row["replaced_upto"],
    )
