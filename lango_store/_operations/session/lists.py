"""Lists of sessions: filter, list page by page, iterate and count sessions. Messages are not loaded."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, TypedDict, Unpack

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE, MESSAGE, NOW, SESSION, number, of_session, session_key, text, time
from lango_store._operations.rows import SESSION_COLUMNS, next_start, session_info
from lango_store._operations.session import sessions
from lango_store._rows.encoding import aware, checked_key, encode_text, end_of_prefix
from lango_store._values.model import SessionInfo
from lango_store._values.reports import Page
from lango_store.errors import InvalidCursor, quoted
from lango_store.tables import expired_at

MAX_PAGE: Final = 1_000
_MAX_CURSOR: Final = 10_000  # characters; a cursor with the longest key has 8,300
_CURSOR: Final = re.compile(r'\["\w+", "[^"\\]+", "(?:[^"\\]|\\.)+"\]')

Order = Literal["updated", "created"]
"""The order of a list: by last activity or by creation, the newest first."""


class Filters(TypedDict, total=False):
    """The keyword arguments of `Filter`: the conditions that a listed session meets."""

    agent_id: str | None
    user_id: str | None
    key_prefix: str | None
    title: str | None
    updated_since: datetime | None
    created_since: datetime | None
    created_before: datetime | None
    message_id: str | None
    top_level: bool
    expired: bool | None


class WorkFilters(TypedDict, total=False):
    """The sessions that a worker takes, or whose work is listed: those that match all of the filters."""

    agent_id: str | None
    user_id: str | None
    key_prefix: str | None


class Filter:
    """A filter of sessions. `expired` selects live sessions (False, the default), expired ones (True) or both (None).

    `level` is the number of "/" in the key; `top_level=True` means level 0.
    """

    def __init__(self, *, level: int | None = None, **which: Unpack[Filters]) -> None:
        sessions.check_fields(which, Filters)
        self._values: dict[str, Any] = {
            name: value for name, value in which.items() if name not in ("expired", "top_level") and value is not None
        }
        self._level = 0 if which.get("top_level") else level
        self._expired = which.get("expired", False)

    def named(self) -> tuple[str, ...]:
        """Return the names of the conditions that this filter sets."""
        level = () if self._level is None else ("level",)
        return (*sorted(self._values), *level, *{False: ("live",), True: ("expired",), None: ()}[self._expired])

    def values(self, dialect: Dialect, now: Moment) -> dict[str, Any]:
        """Return the values to bind for the conditions of this filter."""
        values: dict[str, Any] = {"now": dialect.time(now), "level": self._level}
        for name, value in self._values.items():
            is_time = name.endswith(("_since", "_before"))
            values[name] = dialect.time(aware(value, name)) if is_time else encode_text(value, name)
        if "key_prefix" in values:
            values["prefix_end"] = end_of_prefix(values["key_prefix"])
        if "title" in values:
            values["title"] = (
                values["title"].encode().lower().decode()
            )  # only A to Z, which both databases fold in the same way
        return values


def work_filter(which: WorkFilters) -> Filter:
    """Return the filter of a list of work; raise TypeError for any other name."""
    sessions.check_fields(which, WorkFilters)
    return Filter(**which)


def conditions_with_values(dialect: Dialect, which: WorkFilters) -> list[sa.ColumnElement[bool]]:
    """Return the conditions on sessions, for statements that are built for each call."""
    agent_id, user_id, key_prefix = which.get("agent_id"), which.get("user_id"), which.get("key_prefix")
    conditions: list[sa.ColumnElement[bool]] = []
    if user_id is not None:
        conditions.append(SESSION.c.user_id == encode_text(user_id, "user_id"))
    if agent_id is not None:
        agent = SESSION.c.agent_id if user_id is None else dialect.without_index(SESSION.c.agent_id)
        conditions.append(agent == encode_text(agent_id, "agent_id"))
    if key_prefix is not None:
        prefix = encode_text(key_prefix, "key_prefix") or ""
        conditions += [SESSION.c.key >= prefix, SESSION.c.key < end_of_prefix(prefix)]
    return conditions


_ORDERS: Final[dict[Order, sa.Column[datetime]]] = {"updated": SESSION.c.updated_at, "created": SESSION.c.created_at}

_CONDITIONS: Final[dict[str, sa.ColumnElement[bool]]] = {
    "agent_id": SESSION.c.agent_id == text("agent_id"),
    "user_id": SESSION.c.user_id == text("user_id"),
    "key_prefix": sa.and_(SESSION.c.key >= session_key("key_prefix"), SESSION.c.key < session_key("prefix_end")),
    "updated_since": SESSION.c.updated_at >= time("updated_since"),
    "created_since": SESSION.c.created_at >= time("created_since"),
    "created_before": SESSION.c.created_at < time("created_before"),
    "message_id": sa.exists().where(of_session(MESSAGE, SESSION.c.key), MESSAGE.c.id == text("message_id")),
    "level": sa.func.length(SESSION.c.key) - sa.func.length(sa.func.replace(SESSION.c.key, "/", "")) == number("level"),
    "live": LIVE,
    "expired": expired_at(NOW),
    "after": SESSION.c.key > session_key("after"),
    **{
        f"after cursor by {order}": sa.tuple_(column, SESSION.c.key)
        < sa.tuple_(time("cursor_time"), session_key("cursor_key"))
        for order, column in _ORDERS.items()
    },
}
LIMIT: Final = number("limit")


def conditions(dialect: Dialect, names: Sequence[str]) -> list[sa.ColumnElement[bool]]:
    """Return the conditions with these names; `Filter.values` has the values to bind."""
    by_name = _CONDITIONS | {"title": dialect.contains_text(SESSION.c.title, text("title"))}
    if "user_id" in names:  # use only the index on `user_id`: a user has fewer sessions than an agent
        by_name["agent_id"] = dialect.without_index(SESSION.c.agent_id) == text("agent_id")
    return [by_name[name] for name in names]


def _where(query: sa.Select[Any], dialect: Dialect, names: Sequence[str]) -> sa.Select[Any]:
    return query.where(*conditions(dialect, names))


@cache
def _page(order: Order, *names: str) -> Statement:
    if order not in _ORDERS:
        raise ValueError(f"order={quoted(order)}: give one of {', '.join(_ORDERS)}")
    newest_first = (_ORDERS[order].desc(), SESSION.c.key.desc())
    query = sa.select(*SESSION_COLUMNS).order_by(*newest_first).limit(LIMIT)
    return Statement(lambda dialect: _where(query, dialect, names))


@cache
def _walk(*names: str) -> Statement:
    query = sa.select(*SESSION_COLUMNS).order_by(SESSION.c.key).limit(LIMIT)
    return Statement(lambda dialect: _where(query, dialect, names))


@cache
def _keys(*names: str) -> Statement:
    return Statement(lambda dialect: _where(sa.select(SESSION.c.key).order_by(SESSION.c.key), dialect, names))


@cache
def _count(*names: str) -> Statement:
    query = sa.select(sa.func.count()).select_from(SESSION)
    return Statement(lambda dialect: _where(query, dialect, names))


_SessionPage: Final = Page[SessionInfo]


def check_limit(limit: int) -> None:
    """Raise ValueError for a page size that is out of range."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit={quoted(limit)} is not between 1 and {MAX_PAGE:,}: to read more, read several pages")


def page(
    connection: AnyConnection, now: Moment, chosen: Filter, limit: int, cursor: str | None, order: Order = "updated"
) -> Page[SessionInfo]:
    """Return a page of sessions after a cursor, most recently updated or created first."""
    check_limit(limit)
    dialect = dialect_of(connection)
    values = chosen.values(dialect, now) | {"limit": limit + 1}
    conditions = chosen.named()
    if cursor is not None:
        cursor_order, moment, values["cursor_key"] = read_cursor(cursor, "list_sessions")
        if cursor_order != order:
            raise InvalidCursor(
                f"the cursor is of a list in the order {quoted(cursor_order)}, not {order!r}: give the same order again"
            )
        values["cursor_time"] = dialect.time(moment)
        conditions += (f"after cursor by {order}",)
    items = _infos(_page(order, *conditions).run(connection, values))
    if len(items) <= limit:
        return _SessionPage(items=items)
    last = items[limit - 1]
    moment = last.updated_at if order == "updated" else last.created_at
    return _SessionPage(items=items[:limit], next=cursor_after(order, moment, last.key))


def walk(connection: AnyConnection, now: Moment, chosen: Filter, after: str, limit: int) -> list[SessionInfo]:
    """Read the next sessions after a key, ordered by key.

    Updates do not change this order, so no session is skipped.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"page_size={quoted(limit)} is not between 1 and {MAX_PAGE:,}: give another")
    values = chosen.values(dialect_of(connection), now) | {"after": after, "limit": limit}
    return _infos(_walk(*chosen.named(), "after").run(connection, values))


def pages(read_page: Callable[[str], list[SessionInfo]], size: int) -> Iterator[list[SessionInfo]]:
    """Yield pages of sessions. `read_page` reads the page after a key; no connection is held between pages."""
    after = ""
    while True:
        page = read_page(after)
        yield page
        if len(page) < size:
            return
        after = next_start(after, page[-1].key)


def keys(connection: AnyConnection, now: Moment, chosen: Filter) -> list[str]:
    """Read the keys of sessions in order, including sessions whose other columns are damaged."""
    rows = _keys(*chosen.named()).run(connection, chosen.values(dialect_of(connection), now))
    return [key for (key,) in rows]


def _infos(rows: Sequence[Sequence[Any]]) -> list[SessionInfo]:
    return [session_info(row) for row in rows]


def count(connection: AnyConnection, now: Moment, chosen: Filter) -> int:
    """Count the sessions that a filter selects."""
    rows = _count(*chosen.named()).run(connection, chosen.values(dialect_of(connection), now))
    return int(rows[0][0])


def cursor_after(name: str, moment: datetime, key: str) -> str:
    """Return the cursor for the page after an item; `name` is the list's order or, for suspensions, the item's id."""
    text = json.dumps([name, moment.isoformat(), key])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, method: str) -> tuple[str, datetime, str]:
    """Return the name, the time and the key of a cursor; raise `InvalidCursor` if the text is not a cursor."""
    try:
        if len(cursor) > _MAX_CURSOR:
            raise ValueError("is longer than any cursor")
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        if not _CURSOR.fullmatch(text):  # check before decoding: deeply nested lists would exhaust the stack
            raise ValueError("is not a list of three texts")
        name, moment, key = json.loads(text)
        return name, aware(datetime.fromisoformat(moment), "cursor"), checked_key(key)
    except (ValueError, TypeError):
        raise InvalidCursor(f"{quoted(cursor)} is not a cursor of {method}: pass Page.next unchanged") from None
