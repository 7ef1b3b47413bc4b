"""Full-text search over an open connection: one page of hits, and the state of the index."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict

import sqlalchemy as sa
from pydantic import ValidationError

from lango_store._dialect import dialect_of
from lango_store._dialect.search import REBUILD, TRIGRAM, IndexState, Place, read_messages
from lango_store._operations.binds import LIVE, MESSAGE, SESSION, of_session
from lango_store._operations.lists import MAX_PAGE
from lango_store._operations.rows import seq_or_zero
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware, decode_time, encode_text, end_of_prefix
from lango_store._values.model import MessageRole
from lango_store._values.reports import SearchHit, SearchPage, SearchStatus
from lango_store._values.search_query import Places, Terms, distinct_words, finder, snippet, terms
from lango_store.errors import DamagedMessage, InvalidCursor, SearchUnavailable

_SAMPLE: Final = 50
_SHORTEST: Final = 3  # of trigrams


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
        """Yield the conditions on a message, whose columns these are, and its session."""
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


@dataclass(frozen=True)
class Search:
    """A checked search: the query, its filters, and which page of the hits."""

    query: str
    which: Which
    terms: Terms
    limit: int
    offset: int

    @classmethod
    def checked(cls, query: str, which: Which, limit: int, cursor: str | None) -> Search:
        """Check what a caller asks for; raise ValueError, `InvalidMessage` or `InvalidCursor`."""
        if not 1 <= limit <= MAX_PAGE:
            raise ValueError(f"limit={limit} is not between 1 and {MAX_PAGE:,}: give another, and read several pages")
        offset = 0 if cursor is None else _read_cursor(cursor, query, which)
        list(which.conditions(MESSAGE))  # to refuse a bad filter before a connection is taken
        return cls(query, which, terms(query), limit, offset)


def usable(connection: sa.Connection) -> IndexState:
    """Return the state of an index that can be searched, or raise `SearchUnavailable`."""
    state = dialect_of(connection).search_index.state(connection)
    if state is None:
        raise SearchUnavailable("the store has no search index: run `lango-store search enable`")
    if state.fault is not None:
        raise SearchUnavailable(f"the search index cannot be used: {state.fault}")
    return state


def page(connection: sa.Connection, now: datetime, state: IndexState, search: Search) -> SearchPage:
    """Return a page of the matching messages of live sessions, the best first."""
    if not search.terms.wanted:
        return SearchPage(items=[])
    index = dialect_of(connection).search_index
    matches = index.matches(connection, state, search.terms)
    message = matches.message
    columns: list[sa.ColumnElement[Any]] = [message.c.session_key, message.c.seq, as_stored(message.c.role)]
    columns += [message.c.author, as_stored(message.c.created_at), SESSION.c.title, matches.rank.label("rank")]
    source = matches.source.join(SESSION, of_session(SESSION, message.c.session_key))
    query = sa.select(*columns).select_from(source).where(LIVE, *search.which.conditions(message))
    order: list[Any] = [sa.desc("rank"), message.c.created_at.desc(), message.c.session_key, message.c.seq.desc()]
    # Every match has its rank before the first is known, and ranks change with each write: pages are counted.
    limited = query.order_by(*order).limit(search.limit + 1).offset(search.offset)
    rows = connection.execute(limited, {"now": now}).all()
    shown = rows[: search.limit]
    texts = _texts(connection, [(row[0], row[1]) for row in shown])
    parts = [part for each in texts.values() for part in each]
    inflected = index.inflected(connection, state, search.terms, parts)
    find = finder(search.terms, inside_words=state.configuration == TRIGRAM, inflected=inflected)
    items = [_hit(row, texts.get((row[0], row[1]), ()), find) for row in shown]
    return SearchPage(items=items, next=_cursor(search) if len(rows) > search.limit else None, waiting=matches.unread)


def _texts(connection: sa.Connection, places: list[Place]) -> dict[Any, tuple[str, ...]]:
    condition = dialect_of(connection).search_index.at(places)
    messages = read_messages(connection, condition, MESSAGE.c.session_key, MESSAGE.c.seq)
    return {place: texts for place, _, texts in messages}


def _hit(row: Any, parts: Sequence[str], find: Callable[[str], Places]) -> SearchHit:
    key, seq, role, author, created_at, title, rank = row
    text = next((part for part in parts if find(part)), next(filter(None, parts), ""))
    shown, places = snippet(text, find(text))
    try:
        return SearchHit(
            key=key,
            seq=seq,
            role=role,
            author=author,
            created_at=decode_time(created_at),
            title=title,
            snippet=shown,
            places=places,
            rank=rank,
        )
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise DamagedMessage(str(key), seq_or_zero(seq), str(fault["loc"][0]), fault["msg"]) from None
    except ValueError as error:
        raise DamagedMessage(str(key), seq_or_zero(seq), "created_at", str(error)) from None


def _cursor(search: Search) -> str:
    text = json.dumps([search.offset + search.limit, _digest(search.query, search.which)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str, query: str, which: Which) -> int:
    try:
        offset, digest = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if type(offset) is not int or not 0 <= offset < 2**63:
            raise ValueError(offset)
    except (ValueError, TypeError) as error:
        raise InvalidCursor(f"{cursor!r} is not a cursor of search: give back SearchPage.next as it was") from error
    if digest != _digest(query, which):
        raise InvalidCursor("the cursor is of a search for other words, or with other filters: give the same again")
    return offset


def _digest(query: str, which: Which) -> str:
    return hashlib.sha256(repr((query, which)).encode("utf-8", "backslashreplace")).hexdigest()[:16]


# The index itself


def status(connection: sa.Connection) -> SearchStatus:
    """Return the state of the index."""
    index = dialect_of(connection).search_index
    state = index.state(connection)
    if state is None:
        return SearchStatus(state="disabled")
    fault = state.fault
    try:
        with connection.begin_nested():
            if fault is None:
                return SearchStatus(
                    state="ready",
                    configuration=state.configuration,
                    indexed=index.indexed(connection),
                    waiting=index.queued(connection),
                    bytes=index.bytes_on_disk(connection),
                )
    except sa.exc.DBAPIError as error:
        fault = _unreadable(connection, error)
    return SearchStatus(state="unusable", configuration=state.configuration, reason=fault)


def faults(connection: sa.Connection) -> list[str]:
    """Return what is wrong with the index: that it is unusable, or differs from the messages that are not queued."""
    index = dialect_of(connection).search_index
    state = index.state(connection)
    if state is None or state.fault is not None:
        return [] if state is None or state.fault is None else [state.fault]
    try:
        with connection.begin_nested():
            missing, extra = index.differences(connection)
            missed = _missed(connection, state)
    except sa.exc.DBAPIError as error:
        return [_unreadable(connection, error)]
    counts = {"are not indexed": missing, "are indexed and not there": extra, "were tried and not found": missed}
    return [f"{number:,} messages {what}: {REBUILD}" for what, number in counts.items() if number]


def _unreadable(connection: sa.Connection, error: sa.exc.DBAPIError) -> str:
    """Return what is wrong with an index that caused an error; raise any other error."""
    if error.orig is None or not dialect_of(connection).search_index.is_damage(error.orig):
        raise error
    return f"it cannot be read ({error.orig}): {REBUILD}"


def _missed(connection: sa.Connection, state: IndexState) -> int:
    """Count the messages of a sample that the index does not find by their longest word."""
    index = dialect_of(connection).search_index
    not_queued = sa.text(f"({index.place_of_message}) NOT IN (SELECT {index.place} FROM lango_search_queue)")
    query = sa.select(MESSAGE.c.session_key, MESSAGE.c.seq).where(MESSAGE.c.role != MessageRole.RECORD, not_queued)
    sample = connection.execute(query.order_by(sa.func.random()).limit(_SAMPLE))
    missed = 0
    for place, parts in _texts(connection, [(key, seq) for key, seq in sample]).items():
        longest = max(distinct_words(parts), key=len, default="")
        if len(longest) >= _SHORTEST:
            matches = index.matches(connection, state, terms(longest))
            its = sa.tuple_(matches.message.c.session_key, matches.message.c.seq) == place
            missed += (
                connection.execute(sa.select(sa.literal(1)).select_from(matches.source).where(its)).first() is None
            )
    return missed
