"""Many sessions at once: chosen by filters, listed page by page, counted; never a message."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from lango_store import dialect
from lango_store.columns import MAX_KEY_LENGTH, TimeColumn, checked_key, encode_text
from lango_store.dialect import Lent
from lango_store.errors import InvalidCursor
from lango_store.model import Page, SessionInfo
from lango_store.operations.sessions import COLUMNS, LIVE, NOW, SESSION, decoded, valued
from lango_store.statement import Statement

MAX_PAGE: Final = 1_000


@dataclass(frozen=True)
class Filter:
    """Which sessions are meant; `expired` is False for live ones, True for expired ones, None for both."""

    agent_id: str | None = None
    user_id: str | None = None
    key_prefix: str | None = None
    updated_since: datetime | None = None
    expired: bool | None = False

    def named(self) -> tuple[str, ...]:
        """Name the conditions that this filter sets."""
        texts = tuple(n for n in ("agent_id", "user_id", "key_prefix", "updated_since") if getattr(self, n) is not None)
        return texts + {False: ("live",), True: ("expired",), None: ()}[self.expired]

    def values(self, spoken: dialect.Dialect, now: datetime) -> dict[str, Any]:
        """Give the values of those conditions, as the driver takes them."""
        prefix = encode_text(self.key_prefix, "key_prefix") or ""
        return {
            "agent_id": encode_text(self.agent_id, "agent_id"),
            "user_id": encode_text(self.user_id, "user_id"),
            "key_prefix": prefix,
            "prefix_end": end_of_prefix(prefix),
            "updated_since": None if self.updated_since is None else spoken.time(aware(self.updated_since)),
            "now": spoken.time(now),
        }


_CONDITIONS: Final[dict[str, sa.ColumnElement[bool]]] = {
    "agent_id": SESSION.c.agent_id == sa.bindparam("agent_id", type_=sa.Text(), required=True),
    "user_id": SESSION.c.user_id == sa.bindparam("user_id", type_=sa.Text(), required=True),
    "key_prefix": sa.and_(
        SESSION.c.key >= sa.bindparam("key_prefix", type_=SESSION.c.key.type, required=True),
        SESSION.c.key < sa.bindparam("prefix_end", type_=SESSION.c.key.type, required=True),
    ),
    "updated_since": SESSION.c.updated_at >= sa.bindparam("updated_since", type_=TimeColumn(), required=True),
    "live": LIVE,
    "expired": SESSION.c.expires_at <= NOW,
    "cursor": sa.tuple_(SESSION.c.updated_at, SESSION.c.key)
    < sa.tuple_(
        sa.bindparam("cursor_time", type_=TimeColumn(), required=True),
        sa.bindparam("cursor_key", type_=SESSION.c.key.type, required=True),
    ),
}


@cache
def _page(*conditions: str) -> Statement:
    return Statement(
        lambda _: (
            sa.select(*COLUMNS)
            .where(*(_CONDITIONS[name] for name in conditions))
            .order_by(SESSION.c.updated_at.desc(), SESSION.c.key.desc())
            .limit(sa.bindparam("limit", type_=sa.BigInteger(), required=True))
        )
    )


@cache
def _count(*conditions: str) -> Statement:
    return Statement(
        lambda _: sa.select(sa.func.count()).select_from(SESSION).where(*(_CONDITIONS[n] for n in conditions))
    )


def page(connection: Lent, now: datetime, chosen: Filter, limit: int, cursor: str | None) -> Page:
    """List sessions, the last updated first, from a cursor on."""
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit={limit} is not between 1 and {MAX_PAGE}: take more pages")
    spoken = dialect.of(connection)
    values = chosen.values(spoken, now) | {"limit": limit + 1}
    conditions = chosen.named()
    if cursor is not None:
        moment, values["cursor_key"] = _read_cursor(cursor)
        values["cursor_time"] = spoken.time(moment)
        conditions += ("cursor",)
    items = _values([decoded(row) for row in _page(*conditions).run(connection, values)])
    return Page(items=items[:limit], next=_cursor(items[limit - 1]) if len(items) > limit else None)


_infos: Final = TypeAdapter(list[SessionInfo])


def _values(rows: list[dict[str, Any]]) -> list[SessionInfo]:
    try:
        return _infos.validate_python(rows)
    except ValidationError:
        return [valued(SessionInfo, row) for row in rows]  # for the error that names the session


def count(connection: Lent, now: datetime, chosen: Filter) -> int:
    """Count sessions."""
    rows = _count(*chosen.named()).run(connection, chosen.values(dialect.of(connection), now))
    return int(rows[0][0])


def _cursor(last: SessionInfo) -> str:
    text = json.dumps([last.updated_at.isoformat(), last.key])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        moment, key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return aware(datetime.fromisoformat(moment)), checked_key(key)
    except (ValueError, TypeError) as error:
        raise InvalidCursor(f"{cursor!r} is no cursor of list_sessions: give back Page.next as it was") from error


def aware(moment: datetime) -> datetime:
    """Give a time back, or raise ValueError if it has no time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: use datetime.now(UTC)")
    return moment


def end_of_prefix(prefix: str) -> str:
    """Give the first text that sorts after every text with this prefix."""
    for length in range(len(prefix), 0, -1):
        following = ord(prefix[length - 1]) + 1
        if following <= 0x10FFFF:
            return prefix[: length - 1] + chr(0xE000 if following == 0xD800 else following)
    return chr(0x10FFFF) * (MAX_KEY_LENGTH + 1)
