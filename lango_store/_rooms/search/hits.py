"""Read one page of the hits of a search."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from time import monotonic
from typing import Any, Final, NamedTuple, Unpack

import sqlalchemy as sa
from pydantic import ValidationError

from lango_store._dialect import dialect_of
from lango_store._operations.binds import IS_RECORD, MESSAGE, SESSION, of_session
from lango_store._operations.rows import seq_or_zero
from lango_store._operations.session.lists import Filter, WorkFilters, work_filter
from lango_store._operations.session_tables import ASIDE, HAS_ASIDE
from lango_store._rooms.search.index import MessageKey, read_messages
from lango_store._rooms.search.indexes import index_of
from lango_store._rooms.search.query import Places, SearchQuery, finder, matcher, snippet
from lango_store._rooms.search.values import SearchHit, SearchPage
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware, decode_time, encode_role, encode_text
from lango_store._values.model import MessageRole
from lango_store.errors import DamagedMessage

_RANKING: Final = 0.2  # seconds to find and rank all matches
_COMPARING: Final = 0.06  # seconds to compare the newest messages instead
_NEWEST: Final = 5_000
_PAGE: Final = 200
_FEW: Final = 20
# The bucket, which the times are in the order of, has an index.
_LAST_UPDATED: Final = SESSION.c.updated_bucket.desc(), SESSION.c.updated_at.desc(), SESSION.c.key.desc()


class SearchFilters(WorkFilters, total=False):
    """The keyword arguments of `filters`: the filters of a search."""

    role: MessageRole | str | None
    model: str | None
    since: datetime | None
    until: datetime | None


def filters(
    message: sa.FromClause,
    *,
    role: MessageRole | str | None = None,
    model: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **which: Unpack[WorkFilters],
) -> tuple[Filter, list[sa.ColumnElement[bool]]]:
    """Return the filter of sessions, and the conditions on the columns of `message`; aliases of a role match too."""
    messages: list[sa.ColumnElement[bool]] = []
    if role is not None:
        wanted = MessageRole(encode_role(role)).canonical
        messages.append(message.c.role.in_([each for each in MessageRole if each.canonical is wanted]))
    if model is not None:
        messages.append(message.c.model == encode_text(model, "model"))
    if since is not None:
        messages.append(message.c.created_at >= aware(since, "since"))
    if until is not None:
        messages.append(message.c.created_at < aware(until, "until"))
    return work_filter(which), messages


class Search(NamedTuple):
    """A query, its filters, and the sessions to search: one session, or all that are live at `now` and `narrowed`."""

    query: SearchQuery
    which: SearchFilters
    now: datetime
    key: str | None
    narrowed: Callable[[Filter], Filter]


def page(connection: sa.Connection, search: Search, limit: int, offset: int) -> SearchPage:
    """Return a page of matching messages, best match first.

    If ranking takes too long, only the newest messages are compared with the query, and
    the matches start with the most recently updated session.
    """
    if not search.query.wanted:
        return SearchPage(items=[])
    index = index_of(connection)
    rows, newest = None, None
    with suppress(TimeoutError), index.time_limit(connection, _RANKING):
        rows = _ranked(connection, search, limit + 1, offset)
    if rows is None and _is_small(connection):  # the machine is busy, or its caches are cold
        rows = _ranked(connection, search, limit + 1, offset)
    if rows is None:
        matches, newest = _newest(connection, search, offset + limit + 1)
        rows = _rows(connection, matches[offset:])
    shown = rows[:limit]
    texts = texts_of(connection, [(row.key, row.seq) for row in shown])
    find = finder(search.query)
    return SearchPage(
        items=[_hit(row._mapping, texts.get((row.key, row.seq), ()), find) for row in shown],
        next=str(offset + limit) if len(rows) > limit else None,
        waiting=index.queued(connection),
        newest=newest,
    )


def _is_small(connection: sa.Connection) -> bool:
    """Return True if the store has so few messages that ranking all of them is always fast."""
    with suppress(TimeoutError), index_of(connection).time_limit(connection, _COMPARING):
        one_more = sa.select(sa.literal(1)).select_from(MESSAGE).limit(1).offset(_NEWEST)
        return connection.execute(one_more).first() is None
    return False


def _ranked(connection: sa.Connection, search: Search, limit: int, offset: int) -> Sequence[sa.Row[Any]]:
    """Rank all matches in the index, and return a page of them, best match first."""
    source, message, rank = index_of(connection).matches(search.query)
    sessions, of_messages = filters(message, **search.which)
    query = _select_hits(source, message, rank).where(*of_messages)
    query = search.narrowed(sessions).apply(query, dialect_of(connection))
    if search.key is not None:
        query = query.where(of_session(message, search.key))
    order: list[Any] = [sa.desc("rank"), message.c.created_at.desc(), message.c.session_key, message.c.seq.desc()]
    return connection.execute(query.order_by(*order).limit(limit).offset(offset), {"now": search.now}).all()


def _newest(connection: sa.Connection, search: Search, number: int) -> tuple[list[MessageKey], int | None]:
    """Compare the newest messages with the query, starting with the most recently updated session.

    The index is not used, so the time does not depend on the number of matches. The search ends when it has enough
    matches, or reaches its limit of messages or time. Also returns the number of compared messages, or None if all
    messages were compared.
    """
    sessions, of_messages = filters(MESSAGE, **search.which)
    # An outer join with all conditions on messages. With an inner join, SQLite would read the messages first, and sort
    # all of them. For a session without matching messages, the join returns one row of NULLs.
    own = sa.and_(of_session(MESSAGE, SESSION.c.key), ~IS_RECORD, *of_messages)
    chosen = sa.select(MESSAGE.c.session_key, MESSAGE.c.seq).join_from(SESSION, MESSAGE, own, isouter=True)
    chosen = search.narrowed(sessions).apply(chosen, dialect_of(connection))
    if search.key is not None:
        chosen = chosen.where(of_session(SESSION, search.key))
    chosen = chosen.order_by(*_LAST_UPDATED, MESSAGE.c.seq.desc()).limit(_NEWEST).execution_options(yield_per=_PAGE)
    is_match, deadline = matcher(search.query), monotonic() + _COMPARING
    matches: list[MessageKey] = []
    compared = 0
    with (
        suppress(TimeoutError),
        index_of(connection).time_limit(connection, _COMPARING),
        closing(read_messages(connection, chosen, now=search.now)) as messages,
    ):
        for number_read, ((owner, seq), _, texts) in enumerate(messages, 1):
            if seq is not None:
                compared += 1
                if is_match(texts):
                    matches.append((owner, seq))
            if len(matches) == number or number_read == _NEWEST or monotonic() > deadline:
                return matches, compared
        return matches, None
    return matches, compared


def _rows(connection: sa.Connection, keys: Sequence[MessageKey]) -> list[sa.Row[Any]]:
    """Read the hits for these message keys, in the order of the keys; their rank is 0."""
    query = _select_hits(MESSAGE, MESSAGE, sa.literal(0.0)).where(index_of(connection).one_of(keys))
    rows = {(row.key, row.seq): row for row in connection.execute(query)}
    return [rows[key] for key in keys if key in rows]


def _select_hits(source: sa.FromClause, message: sa.FromClause, rank: sa.ColumnElement[float]) -> sa.Select[Any]:
    joined = source.join(SESSION, of_session(SESSION, message.c.session_key))
    return sa.select(*_columns(message, rank)).select_from(joined)


def _columns(message: sa.FromClause, rank: sa.ColumnElement[float]) -> list[sa.ColumnElement[Any]]:
    columns: list[sa.ColumnElement[Any]] = [message.c.session_key.label("key"), message.c.seq, message.c.author]
    columns += [as_stored(message.c[name]).label(name) for name in ("role", "created_at")]
    return [*columns, SESSION.c.title, SESSION.c.agent_id, SESSION.c.user_id, rank.label("rank")]


def texts_of(connection: sa.Connection, keys: list[MessageKey]) -> dict[Any, tuple[str, str]]:
    condition = index_of(connection).one_of(keys)
    messages = read_messages(connection, sa.select(MESSAGE.c.session_key, MESSAGE.c.seq).where(condition))
    return {key: texts for key, _, texts in messages}


def _hit(row: Mapping[Any, Any], parts: Sequence[str], find: Callable[[str], Places]) -> SearchHit:
    text = next((part for part in parts if find(part)), next(filter(None, parts), ""))
    shown, places = snippet(text, find(text))
    try:
        created_at = decode_time(row["created_at"])
        return SearchHit(**{**row, "created_at": created_at}, snippet=shown, places=places)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise DamagedMessage(str(row["key"]), seq_or_zero(row["seq"]), str(fault["loc"][0]), fault["msg"]) from None
    except ValueError as error:
        raise DamagedMessage(str(row["key"]), seq_or_zero(row["seq"]), "created_at", str(error)) from None


def page_of_alternatives(connection: sa.Connection, search: Search, limit: int, offset: int) -> SearchPage:
    """Compare the messages that are set aside with the query, in one session or first in the last updated one."""
    if not search.query.wanted:
        return SearchPage(items=[])
    table = ASIDE[MESSAGE]
    sessions, of_messages = filters(table, **search.which)
    # An outer join, as in `_newest`.
    own = sa.and_(of_session(table, SESSION.c.key), table.c.role != MessageRole.RECORD, *of_messages)
    columns = _columns(table, sa.literal(0.0))
    hits = sa.select(*columns, table.c.alternative).join_from(SESSION, table, own, isouter=True)
    hits = hits.where(sa.or_(*(column.is_not(None) for column in HAS_ASIDE)))
    hits = search.narrowed(sessions).apply(hits, dialect_of(connection))
    if search.key is not None:
        hits = hits.where(of_session(SESSION, search.key))
    hits = hits.order_by(*_LAST_UPDATED, table.c.seq.desc())
    hits = hits.limit(_NEWEST).execution_options(yield_per=_FEW)  # a session with alternatives may be rare
    names = hits.selected_columns.keys()
    is_match, find, deadline = matcher(search.query), finder(search.query), monotonic() + _RANKING
    found: list[SearchHit] = []
    compared = 0
    with (
        suppress(TimeoutError),
        index_of(connection).time_limit(connection, _RANKING),
        closing(read_messages(connection, hits, table, now=search.now)) as messages,
    ):
        for row, _, texts in messages:
            if row[0] is not None:
                compared += 1
                if is_match(texts):
                    found.append(_hit(dict(zip(names, row, strict=True)), texts, find))
            if len(found) > offset + limit or monotonic() > deadline:
                break
    following = str(offset + limit) if len(found) > offset + limit else None
    return SearchPage(items=found[offset : offset + limit], next=following, newest=compared)
