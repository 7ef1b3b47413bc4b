"""Lists of sessions: filter, list page by page, iterate and count sessions. Messages are not loaded."""

import base64
import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE, MESSAGE, NOW, SESSION, number, of_session, session_key, text, time
from lango_store._operations.rows import SESSION_COLUMNS, next_start, session_info
from lango_store._operations.session import sessions
from lango_store._rows.buckets import Bucket
from lango_store._rows.encoding import aware, checked_key, encode_text, end_of_prefix
from lango_store._values.model import SessionInfo
from lango_store._values.reports import Page
from lango_store.errors import InvalidCursor, quoted
from lango_store.tables import expired_at

T = TypeVar("T")
Query = TypeVar("Query", bound=sa.Select[Any])

MAX_PAGE: Final = 1_000
_MAX_CURSOR: Final = 10_000  # characters; a cursor with the longest key has 8,300
_CURSOR: Final = re.compile(r'\["\w+", "[^"\\]+", "(?:[^"\\]|\\.)+"\]')

Order = Literal["updated", "created"]
"""The order of a list: by last activity or by creation, the newest first."""


class WorkFilters(TypedDict, total=False):
    """The sessions that a worker takes, or whose work is listed: those that match all of the filters."""

    agent_id: str | None
    user_id: str | None
    key_prefix: str | None


class Filters(WorkFilters, total=False):
    """The keyword arguments of `Filter`: the conditions that a listed session meets."""

    title: str | None
    updated_since: datetime | None
    updated_before: datetime | None
    created_since: datetime | None
    created_before: datetime | None
    message_id: str | None
    top_level: bool
    held: bool
    expired: bool | None


class Filter:
    """A filter of sessions. `expired` selects live sessions (False, the default), expired ones (True) or both (None).

    `level` is the number of "/" in the key; `top_level=True` means level 0. `names` are those of the conditions.
    """

    of_owner: tuple[sa.ColumnElement[bool], ...] = ()
    """The condition of `of_user`, for the descendants of selected sessions."""

    def __init__(self, *, level: int | None = None, **which: Unpack[Filters]) -> None:
        sessions.check_fields(which, Filters)
        fields: dict[str, Any] = {**which}
        values: dict[str, Any] = {
            name: aware(value, name) if name.endswith(("_since", "_before")) else encode_text(value, name)
            for name, value in fields.items()
            if name not in ("expired", "top_level", "held") and value is not None
        }
        if (level := 0 if which.get("top_level") else level) is not None:
            values["level"] = level
        state = {False: ("live",), True: ("expired",), None: ()}[which.get("expired", False)]
        self.names = (*sorted(values), *(("held",) if which.get("held") else ()), *state)
        if "key_prefix" in values:
            values["prefix_end"] = end_of_prefix(values["key_prefix"])
        if "title" in values:  # fold only A to Z, as both databases do
            values["title"] = values["title"].encode().lower().decode()
        self._values = values

    def values(self, dialect: Dialect, now: Moment) -> dict[str, Any]:
        """Return the values to bind for the conditions of this filter."""
        values = self._values | {"now": dialect.time(now)}
        for name, value in self._values.items():
            if isinstance(value, datetime):
                values[name] = dialect.time(value)
        return values

    def of_user(self, user_id: str) -> "Filter":
        """Return a filter for the sessions of this filter that are a user's; none are if it has another user."""
        chosen = copy.copy(self)
        chosen._values = self._values | {"user_id": user_id}
        chosen.of_owner = (SESSION.c.user_id == user_id,)
        is_other = self._values.get("user_id", user_id) != user_id
        added = ("user_id",) * ("user_id" not in self.names) + ("nothing",) * is_other
        chosen.names = (*self.names, *added)
        return chosen

    def apply(self, query: Query, dialect: Dialect) -> Query:
        """Add the conditions with their values to a query that is built for each call; the caller binds `now`."""
        return query.where(*conditions(dialect, self.names)).params(self._values)


def work_filter(which: WorkFilters) -> Filter:
    """Return the filter of a list of work; raise TypeError for any other name."""
    sessions.check_fields(which, WorkFilters)
    return Filter(**which)


_ORDERS: Final[dict[Order, sa.Column[datetime]]] = {"updated": SESSION.c.updated_at, "created": SESSION.c.created_at}
_BUCKETS: Final[dict[Order, list[sa.Column[Any]]]] = {"updated": [SESSION.c.updated_bucket]}
"""The columns that do not change the order of the times, but have an index."""


def _after_cursor(order: Order) -> sa.ColumnElement[bool]:
    moment = time("cursor_time")
    after = sa.tuple_(_ORDERS[order], SESSION.c.key) < sa.tuple_(moment, session_key("cursor_key"))
    return sa.and_(*(bucket <= moment for bucket in _BUCKETS.get(order, ())), after)


_CONDITIONS: Final[dict[str, sa.ColumnElement[bool]]] = {
    "updated_since": (SESSION.c.updated_bucket >= Bucket(time("updated_since")))
    & (SESSION.c.updated_at >= time("updated_since")),
    "updated_before": (SESSION.c.updated_bucket <= time("updated_before"))
    & (SESSION.c.updated_at < time("updated_before")),
    "created_since": SESSION.c.created_at >= time("created_since"),
    "created_before": SESSION.c.created_at < time("created_before"),
    "message_id": sa.exists().where(of_session(MESSAGE, SESSION.c.key), MESSAGE.c.id == text("message_id")),
    "level": sa.func.length(SESSION.c.key) - sa.func.length(sa.func.replace(SESSION.c.key, "/", "")) == number("level"),
    "held": SESSION.c.hold.is_not(None),
    "live": LIVE,
    "expired": expired_at(NOW),
    "nothing": sa.false(),
    "after": SESSION.c.key > session_key("after"),
    **{f"after cursor by {order}": _after_cursor(order) for order in _ORDERS},
}
LIMIT: Final = number("limit")


def conditions(dialect: Dialect, names: Sequence[str], *, indexed: bool = True) -> list[sa.ColumnElement[bool]]:
    """Return the conditions with these names; `Filter.values` has the values to bind.

    Pass `indexed=False` if another condition of the query has a better index than those of agents, users and keys.
    """

    def column(name: str, *, indexed: bool = indexed) -> sa.ColumnElement[Any]:
        return SESSION.c[name] if indexed else dialect.without_index(SESSION.c[name])

    of_agent = indexed and "user_id" not in names  # a user has fewer sessions than an agent
    by_name = _CONDITIONS | {
        "user_id": column("user_id") == text("user_id"),
        "agent_id": column("agent_id", indexed=of_agent) == text("agent_id"),
        "key_prefix": (column("key") >= session_key("key_prefix")) & (column("key") < session_key("prefix_end")),
        "title": dialect.contains_text(SESSION.c.title, text("title")),
    }
    return [by_name[name] for name in names]


@cache
def _page(order: Order, *names: str) -> Statement:
    if order not in _ORDERS:
        raise ValueError(f"order={quoted(order)}: give one of {', '.join(_ORDERS)}")
    newest_first = (*_BUCKETS.get(order, ()), _ORDERS[order], SESSION.c.key)
    query = sa.select(*SESSION_COLUMNS).order_by(*(each.desc() for each in newest_first)).limit(LIMIT)
    if order in _BUCKETS and not {"user_id", "agent_id", "key_prefix"} & {*names}:  # these have a better index
        # Newer releases of SQLite, such as 3.53, would otherwise read and sort all sessions for each page.
        query = query.with_hint(SESSION, "INDEXED BY ix_lango_session_updated_bucket", "sqlite")
    return Statement(lambda dialect: query.where(*conditions(dialect, names)))


@cache
def _walk(*names: str) -> Statement:
    query = sa.select(*SESSION_COLUMNS).order_by(SESSION.c.key).limit(LIMIT)
    return Statement(lambda dialect: query.where(*conditions(dialect, names)))


@cache
def _keys(*names: str) -> Statement:
    query = sa.select(SESSION.c.key).order_by(SESSION.c.key)
    return Statement(lambda dialect: query.where(*conditions(dialect, names)))


@cache
def _count(*names: str) -> Statement:
    query = sa.select(sa.func.count()).select_from(SESSION)
    return Statement(lambda dialect: query.where(*conditions(dialect, names)))


_SessionPage: Final = Page[SessionInfo]  # Python would otherwise look it up for each page


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
    conditions = chosen.names
    if cursor is not None:
        cursor_order, moment, values["cursor_key"] = read_cursor(cursor, "list_sessions")
        if cursor_order != order:
            raise InvalidCursor(
                f"the cursor is of a list in the order {quoted(cursor_order)}, not {order!r}: give the same order again"
            )
        values["cursor_time"] = dialect.time(moment)
        conditions += (f"after cursor by {order}",)
    items = [session_info(row) for row in _page(order, *conditions).run(connection, values)]
    return page_of(_SessionPage, items, limit, lambda last: (order, getattr(last, f"{order}_at"), last.key))


def walk(connection: AnyConnection, now: Moment, chosen: Filter, after: str, limit: int) -> list[SessionInfo]:
    """Read the next sessions after a key, ordered by key.

    Updates do not change this order, so no session is skipped.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"page_size={quoted(limit)} is not between 1 and {MAX_PAGE:,}: give another")
    values = chosen.values(dialect_of(connection), now) | {"after": after, "limit": limit}
    return [session_info(row) for row in _walk(*chosen.names, "after").run(connection, values)]


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
    rows = _keys(*chosen.names).run(connection, chosen.values(dialect_of(connection), now))
    return [key for (key,) in rows]


def count(connection: AnyConnection, now: Moment, chosen: Filter) -> int:
    """Count the sessions that a filter selects."""
    rows = _count(*chosen.names).run(connection, chosen.values(dialect_of(connection), now))
    return int(rows[0][0])


def page_of(
    kind: type[Page[T]], items: list[T], limit: int, position: Callable[[T], tuple[str, datetime, str]]
) -> Page[T]:
    """Return a page of at most `limit` items.

    Args:
        kind: The class of the page, such as `Page[SessionInfo]`.
        items: The items, and one more if the page has a next one.
        limit: The number of items per page.
        position: Returns the arguments of `cursor_after` for the last item of the page.
    """
    has_next = len(items) > limit
    return kind(items=items[:limit], next=cursor_after(*position(items[limit - 1])) if has_next else None)


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
