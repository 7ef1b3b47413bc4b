"""Messages found by their words, and the index that finds them, over an open connection."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict

import sqlalchemy as sa
from pydantic import ValidationError

from lango_store.columns import as_stored
from lango_store.dialect import dialect_of
from lango_store.dialect.search import IndexState
from lango_store.encoding import decode_time, encode_text
from lango_store.errors import DamagedMessage, InvalidCursor, SearchUnavailable
from lango_store.model import MessageRole
from lango_store.operations.binds import LIVE, MESSAGE, SESSION, of_session
from lango_store.operations.lists import MAX_PAGE, aware, end_of_prefix
from lango_store.operations.rows import seq_or_zero
from lango_store.reports import SearchHit, SearchPage, SearchStatus
from lango_store.words import Terms, snippet, terms

_PLACE: Final = 7
"""Where in a row of what was found its place in the index begins."""

REBUILD: Final = "run `lango-store search rebuild`"


class SearchFilters(TypedDict, total=False):
    """The conditions by which messages are searched, as a caller names them; see `Which`."""

    user_id: str | None
    agent_id: str | None
    key_prefix: str | None
    role: MessageRole | str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True)
class Which:
    """Which messages are searched; of a `role` with those that count as it."""

    user_id: str | None = None
    agent_id: str | None = None
    key_prefix: str | None = None
    role: MessageRole | str | None = None
    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None

    def conditions(self, message: sa.FromClause) -> Iterator[sa.ColumnElement[bool]]:
        """Yield what has to hold of a message, whose columns these are, and its session."""
        if self.key is not None:
            yield of_session(message, self.key)
        if self.user_id is not None:
            yield SESSION.c.user_id == encode_text(self.user_id, "user_id")
        if self.agent_id is not None:
            yield SESSION.c.agent_id == encode_text(self.agent_id, "agent_id")
        if self.key_prefix:
            prefix = encode_text(self.key_prefix, "key_prefix") or ""
            yield sa.and_(SESSION.c.key >= prefix, SESSION.c.key < end_of_prefix(prefix))
        if self.role is not None:
            wanted = MessageRole(self.role).canonical
            yield message.c.role.in_([each for each in MessageRole if each.canonical is wanted])
        if self.since is not None:
            yield message.c.created_at >= aware(self.since)
        if self.until is not None:
            yield message.c.created_at < aware(self.until)


def usable(connection: sa.Connection) -> IndexState:
    """Return how the index is that can be searched; `SearchUnavailable` if there is none."""
    found = dialect_of(connection).search_index.state(connection)
    if found is None:
        raise SearchUnavailable("the store has no search index: run `lango-store search enable`")
    if found.state == "filling":
        raise SearchUnavailable(
            "the search index is not filled yet: wait for it, or run `lango-store search enable`, which goes on with it"
        )
    if found.state != "ready":
        raise SearchUnavailable(f"the search index is detached, {found.reason}: {REBUILD}")
    return found


@dataclass(frozen=True)
class Search:
    """What is looked for, checked: the words, where, and which page of what is found."""

    typed: str
    which: Which
    terms: Terms
    limit: int
    offset: int

    @classmethod
    def asked(cls, typed: str, which: Which, limit: int, cursor: str | None) -> Search:
        """Check what a caller asks for; ValueError, `InvalidMessage` or `InvalidCursor` says what is wrong."""
        if not 1 <= limit <= MAX_PAGE:
            raise ValueError(f"limit={limit} is not between 1 and {MAX_PAGE:,}: give another, and read several pages")
        offset = 0 if cursor is None else _read_cursor(cursor, typed, which)
        list(which.conditions(MESSAGE))  # what is wrong in it is told before a connection is asked for
        return cls(typed, which, terms(typed), limit, offset)


def page(connection: sa.Connection, now: datetime, found: IndexState, asked: Search) -> SearchPage:
    """Find messages of live sessions, the best first."""
    if not asked.terms.wanted:
        return SearchPage(items=[])
    rows = _rows(connection, now, found, asked)
    shown = rows[: asked.limit]
    start, stop = (f"{secrets.token_hex(8)}{end}" for end in "se")
    places = [tuple(row[_PLACE:]) for row in shown]
    index = dialect_of(connection).search_index
    parts = index.marked(connection, found, asked.terms, places, (start, stop)) if places else {}
    items = [_hit(row, parts.get(tuple(row[_PLACE:]), []), start, stop) for row in shown]
    behind = asked.offset + asked.limit
    return SearchPage(items=items, next=_cursor(behind, asked) if len(rows) > asked.limit else None)


def _rows(connection: sa.Connection, now: datetime, found: IndexState, asked: Search) -> list[Any]:
    matching = dialect_of(connection).search_index.matching(found, asked.terms)
    message = matching.message
    columns: list[sa.ColumnElement[Any]] = [message.c.session_key, message.c.seq, as_stored(message.c.role)]
    columns += [message.c.author, as_stored(message.c.created_at), SESSION.c.title]
    columns += [matching.rank.label("rank"), *matching.place]
    chosen = matching.source.join(SESSION, of_session(SESSION, message.c.session_key))
    conditions = asked.which.conditions(message)
    query = sa.select(*columns).select_from(chosen).where(matching.condition, LIVE, *conditions)
    order: tuple[sa.ColumnElement[Any], ...] = (
        sa.desc("rank"),
        message.c.created_at.desc(),
        message.c.session_key,
        message.c.seq.desc(),
    )
    # Every match has its rank before the first is known, and ranks move with each write: pages are counted.
    limited = query.order_by(*order).limit(asked.limit + 1).offset(asked.offset)
    return dialect_of(connection).search_index.run(connection, limited, {"now": now})


def _hit(row: Any, parts: list[tuple[str, str]], start: str, stop: str) -> SearchHit:
    key, seq, role, author, created_at, title, rank, *_ = row
    text, marked = next(((text, marked) for text, marked in parts if start in marked), parts[0] if parts else ("", ""))
    cut = snippet(text, marked, start, stop)
    try:
        return SearchHit(
            key=key,
            seq=seq,
            role=role,
            author=author,
            created_at=decode_time(created_at),
            title=title,
            snippet=cut.text,
            places=cut.places,
            rank=rank,
        )
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise DamagedMessage(str(key), seq_or_zero(seq), str(fault["loc"][0]), fault["msg"]) from None
    except ValueError as error:
        raise DamagedMessage(str(key), seq_or_zero(seq), "created_at", str(error)) from None


def _cursor(offset: int, asked: Search) -> str:
    text = json.dumps([offset, _digest(asked.typed, asked.which)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str, typed: str, which: Which) -> int:
    try:
        offset, digest = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError) as error:
        raise InvalidCursor(f"{cursor!r} is not a cursor of search: give back SearchPage.next as it was") from error
    if type(offset) is not int or not 0 <= offset < 2**63:
        raise InvalidCursor(f"{cursor!r} is not a cursor of search: give back SearchPage.next as it was")
    if digest != _digest(typed, which):
        raise InvalidCursor("the cursor is of a search for other words, or with other filters: give the same again")
    return offset


def _digest(typed: str, which: Which) -> str:
    return hashlib.sha256(repr((typed, which)).encode("utf-8", "backslashreplace")).hexdigest()[:16]


# The index itself


def status(connection: sa.Connection) -> SearchStatus:
    """Return how the index is."""
    index = dialect_of(connection).search_index
    found = index.state(connection)
    if found is None:
        return SearchStatus(state="disabled")
    said = SearchStatus(state=found.state, configuration=found.configuration, reason=found.reason)
    if found.state == "detached":  # and may be damaged
        return said
    said.indexed, said.waiting = index.indexed(connection), index.waiting(connection)
    said.bytes = index.bytes_on_disk(connection)
    return said
