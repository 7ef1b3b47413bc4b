"""Store, find, list and remove shares. Tokens are stored as digests."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import MESSAGE, NOW, SESSION, column, number, of_session, session_key, text, time
from lango_store._operations.log.messages import check_seq
from lango_store._operations.rows import session_value, stored_json, stored_time
from lango_store._operations.session import lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._operations.session_tables import MESSAGES
from lango_store._rooms.shares.errors import ShareNotFound
from lango_store._rooms.shares.tables import SHARE
from lango_store._rooms.shares.values import Share
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware, checked_key, encode_id, encode_json, encode_text
from lango_store._values.reports import Page
from lango_store.errors import InvalidCursor

_TOKEN: Final = re.compile("[A-Za-z0-9_-]{43}")
_DIGEST_LENGTH: Final = 64
_ROW: Final = [as_stored(each) for each in SHARE.c]
_HAS_PASSED: Final = SHARE.c.until <= NOW
_OF_DIGEST: Final = SHARE.c.digest == text("digest")


class NewShare:
    """A share about to be stored, encoded, with its token.

    Raises:
        InvalidKey: The session key is invalid.
        InvalidValue: `by` cannot be stored.
        ValueError: `upto` is not a seq, or `until` has no time zone.
    """

    def __init__(self, key: str, upto: int | None, *, tools: bool, until: datetime | None, by: str | None) -> None:
        check_seq("upto", upto)
        self.key, self.upto, self.token = checked_key(key), upto, secrets.token_urlsafe(32)
        self.until: Final = None if until is None else aware(until, "until")
        self.row: Final = {
            "session_key": key,
            "digest": digest(self.token),
            "tools": int(bool(tools)),
            "shared_by": encode_text(by, "by"),
        }


def digest(token: str) -> str:
    """Return the digest of a token; raise `ShareNotFound` if the text is not a token."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise _not_found()
    return hashlib.sha256(token.encode()).hexdigest()


def _not_found() -> ShareNotFound:
    return ShareNotFound("no share of a live session has this token, or its time has passed")


_insert: Final = Statement(
    lambda dialect: (
        dialect.insert(SHARE)
        .values({each.name: column(each) for each in SHARE.c})
        .on_conflict_do_nothing(index_elements=[SHARE.c.session_key, SHARE.c.digest])
    )
)
_IN_LOG: Final = sa.select(MESSAGE.c.seq).where(of_session(MESSAGE))
_not_in_log: Final = Statement(
    sa.union(
        *(
            sa.select(rows.c.seq).where(of_session(rows), rows.c.seq <= number("upto"), rows.c.seq.not_in(_IN_LOG))
            for rows in MESSAGES
            if rows is not MESSAGE
        )
    )
)
_delete_passed: Final = Statement(sa.delete(SHARE).where(of_session(SHARE), _HAS_PASSED))
_select: Final = Statement(sa.select(*_ROW).where(of_session(SHARE), _OF_DIGEST))


def share(connection: sa.Connection, now: datetime, new: NewShare) -> Share:
    """Store a share of a live session, and return it with its token. Those whose time has passed are deleted."""
    last_seq = sessions.lock(connection, now, new.key).last_seq
    if new.until is not None and new.until <= now:
        raise ValueError(f"until={new.until} has passed: give a later time, or None for a link without an end")
    time = dialect_of(connection).time
    _delete_passed.run_many(connection, [{"key": new.key, "now": time(now)}])
    upto = last_seq if new.upto is None else min(new.upto, last_seq)
    left_out = sorted(seq for (seq,) in _not_in_log.run(connection, {"key": new.key, "upto": upto}))
    columns = {"upto": upto, "created_at": time(now), "until": time(new.until)}
    columns["left_out"] = encode_json(left_out, "left_out") if left_out else None
    _insert.run_many(connection, [new.row | columns])
    for row in _select.run(connection, {"key": new.key, "digest": new.row["digest"]}):
        return _decoded(row).model_copy(update={"token": new.token})
    raise sessions.not_permitted(new.key)


_delete: Final = Statement(sa.delete(SHARE).where(of_session(SHARE), _OF_DIGEST).returning(SHARE.c.digest))
_delete_all: Final = Statement(sa.delete(SHARE).where(of_session(SHARE)).returning(SHARE.c.digest))


def unshare(connection: sa.Connection, now: datetime, key: str, id: str | None) -> int:
    """Delete a share of a live session, or all of them; return how many."""
    sessions.lock(connection, now, key)
    if id is None:
        return len(_delete_all.run(connection, {"key": key}))
    return len(_delete.run(connection, {"key": key, "digest": encode_id(id)}))


@cache
def _find(names: tuple[str, ...]) -> Statement:
    query = sa.select(*_ROW).join(SESSION, of_session(SESSION, SHARE.c.session_key))
    query = query.where(_OF_DIGEST, sa.or_(SHARE.c.until.is_(None), ~_HAS_PASSED))
    return Statement(lambda dialect: query.where(*lists.conditions(dialect, names, indexed=False)))


def find(connection: AnyConnection, now: Moment, chosen: Filter, digest: str) -> tuple[Share, list[int]]:
    """Return the share with a digest, of a live session that the filter selects, and the seqs that it leaves out."""
    for row in _find(chosen.names).run(connection, chosen.values(dialect_of(connection), now) | {"digest": digest}):
        share, left_out = _decoded(row), row[SHARE.c.keys().index("left_out")]
        return share, stored_json(share.key, 0, "share, left_out", left_out) if left_out else []
    raise _not_found()


_POSITION: Final = (SHARE.c.created_at, SHARE.c.session_key, SHARE.c.digest)
_CONDITIONS: Final = {
    "key": of_session(SHARE),
    "cursor": sa.tuple_(*_POSITION) > sa.tuple_(time("cursor_time"), session_key("cursor_key"), text("cursor_digest")),
}


@cache
def _page(names: tuple[str, ...], *own: str) -> Statement:
    query = sa.select(*_ROW).join(SESSION, of_session(SESSION, SHARE.c.session_key))
    query = query.where(*(_CONDITIONS[name] for name in own)).order_by(*_POSITION).limit(lists.LIMIT)
    return Statement(lambda dialect: query.where(*lists.conditions(dialect, names, indexed="key" not in own)))


def page(
    connection: AnyConnection, now: Moment, chosen: Filter, limit: int, cursor: str | None, key: str | None = None
) -> Page[Share]:
    """Return a page of the shares of chosen sessions, oldest first."""
    lists.check_limit(limit)
    dialect = dialect_of(connection)
    bound = chosen.values(dialect, now) | {"limit": limit + 1}
    own: list[str] = []
    if key is not None:
        own.append("key")
        bound["key"] = key
    if cursor is not None:
        own.append("cursor")
        bound["cursor_digest"], moment, bound["cursor_key"] = lists.read_cursor(cursor, "Store.shares")
        bound["cursor_time"] = dialect.time(moment)
        if len(bound["cursor_digest"]) != _DIGEST_LENGTH:
            raise InvalidCursor("the cursor is of another list: pass Page.next unchanged")
    items = [_decoded(row) for row in _page(chosen.names, *own).run(connection, bound)]
    return lists.page_of(Page[Share], items, limit, lambda last: (last.id, last.created_at, last.key))


def page_of_session(connection: AnyConnection, now: Moment, key: str, limit: int, cursor: str | None) -> Page[Share]:
    """Return a page of the shares of a live session, oldest first."""
    sessions.row_of(connection, now, key)
    return page(connection, now, Filter(), limit, cursor, key)


def _decoded(row: Sequence[Any]) -> Share:
    value = {name: each for name, each in zip(SHARE.c.keys(), row, strict=True) if each is not None}
    value.pop("left_out", None)
    key, id = value.pop("session_key"), value.pop("digest")
    for name in value.keys() & {"created_at", "until"}:
        value[name] = stored_time(key, f"share {str(id)[:8]}, {name}", value[name])
    return session_value(Share, value | {"key": key, "id": id, "tools": value.get("tools") == 1})
