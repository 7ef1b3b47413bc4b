"""Messages of a session as they are stored: its window and its log, read and found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Decode, Statement
from lango_store._operations import sessions
from lango_store._operations.binds import (
    IN_SUMMARY,
    IS_RECORD,
    LIVE_SESSION,
    MESSAGE,
    SESSION,
    number,
    of_session,
    of_sessions,
    text,
)
from lango_store._operations.paging import Pages
from lango_store._operations.rows import MESSAGE_COLUMNS, decode_messages, next_place, salvage_messages, session_value
from lango_store._rows.encoding import checked_key, encode_id
from lango_store._values.model import Message, MessageRole
from lango_store._values.session import Session
from lango_store.errors import DamagedMessage

MAX_SEQ: Final = 2**63 - 1


def _read(_: Dialect, *, backwards: bool) -> sa.Executable:
    # The session is asked for inside: one statement, and an expired session shows nothing.
    live = sa.exists().where(LIVE_SESSION)
    order = MESSAGE.c.seq.desc() if backwards else MESSAGE.c.seq
    return (
        sa.select(*MESSAGE_COLUMNS)
        .where(
            of_session(MESSAGE),
            MESSAGE.c.seq > number("after"),
            MESSAGE.c.seq < number("before"),
            live,
        )
        .order_by(order)
        .limit(number("limit"))
    )


_forwards = Statement(lambda d: _read(d, backwards=False))
_backwards = Statement(lambda d: _read(d, backwards=True))


def _in_window(records: bool) -> sa.ColumnElement[bool]:
    return sa.true() if records else ~IS_RECORD


def _build_window(_: Dialect, *, records: bool) -> sa.Executable:
    return (
        sa.select(*MESSAGE_COLUMNS)
        .where(
            of_session(MESSAGE),
            MESSAGE.c.seq > number("summarized_upto"),
            MESSAGE.c.seq <= number("last_seq"),
            _in_window(records),
            sa.select(SESSION.c.last_seq - SESSION.c.message_count - SESSION.c.record_count)
            .where(
                of_session(SESSION),
                SESSION.c.incarnation == number("incarnation"),
            )
            .scalar_subquery()
            == number("removed"),
        )
        .order_by(MESSAGE.c.seq)
    )


def _build_session_and_window(_: Dialect, *, records: bool) -> sa.Executable:
    in_window = sa.and_(
        of_session(MESSAGE, SESSION.c.key), MESSAGE.c.seq > SESSION.c.summarized_upto, _in_window(records)
    )
    return (
        sa.select(*sessions.LIFE, *MESSAGE_COLUMNS)
        .select_from(SESSION.outerjoin(MESSAGE, in_window))
        .where(of_session(SESSION))
        .order_by(MESSAGE.c.seq)
    )


_window = {records: Statement(functools.partial(_build_window, records=records)) for records in (False, True)}
_session_and_window = {
    records: Statement(functools.partial(_build_session_and_window, records=records)) for records in (False, True)
}


def load(connection: AnyConnection, now: Moment, key: str, *, records: bool = False) -> Session:
    """Load a live session and its window as they were at one moment, without a transaction."""
    return load_life(connection, now, key, records=records)[1]


def load_life(connection: AnyConnection, now: Moment, key: str, *, records: bool = False) -> tuple[int, Session]:
    """Load a live session and its window as `load` does, and which life of its key it is.

    An append adds as much to `last_seq` as to `message_count` and `record_count`; whatever takes messages away, or
    compacts them, lets their difference grow. So messages up to `last_seq` are those that the session's row counted,
    unless that difference is another one now, or the session is another one, made anew under its key. Then, and where
    the window is empty, one statement reads both, which repeats the session in each row.
    """
    incarnation, row = sessions.life_of(connection, now, key)
    if not row["message_count"] and not (records and row["record_count"]):
        return incarnation, session_value(Session, row)
    removed = row["last_seq"] - row["message_count"] - row["record_count"]
    state = {"incarnation": incarnation, "removed": removed}
    wanted = {name: row[name] for name in ("key", "last_seq", "summarized_upto")}
    decode = functools.partial(decode_messages, key)
    found = _window[records].run(connection, wanted | state, decode)
    if not found:
        both = _session_and_window[records].run(connection, {"key": key, "now": dialect_of(connection).time(now)})
        incarnation, row = sessions.decoded_life(key, [each[: len(sessions.LIFE)] for each in both[:1]])
        found = decode([window for each in both if (window := each[len(sessions.LIFE) :])[0] is not None])
    found = _summary_first(found, row.get("summary_turn"))
    return incarnation, session_value(Session, row | {"messages": found})


def _summary_first(found: list[Message], summary_turn: int | None) -> list[Message]:
    # What came in while a summary was being written has a lower seq than the summary.
    if summary_turn is None:
        return found
    return sorted(found, key=lambda message: message.turn_no != summary_turn)


def _of_live_session(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    return sa.select(column).where(LIVE_SESSION).scalar_subquery()


def _build_tail(_: Dialect, *, records: bool) -> sa.Executable:
    summarized_upto = _of_live_session(SESSION.c.summarized_upto)
    return (
        sa.select(*MESSAGE_COLUMNS, _of_live_session(SESSION.c.summary_turn))
        .where(of_session(MESSAGE), MESSAGE.c.seq > summarized_upto, _in_window(records))
        .order_by(MESSAGE.c.seq.desc())
        .limit(number("limit"))
    )


_tail = {records: Statement(functools.partial(_build_tail, records=records)) for records in (False, True)}


@dataclass(frozen=True)
class Tail:
    """The end of a window: the summary's messages, as far as it reaches into them, and what came later."""

    summary: list[Message]
    later: list[Message]

    @property
    def messages(self) -> list[Message]:
        """All its messages, the summary's first."""
        return [*self.summary, *self.later]

    def end(self, last: int) -> Tail:
        """Return the last messages of it."""
        of_summary = max(last - len(self.later), 0)
        return Tail(
            self.summary[max(len(self.summary) - of_summary, 0) :], self.later[max(len(self.later) - last, 0) :]
        )


def tail(
    connection: AnyConnection, now: Moment, key: str, last: int, *, most: int = MAX_SEQ, records: bool = False
) -> Tail:
    """Read the last messages of a live session's window, of them at most the `most` newest of the log.

    One statement, which reads no more than that, and of the records in between only their roles; two where the summary
    stands among the newest.
    """
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now)}
    limit = min(last, most)
    for following in (None, most, most):
        rows = _tail[records].run(connection, values | {"limit": limit})
        if not rows:
            sessions.refuse(connection, now, key)
            return Tail([], [])
        summary_turn = rows[0][-1]
        in_summary = 0 if summary_turn is None else sum(row[1] == summary_turn for row in rows)
        if len(rows) < limit or limit == most or len(rows) - in_summary >= last:
            break
        limit = following or min(last + in_summary, most)  # the third reads all, if somebody compacted meanwhile
    found = decode_messages(key, [row[:-1] for row in reversed(rows)])
    if not in_summary:
        return Tail([], found).end(last)
    summary = [message for message in found if message.turn_no == summary_turn]
    later = [message for message in found if message.turn_no != summary_turn]
    return Tail(summary, later).end(last)


def check_seq(name: str, seq: int | None) -> None:
    """Raise ValueError for what cannot be a seq."""
    if seq is not None and (type(seq) is not int or not 0 <= seq <= MAX_SEQ):  # SQLite stores 1.5
        raise ValueError(f"{name}={seq!r} is not a seq: give 0 for the start of the session")


@dataclass(frozen=True)
class Range:
    """Which messages: those with `after < seq < before`, of these the first `limit` or the last `last`."""

    after: int = 0
    before: int = MAX_SEQ
    limit: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.last is not None:
            raise ValueError("limit counts from the front and last from the end: give one of them")
        for name in ("after", "before", "limit", "last"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} is negative: give 0 or more")


Damaged = Literal["raise", "return"]
"""Whether a row that cannot be read raises `DamagedMessage`, or the error is in the list in its place."""


def read(connection: AnyConnection, now: Moment, key: str, chosen: Range, damaged: Damaged = "raise") -> list[Any]:
    """Read messages of a live session in the order of their seq."""
    if damaged not in ("raise", "return"):
        raise ValueError(f"damaged={damaged!r}: give 'raise' or 'return'")
    decode = decode_messages if damaged == "raise" else salvage_messages
    return read_rows(connection, now, key, chosen, functools.partial(decode, key))


def read_rows(
    connection: AnyConnection, now: Moment, key: str, chosen: Range, decode: Decode | None = None
) -> list[Any]:
    """Read rows of messages, or what `decode` makes of them."""
    statement = _forwards if chosen.last is None else _backwards
    bound = chosen.limit if chosen.last is None else chosen.last
    values = {
        "key": checked_key(key),
        "now": dialect_of(connection).time(now),
        "after": min(chosen.after, MAX_SEQ),
        "before": min(chosen.before, MAX_SEQ),
        "limit": MAX_SEQ if bound is None else min(bound, MAX_SEQ),
    }
    rows = statement.run(connection, values, decode)
    if not rows:
        sessions.refuse(connection, now, key)
    if chosen.last is not None:
        rows.reverse()
    return rows


_log: Final = Pages(MESSAGE, "seq", MESSAGE_COLUMNS, sa.exists().where(LIVE_SESSION))


def log_pages(connection: AnyConnection, now: Moment, key: str) -> Iterator[list[Message]]:
    """Yield the log of a live session page by page, on one connection."""
    empty = True
    for rows in _log.read(connection, checked_key(key), {"now": dialect_of(connection).time(now)}):
        empty = False
        page = [decode_messages(key, rows)]
        del rows  # only the reader holds a page, since it may be large
        yield page.pop()
    if empty:
        sessions.refuse(connection, now, key)


def pages(read_page: Callable[[Range], list[Message]], chosen: Range, size: int) -> Iterator[list[Message]]:
    """Read messages page by page; nothing is held between two calls of `read_page`."""
    if size < 1:
        raise ValueError(f"page_size={size} is not positive: give 1 or more")
    after = chosen.after
    while True:
        found = read_page(Range(after=after, before=chosen.before, limit=size))
        if found:
            yield found
        if len(found) < size:
            return
        after = next_place(after, found[-1].seq)


_find = Statement(
    lambda _: sa.select(*MESSAGE_COLUMNS).where(
        of_session(MESSAGE),
        MESSAGE.c.id == text("id"),
        sa.exists().where(LIVE_SESSION),
    )
)


def find(connection: AnyConnection, now: Moment, key: str, message_id: str) -> Message | None:
    """Return the message of a live session with an id, None if it has none."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now), "id": encode_id(message_id)}
    rows = _find.run(connection, values)
    if not rows:
        sessions.refuse(connection, now, key)
        return None
    return decode_messages(key, rows)[0]


def firsts(connection: sa.Connection, keys: Sequence[str], role: MessageRole) -> dict[str, Message | DamagedMessage]:
    """Read the first message of a role of each of these sessions that has one; no other is looked at in full."""
    first = (
        sa.select(MESSAGE.c.seq)
        .where(of_session(MESSAGE, SESSION.c.key), MESSAGE.c.role == role)
        .order_by(MESSAGE.c.seq)
        .limit(1)
        .correlate(SESSION)
        .scalar_subquery()
    )
    places = sa.select(SESSION.c.key, first.label("seq")).where(of_sessions(SESSION, keys)).cte("places")
    its = sa.and_(of_session(MESSAGE, places.c.key), MESSAGE.c.seq == places.c.seq)
    rows = connection.execute(sa.select(places.c.key, *MESSAGE_COLUMNS).join_from(places, MESSAGE, its))
    return {key: salvage_messages(key, [row])[0] for key, *row in rows}


def with_ids(connection: sa.Connection, key: str, ids: frozenset[str]) -> dict[str, Message]:
    """Return the messages with these ids, by id, if they are stored."""
    found: dict[str, Message] = {}
    wanted = sorted(ids)
    for start in range(0, len(wanted), 500):  # a statement binds a limited number of values
        chosen = where(connection, key, MESSAGE.c.id.in_(wanted[start : start + 500]))
        found |= {str(message.id): message for message in chosen}
    return found


def where(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> list[Message]:
    """Read those messages of a session that a condition holds for."""
    query = sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE, key), condition).order_by(MESSAGE.c.seq)
    return decode_messages(key, connection.execute(query).all())


def only_records(connection: sa.Connection, key: str, after: int, upto: int) -> bool:
    """Return whether every seq above `after` and up to `upto` is a record's; one that a removal used up is not."""
    records = (of_session(MESSAGE, key), MESSAGE.c.seq > after, MESSAGE.c.seq <= upto, IS_RECORD)
    found: int = connection.execute(sa.select(sa.func.count()).where(*records)).scalar_one()
    return found == upto - after


def last_of(connection: sa.Connection, now: Moment, key: str, role: MessageRole | None) -> Message | None:
    """Return the last message of a live session that somebody with this role said, summaries and records left out."""
    sessions.row_of(connection, now, key)
    said = [of_session(MESSAGE, key), ~IN_SUMMARY, ~IS_RECORD]
    if role is not None:
        said.append(MESSAGE.c.role.in_([each for each in MessageRole if each.canonical is role.canonical]))
    query = sa.select(*MESSAGE_COLUMNS).where(*said).order_by(MESSAGE.c.seq.desc()).limit(1)
    found = decode_messages(key, connection.execute(query).all())
    return found[0] if found else None
