"""List the alternatives of a session, and load the session as it would be after a switch."""

from bisect import bisect
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    IN_SUMMARY,
    IS_COMPACTION,
    LIVE_SESSION,
    MESSAGE,
    OF_ITS_TURN,
    TURN,
    number,
    of_session,
)
from lango_store._operations.log import payloads, removals
from lango_store._operations.log.messages import check_seq
from lango_store._operations.paging import Pages
from lango_store._operations.rows import MESSAGE_FIELDS, session_value, stored_time
from lango_store._operations.session import sessions
from lango_store._rooms.alternatives import branching
from lango_store._rooms.alternatives.tables import ALTERNATIVE, ALTERNATIVE_MESSAGE, ALTERNATIVE_TURN
from lango_store._rooms.alternatives.values import Alternative
from lango_store._rooms.versions import earlier_logs
from lango_store._rooms.versions.earlier_logs import TurnInLog
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message
from lango_store._values.session import Session

MOST: Final = 1_000
_PREVIEW: Final = 200
_FIELDS: Final = ("id", "after_seq", "message_count", "set_aside_at", "alternatives")


def _preview(rows: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    return [rows.c.seq, as_stored(rows.c.role), sa.func.substr(rows.c.text, 1, _PREVIEW)]


def _build_list(_: Dialect) -> sa.Executable:
    chosen = sa.select(ALTERNATIVE).where(of_session(ALTERNATIVE), ALTERNATIVE.c.within.is_(None))
    chosen = chosen.where(sa.exists().where(LIVE_SESSION)).order_by(ALTERNATIVE.c.after_seq, ALTERNATIVE.c.first_seq)
    listed = chosen.limit(number("limit")).cte("listed")
    inner = sa.select(ALTERNATIVE.c.within, sa.func.count().label("count")).where(of_session(ALTERNATIVE))
    nested = inner.group_by(ALTERNATIVE.c.within).subquery()
    first, last = ALTERNATIVE_MESSAGE.alias("first"), ALTERNATIVE_MESSAGE.alias("last")
    joined = (
        listed.join(first, sa.and_(of_session(first), first.c.seq == listed.c.first_seq))
        .join(last, sa.and_(of_session(last), last.c.seq == listed.c.last_seq))
        .outerjoin(nested, nested.c.within == listed.c.first_seq)
    )
    count = sa.func.coalesce(nested.c.count, sa.literal_column("0", sa.BigInteger()))
    facts = (listed.c.message_count, as_stored(listed.c.set_aside_at), count)
    aside = sa.select(listed.c.first_seq, listed.c.after_seq, *facts, *_preview(first), *_preview(last))
    # At each branching point, the continuation in the log.
    points = sa.select(listed.c.after_seq).distinct().subquery()
    shown, end = MESSAGE.alias("shown"), MESSAGE.alias("end")
    is_earlier_summary = sa.exists().where(OF_ITS_TURN, IS_COMPACTION, TURN.c.replaced_upto <= points.c.after_seq)
    is_earlier_summary = is_earlier_summary.correlate(MESSAGE, points)
    later = sa.select(MESSAGE.c.seq).where(of_session(MESSAGE), MESSAGE.c.seq > points.c.after_seq, ~is_earlier_summary)
    next_seq = later.order_by(MESSAGE.c.seq).limit(1).correlate(points).scalar_subquery()
    log = sa.select(MESSAGE.c.seq).where(of_session(MESSAGE)).order_by(MESSAGE.c.seq.desc()).limit(1)
    last_seq = sa.func.coalesce(log.where(~IN_SUMMARY).scalar_subquery(), log.scalar_subquery())
    continued = points.join(shown, sa.and_(of_session(shown), shown.c.seq == next_seq)).join(
        end, sa.and_(of_session(end), end.c.seq == last_seq)
    )
    present = sa.select(shown.c.seq, points.c.after_seq, *[sa.null()] * len(facts), *_preview(shown), *_preview(end))
    return sa.union_all(aside.select_from(joined), present.select_from(continued))


_list: Final = Statement(_build_list)


def alternatives(connection: AnyConnection, now: Moment, key: str, limit: int) -> list[Alternative]:
    """List the alternatives of the present log of a live session, and for each branching point the one in the log."""
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise ValueError(f"limit={limit!r}: give a number from 1 to {MOST}")
    rows = _list.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now), "limit": limit})
    if not rows:
        sessions.row_of(connection, now, key)
    found: list[Alternative] = []
    for *values, first_seq, first_role, first_text, last_seq, last_role, last_text in rows:
        fields = {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
        if "set_aside_at" in fields:
            fields["set_aside_at"] = stored_time(key, "set_aside_at", fields["set_aside_at"])
        fields["first"] = {"seq": first_seq, "role": first_role, "text": first_text}
        fields["last"] = {"seq": last_seq, "role": last_role, "text": last_text}
        found.append(session_value(Alternative, fields | {"is_shown": "set_aside_at" not in fields}, key))
    return sorted(found, key=lambda each: (each.after_seq, each.id))


_counts: Final = Statement(
    sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(ALTERNATIVE.c.message_count), 0)).select_from(ALTERNATIVE)
)


def count(connection: sa.Connection, _: datetime) -> dict[str, int]:
    """Return the numbers of alternatives and of their messages, by the names of the fields of `Stats`."""
    ((alternatives, messages),) = _counts.run(connection, {})
    return {"alternatives": alternatives, "alternative_messages": int(messages)}


_CHOSEN: Final = number("alternative")
_earlier_summaries: Final = sa.select(TURN.c.turn_no).where(of_session(TURN), removals.IS_SUMMARY_BEFORE)
_messages: Final = {
    rows: Statement(sa.select(*(as_stored(rows.c[name]) for name in MESSAGE_FIELDS)).where(of_session(rows), condition))
    for rows, condition in (
        (MESSAGE, sa.or_(MESSAGE.c.seq <= number("after"), MESSAGE.c.turn_no.in_(_earlier_summaries))),
        (ALTERNATIVE_MESSAGE, ALTERNATIVE_MESSAGE.c.alternative == _CHOSEN),
    )
}
_turns: Final = {
    rows: Statement(sa.select(*(rows.c[name] for name in TurnInLog._fields)).where(of_session(rows), condition))
    for rows, condition in (
        (TURN, sa.or_(TURN.c.first_seq <= number("after"), removals.IS_SUMMARY_BEFORE)),
        (ALTERNATIVE_TURN, ALTERNATIVE_TURN.c.alternative == _CHOSEN),
    )
}


def load(connection: sa.Connection, now: Moment, key: str, alternative: int, *, records: bool = False) -> Session:
    """Load a live session as it would be after a switch to an alternative. Needs a snapshot.

    Raises:
        MessageNotFound: The session has no such alternative.
        InvalidCut: A compaction has discarded messages before the alternative.
    """
    check_seq("alternative", alternative)
    info = sessions.info(connection, now, key)
    path = branching.path_to(connection, key, alternative)
    after = path[0][1] if path else info.last_seq
    removals.reject_gap(connection, key, after)

    def read(messages: sa.Table, turns: sa.Table, **bound: int) -> tuple[list[Message], list[TurnInLog]]:
        log = payloads.decode_rows(connection, key, _messages[messages].run(connection, bound | {"key": key}))
        return log, [TurnInLog(*row) for row in _turns[turns].run(connection, bound | {"key": key})]

    log, turns = read(MESSAGE, TURN, after=after)
    for each, after in path:
        turns = [turn for turn in turns if turn.first_seq <= after or (turn.replaced_upto or after + 1) <= after]
        summaries = {turn.turn_no for turn in turns if turn.kind == "compaction"}
        log = [message for message in log if message.seq <= after or message.turn_no in summaries]
        added, turns_added = read(ALTERNATIVE_MESSAGE, ALTERNATIVE_TURN, alternative=each)
        log, turns = log + added, turns + turns_added
    return earlier_logs.session_with(info, sorted(log, key=attrgetter("seq")), turns, info.last_seq, records=records)


_WITH_ALTERNATIVE: Final = {
    MESSAGE: Pages(MESSAGE, [as_stored(MESSAGE.c[name]) for name in MESSAGE_FIELDS]),
    ALTERNATIVE_MESSAGE: Pages(
        ALTERNATIVE_MESSAGE,
        [*(as_stored(ALTERNATIVE_MESSAGE.c[name]) for name in MESSAGE_FIELDS), ALTERNATIVE_MESSAGE.c.alternative],
    ),
}
_summaries: Final = [
    Statement(sa.select(rows.c.turn_no, rows.c.replaced_upto).where(of_session(rows), rows.c.kind == "compaction"))
    for rows in (TURN, ALTERNATIVE_TURN)
]


def tree(connection: sa.Connection, key: str) -> tuple[list[tuple[Message, int]], int]:
    """Read all messages and records, also those set aside: each with the `seq` of the one that it follows, or 0.

    A message comes after the one that it follows. A summary follows the last message that it replaces. Also returns
    the `seq` of the last message of the log. Needs a snapshot, and memory for all messages of the session.
    """
    upto = {turn_no: at for each in _summaries for turn_no, at in each.run(connection, {"key": key})}
    parts: dict[int | None, list[tuple[int, Message]]] = {None: []}
    for pages in _WITH_ALTERNATIVE.values():
        for rows in pages.read(connection, key):
            messages = payloads.decode_rows(connection, key, [row[: len(MESSAGE_FIELDS)] for row in rows])
            for message, row in zip(messages, rows, strict=True):
                part = parts.setdefault(next(iter(row[len(MESSAGE_FIELDS) :]), None), [])
                part.append((upto.get(message.turn_no, message.seq), message))
    for part in parts.values():
        part.sort(key=lambda placed: (placed[0], placed[1].seq))
    alternatives = branching.all_of(connection, key)
    below: dict[int | None, list[int]] = {}
    for each, (part_of, _) in alternatives.items():
        below.setdefault(part_of, []).append(each)
    order: list[int | None] = [None]
    found: list[tuple[Message, int]] = []
    for first in order:  # grows while it is read: those within an alternative follow it
        order += below.get(first, ())
        within, parent = first, 0
        while within is not None and not parent:  # a message after which an alternative began may have been deleted
            within, after = alternatives[within]
            before = bisect(parts[within], after, key=lambda placed: placed[0])
            parent = parts[within][before - 1][1].seq if before else 0
        for _, message in parts[first]:
            found.append((message, parent))
            parent = message.seq
    return found, parts[None][-1][1].seq if parts[None] else 0
