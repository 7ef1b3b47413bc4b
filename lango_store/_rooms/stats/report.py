"""Statistics of a store, from the counters of its sessions and the lists of its payloads; messages are not read."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import NOW, SESSION, time
from lango_store._rooms.stats import payload_sizes
from lango_store._rooms.stats.values import AgentStats, Stats
from lango_store.errors import DamagedDatabase
from lango_store.tables import Base, expired_at

_SPANS: Final = {
    "within an hour": timedelta(hours=1),
    "within a day": timedelta(days=1),
    "within a week": timedelta(weeks=1),
    "within 30 days": timedelta(days=30),
}


_COUNTERS: Final = (SESSION.c.message_count, SESSION.c.token_count, SESSION.c.record_count, SESSION.c.turn_count)
_sums: Final = Statement(
    lambda _: (
        sa.select(SESSION.c.agent_id, sa.func.count(), *(sa.func.sum(each) for each in _COUNTERS))
        .select_from(SESSION)
        .group_by(SESSION.c.agent_id)
    )
)


CountWaiting = Callable[[sa.Connection, datetime], dict[str, Any]]
"""Counts work that waits, by the names of the fields of `Stats`."""


def sum_up(connection: sa.Connection, now: datetime, *counts: CountWaiting) -> Stats:
    """Return the numbers of sessions, messages and tokens per agent, and totals of the whole store.

    `counts` are the functions of rooms that count work that waits.
    """
    rows = _sums.run(connection, {})
    agents = [
        AgentStats(agent_id=_text(agent_id), sessions=sessions, messages=_number(messages), tokens=_number(tokens))
        for agent_id, sessions, messages, tokens, *_ in rows
    ]
    agents.sort(key=lambda each: (-each.messages, each.agent_id or ""))
    expiring = _count_expiring(connection, now)
    payload_bytes, whole = payload_sizes.sum_up(connection)
    return Stats(
        sessions=sum(each.sessions for each in agents),
        expired=expiring["expired"],
        turns=sum(_number(row[-1]) for row in rows),
        messages=sum(each.messages for each in agents),
        records=sum(_number(row[-2]) for row in rows),
        tokens=sum(each.tokens for each in agents),
        bytes=dialect_of(connection).bytes_on_disk(connection, list(Base.metadata.tables)),
        payload_bytes=payload_bytes,
        saved_bytes=whole - payload_bytes,
        agents=agents,
        expiring=expiring,
        **{name: number for count in counts for name, number in count(connection, now).items()},
    )


def _number(stored: Any) -> int:
    try:
        return int(stored)
    except (ValueError, TypeError, OverflowError):
        raise DamagedDatabase(
            "the sessions' counters cannot be summed up: `lango-store doctor` says which are wrong"
        ) from None


def _text(stored: Any) -> str | None:
    """Return a text; for text that is not UTF-8, escape the invalid bytes."""
    return stored.decode("utf-8", "backslashreplace") if isinstance(stored, bytes) else stored


def _build_expiring(_: Dialect) -> sa.Executable:
    cases = [(SESSION.c.expires_at.is_(None), "never"), (expired_at(NOW), "expired")]
    cases += [(expired_at(time(_bind(name))), name) for name in _SPANS]
    when = sa.case(*((condition, _quoted(name)) for condition, name in cases), else_=_quoted("later"))
    return sa.select(when, sa.func.count()).select_from(SESSION).group_by(sa.literal_column("1"))


def _bind(name: str) -> str:
    return name.replace(" ", "_")


def _quoted(name: str) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{name}'")


_expiring: Final = Statement(_build_expiring)


def _count_expiring(connection: sa.Connection, now: datetime) -> dict[str, int]:
    encode = dialect_of(connection).time
    ends = {_bind(name): encode(now + span) for name, span in _SPANS.items()}
    counts: dict[str, int] = dict(_expiring.run(connection, {"now": encode(now)} | ends))
    return {name: counts.get(name, 0) for name in ("expired", *_SPANS, "later", "never")}
