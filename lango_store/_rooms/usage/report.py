"""Sums of the usage of turns, by user, day and other groups.

The database joins the usages of each session to one JSON text. Python decodes a session at once, and adds up its
fields. This is much faster than SQL that adds up numbers of any name.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, tzinfo
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Moment, dialect_of
from lango_store._operations.binds import SESSION, TURN, of_session
from lango_store._operations.session.lists import Filter, conditions
from lango_store._operations.session_tables import with_aside
from lango_store._rooms.usage.values import UsageRow
from lango_store._rows.encoding import aware, decode_json
from lango_store._values.usage import TOKENS, add_usage, cost, numbers_by_path, numbers_of, tokens, total
from lango_store.errors import DamagedDatabase, quoted

GROUPS: Final = ("key", "root", "user_id", "agent_id", "model", "day", "month")

Prices = Mapping[str, Mapping[str, float]]
"""By model and dotted name of a usage field: the price of a million units, in dollars."""

_AT_ONCE: Final = 1_000
_DAY: Final = len("2026-11-21")
_COMMA: Final[Any] = sa.cast(sa.literal(","), sa.Text)  # another role can define string_agg(text, varchar)


class _Sum:
    """The sum of one group of the report."""

    def __init__(self) -> None:
        self.turns = 0
        self.keys: set[str] = set()
        self.parts: defaultdict[tuple[str | None, tuple[str, ...]], dict[str, Any]] = defaultdict(dict)
        """Sums of usages, one for each combination of a model and the names of the usage's fields."""

    def add(self, key: str, model: str | None, usages: Sequence[dict[str, Any]]) -> None:
        """Add the usages of turns of a session."""
        self.turns += len(usages)
        self.keys.add(key)
        for usage in usages:
            add_usage(self.parts[model, tuple(usage)], usage)

    def row(self, group: Mapping[str, str | None], prices: Prices) -> UsageRow:
        """Return the row of the report."""
        numbers = {part: numbers_by_path(usage) for part, usage in self.parts.items()}
        costs = [cost(each, prices.get(model or "")) for (model, names), each in numbers.items() if names]
        spent = [each for each in costs if each is not None]
        return UsageRow(
            **group,
            turns=self.turns,
            sessions=len(self.keys),
            usage=numbers_of(total(self.parts.values())),
            **dict(zip(TOKENS, map(sum, zip(*map(tokens, numbers.values()), strict=True)), strict=True)),
            cost_usd=sum(spent) if spent else None,
        )


def report(
    connection: sa.Connection,
    _: Moment,
    chosen: Filter,
    by: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    prices: Prices | None,
    zone: tzinfo,
) -> list[UsageRow]:
    """Return the usage of the chosen sessions' turns, summed up by group and sorted; skip turns that forks copied."""
    if unknown := [name for name in by if name not in GROUPS]:
        raise ValueError(f"by={quoted(unknown[0])}: give some of {', '.join(GROUPS)}")
    fields = set(by) if prices is None else {*by, "model"}
    of_turns = functools.partial(_query, connection, chosen, since, until, fields, minutes=zone is not UTC)
    values = chosen.values(dialect_of(connection), None)
    try:
        with ExitStack() as stack:
            results = (stack.enter_context(connection.execute(of_turns(each), values)) for each in with_aside(TURN))
            sums = _sums(chain.from_iterable(results), by, zone)
        groups = sorted(sums.items(), key=lambda item: [value or "" for value in item[0]])
        return [each.row(dict(zip(by, group, strict=True)), prices or {}) for group, each in groups]
    except OverflowError:
        raise DamagedDatabase("the usage of turns cannot be summed up: a number is too large") from None


def _sums(rows: Iterable[sa.Row[Any]], by: Sequence[str], zone: tzinfo) -> dict[tuple[str | None, ...], _Sum]:
    sums: defaultdict[tuple[str | None, ...], _Sum] = defaultdict(_Sum)
    for row in rows:
        key, model = row.key, row.session_model if row.turn_model is None else row.turn_model
        group = {"key": key, "root": key.split("/", 1)[0], "model": model}
        group |= {"user_id": row.user_id, "agent_id": row.agent_id}
        for day, usages in _by_day(row.days, _decoded(key, row.usages, row.turns), zone):
            group |= {"day": day, "month": day and day[:7]}
            sums[tuple([group[name] for name in by])].add(key, model, usages)
    return sums


def _by_day(days: str | None, usages: list[Any], zone: tzinfo) -> Iterable[tuple[str | None, list[Any]]]:
    if days is not None and zone is not UTC:
        days = ",".join(_local_day(minute, zone) for minute in days.split(","))
    if days is None or days.count(day := days[:_DAY]) == len(usages):  # usually, all turns are of one day
        return [(days and day, usages)]
    groups = defaultdict(list)
    for day, usage in zip(days.split(","), usages, strict=True):
        groups[day].append(usage)
    return groups.items()


@functools.lru_cache(10_000)
def _local_day(minute: str, zone: tzinfo) -> str:
    return datetime.fromisoformat(minute).replace(tzinfo=UTC).astimezone(zone).date().isoformat()


def _query(
    connection: sa.Connection,
    chosen: Filter,
    since: datetime | None,
    until: datetime | None,
    by: set[str],
    turns: sa.Table,
    *,
    minutes: bool,
) -> sa.Select[Any]:
    """Return a query with one row for each session, or for each of its models, with all days and usages."""
    dialect = dialect_of(connection)
    model = dialect.text_member(turns.c.metadata, "model") if "model" in by else sa.null()
    day = dialect.day_of(turns.c.created_at, minute=minutes)
    days = sa.func.aggregate_strings(day, _COMMA) if {"day", "month"} & by else sa.null()
    query = sa.select(
        SESSION.c.key,
        SESSION.c.user_id,
        SESSION.c.agent_id,
        SESSION.c.model.label("session_model"),
        model.label("turn_model"),
        days.label("days"),
        sa.func.count().label("turns"),
        sa.func.aggregate_strings(sa.func.coalesce(sa.cast(turns.c.usage, sa.Text), "{}"), _COMMA).label("usages"),
    ).join_from(turns, SESSION, of_session(SESSION, turns.c.session_key))
    query = query.where(turns.c.copied_from.is_(None))  # the usage of a copied turn was spent only once
    if since is not None:
        query = query.where(turns.c.created_at >= aware(since, "since"))
    if until is not None:
        query = query.where(turns.c.created_at < aware(until, "until"))
    query = query.where(*conditions(dialect, chosen.names)).group_by(SESSION.c.key)
    return (query.group_by("turn_model") if "model" in by else query).execution_options(yield_per=_AT_ONCE)


def _decoded(key: str, usages: str, turns: int) -> list[dict[str, Any]]:
    try:
        decoded: list[dict[str, Any]] = decode_json(f"[{usages}]")
        if len(decoded) != turns or {*map(type, decoded)} != {dict}:
            raise ValueError("is not a JSON object")
    except ValueError as error:
        raise DamagedDatabase(
            f"session {quoted(key)}: the usage of a turn cannot be read ({error}): run `lango-store doctor`"
        ) from None
    return decoded
