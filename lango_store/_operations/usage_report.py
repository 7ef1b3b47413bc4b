"""Sums of the usage of turns, by user, day and other groups.

The database groups the usages by session, day and model, and joins each group to one JSON text. Python decodes a group
at once, and adds up its fields. This is much faster than SQL that adds up numbers of any name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Moment, dialect_of
from lango_store._operations.binds import SESSION, TURN, of_session
from lango_store._operations.lists import Filter, conditions
from lango_store._rows.encoding import aware, decode_json
from lango_store._values.reports import UsageRow
from lango_store._values.usage import add_usages, cost, tokens
from lango_store.errors import LangoStoreError, quoted

GROUPS: Final = ("key", "root", "user_id", "agent_id", "model", "day", "month")

Prices = Mapping[str, Mapping[str, float]]
"""By model and dotted name of a usage field: the price of a million units, in dollars."""

_AT_ONCE: Final = 1_000


class _Sum:
    """The sum of one group of the report."""

    def __init__(self) -> None:
        self.turns = 0
        self.keys: set[str] = set()
        self.usage: dict[str, Any] = {}
        self.cost: float | None = None


def report(
    connection: sa.Connection,
    _: Moment,
    by: Sequence[str],
    chosen: Filter,
    since: datetime | None,
    until: datetime | None,
    prices: Prices | None,
) -> list[UsageRow]:
    """Add up the usage of turns of the chosen sessions by groups, in the order of the groups."""
    if unknown := [name for name in by if name not in GROUPS]:
        raise ValueError(f"by={quoted(unknown[0])}: give some of {', '.join(GROUPS)}")
    sums: dict[tuple[str | None, ...], _Sum] = {}
    query = _query(connection, chosen, since, until, {"day", "month"} & set(by))
    values = chosen.values(dialect_of(connection), None)
    for key, user_id, agent_id, model, day, turns, usages in connection.execute(query, values):
        group = {"key": key, "root": key.split("/", 1)[0], "user_id": user_id, "agent_id": agent_id, "model": model}
        group |= {"day": day, "month": day and day[:7]}
        each = sums.setdefault(tuple(group[name] for name in by), _Sum())
        each.turns += turns
        each.keys.add(key)
        if usages is None:
            continue
        usage: dict[str, Any] = {}
        add_usages(usage, _decoded(key, usages))
        add_usages(each.usage, [usage])
        spent = cost(usage, None if prices is None or model is None else prices.get(model))
        if spent is not None:
            each.cost = spent + (each.cost or 0.0)
    groups = sorted(sums.items(), key=lambda item: [value or "" for value in item[0]])
    return [
        UsageRow(
            **dict(zip(by, group, strict=True)),
            turns=each.turns,
            sessions=len(each.keys),
            usage=each.usage,
            **tokens(each.usage),
            cost_usd=each.cost,
        )
        for group, each in groups
    ]


def _query(
    connection: sa.Connection, chosen: Filter, since: datetime | None, until: datetime | None, by_day: set[str]
) -> sa.Select[Any]:
    dialect = dialect_of(connection)
    day = dialect.day_of(TURN.c.created_at) if by_day else sa.null()
    model = sa.func.coalesce(dialect.text_member(TURN.c.metadata, "model"), SESSION.c.model)
    groups = [SESSION.c.key, SESSION.c.user_id, SESSION.c.agent_id, model.label("model"), day.label("day")]
    usages = sa.func.aggregate_strings(sa.cast(TURN.c.usage, sa.Text), ",")
    query = sa.select(*groups, sa.func.count(), usages).join_from(
        TURN, SESSION, of_session(SESSION, TURN.c.session_key)
    )
    # A fork has copies of turns, whose usage was spent once.
    query = query.where(sa.or_(SESSION.c.forked_from.is_(None), TURN.c.created_at >= SESSION.c.created_at))
    if since is not None:
        query = query.where(TURN.c.created_at >= aware(since))
    if until is not None:
        query = query.where(TURN.c.created_at < aware(until))
    query = query.where(*conditions(dialect, chosen.named())).group_by(*map(sa.literal_column, "12345"))
    return query.execution_options(yield_per=_AT_ONCE)


def _decoded(key: str, usages: str) -> list[dict[str, Any]]:
    try:
        decoded = decode_json(f"[{usages}]")
    except ValueError as error:
        raise LangoStoreError(
            f"session {quoted(key)}: the usage of a turn cannot be read ({error}): run `lango-store doctor`"
        ) from None
    return [each for each in decoded if isinstance(each, dict)]
