"""A store summed up, quickly: from the sessions' counters, and from a sample of messages."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._operations.binds import MESSAGE, SESSION, of_session
from lango_store._values.reports import AgentStats, Stats
from lango_store.errors import LangoStoreError
from lango_store.tables import Base, expired_at

EXACT_UP_TO: Final = 20_000
"""So many messages are counted by role one by one; of more, a sample is."""

_WINDOWS: Final = 400
_WINDOW: Final = 50
_SPANS: Final = {
    "within an hour": timedelta(hours=1),
    "within a day": timedelta(days=1),
    "within a week": timedelta(weeks=1),
    "within 30 days": timedelta(days=30),
}


def summed_up(connection: sa.Connection, now: datetime) -> Stats:
    """Return what a store holds at one moment."""
    sums = (sa.func.sum(each) for each in (SESSION.c.message_count, SESSION.c.token_count, SESSION.c.record_count))
    by_agent = sa.select(SESSION.c.agent_id, sa.func.count(), *sums).group_by(SESSION.c.agent_id)
    found = connection.execute(by_agent).all()
    agents = [
        AgentStats(
            agent_id=None if agent_id is None else _text(agent_id),
            sessions=sessions,
            messages=_number(number),
            tokens=_number(total),
        )
        for agent_id, sessions, number, total, _ in found
    ]
    agents.sort(key=lambda each: (-each.messages, each.agent_id or ""))
    expiring = _expiring(connection, now)
    total = sum(each.messages for each in agents)
    rows = total + sum(_number(row[-1]) for row in found)
    return Stats(
        sessions=sum(each.sessions for each in agents),
        expired=expiring["expired"],
        messages=total,
        tokens=sum(each.tokens for each in agents),
        bytes=dialect_of(connection).bytes_on_disk(connection, list(Base.metadata.tables)),
        agents=agents,
        roles=_roles(connection) if rows <= EXACT_UP_TO else _sampled_roles(connection, rows),
        roles_estimated=rows > EXACT_UP_TO,
        expiring=expiring,
    )


_DAMAGED: Final = "the sessions' counters cannot be summed up: `lango-store doctor` says which are wrong"


def _number(stored: Any) -> int:
    try:
        return int(stored)
    except (ValueError, TypeError, OverflowError):
        raise LangoStoreError(_DAMAGED) from None


def _text(stored: Any) -> str:
    """Show what stands where a text should."""
    return stored.decode("utf-8", "backslashreplace") if isinstance(stored, bytes) else str(stored)


def _expiring(connection: sa.Connection, now: datetime) -> dict[str, int]:
    cases = [(SESSION.c.expires_at.is_(None), "never"), (expired_at(now), "expired")]
    cases += [(expired_at(now + span), name) for name, span in _SPANS.items()]
    when = sa.case(*((condition, sa.literal_column(f"'{name}'")) for condition, name in cases), else_="later")
    counted = connection.execute(sa.select(when, sa.func.count()).group_by(sa.literal_column("1")))
    found: dict[str, int] = {row[0]: row[1] for row in counted}
    return {name: found.get(name, 0) for name in ("expired", *_SPANS, "later", "never")}


def _roles(connection: sa.Connection) -> dict[str, int]:
    role = sa.type_coerce(MESSAGE.c.role, sa.Text)
    counted = sa.select(role, sa.func.count()).group_by(role)
    found: dict[str, int] = {_text(row[0]): row[1] for row in connection.execute(counted)}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _sampled_roles(connection: sa.Connection, total: int) -> dict[str, int]:
    """Count in windows spread evenly over all logs, in the order of the keys: index ranges, whatever the size."""
    rows = (SESSION.c.message_count + SESSION.c.record_count).label("rows")
    running = sa.func.sum(rows).over(order_by=SESSION.c.key)
    numbered = sa.select(SESSION.c.key, SESSION.c.last_seq, rows, running.label("upto")).subquery()
    step = total // _WINDOWS
    last = sa.cast(numbered.c.upto, sa.BigInteger) - 1
    before = sa.cast(numbered.c.upto - numbered.c.rows, sa.BigInteger)
    # A session holds a window if a multiple of the step falls into its part of all logs.
    holds = sa.and_(numbered.c.rows > 0, last - last % step >= before)
    chosen = sa.select(numbered.c.key, numbered.c.last_seq, numbered.c.rows, before).where(holds)
    seen: Counter[str] = Counter()
    windows = 0
    for key, *counters in connection.execute(chosen.limit(2 * _WINDOWS)).all():
        last_seq, count, start = map(_number, counters)
        first = -start % step
        for place in range(first, count, step):
            at = place * last_seq // count  # seq has gaps where messages were taken away
            role = sa.type_coerce(MESSAGE.c.role, sa.Text)
            window = sa.select(role).where(of_session(MESSAGE, key), MESSAGE.c.seq > at).limit(_WINDOW)
            seen.update(map(_text, connection.execute(window.order_by(MESSAGE.c.seq)).scalars()))
            windows += 1
            if windows > 2 * _WINDOWS:  # counters that are damaged
                raise LangoStoreError(_DAMAGED)
    scale = total / max(1, seen.total())
    return {role: round(number * scale) for role, number in seen.most_common()}
