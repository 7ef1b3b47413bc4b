"""`lango-store usage`: the usage and the cost of turns, by groups."""

import re
import sys
from collections.abc import Sequence
from datetime import UTC
from functools import partial
from typing import Annotated, Any

import typer

from lango_store._rooms.usage.commands.chart import print_chart
from lango_store._rooms.usage.report import GROUPS
from lango_store._rooms.usage.values import UsageRow
from lango_store.cli.options import (
    Agent,
    CsvOption,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    example,
    flag,
    open_store,
    option,
    time,
    zone,
)
from lango_store.cli.output import print_bars, print_csv, print_json, print_table, say
from lango_store.cli.root import app

_NAMES = {"user": "user_id", "agent": "agent_id"}
_DECIMALS = 6  # of dollars: sums of floats have more digits, which mean nothing
_NUMBERS = ("turns", "sessions", "cached_tokens", "reasoning_tokens", "output_tokens", "input_tokens", "cost_usd")


def _groups(text: str) -> list[str]:
    groups = [_NAMES.get(name, name) for name in text.split(",") if name]
    if unknown := [name for name in groups if name not in GROUPS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of user, agent, key, root, model, day and month")
    return groups


@app.command(epilog=example("usage --by user,day --since 30d --url sqlite:///agent.db"))
def usage(
    url: UrlOption = None,
    by: Annotated[
        Any,
        option(
            "NAMES",
            "Group by user, agent, key, root (the topmost parent), model, day or month, or several: user,day.",
            parser=_groups,
        ),
    ] = "user",
    since: Annotated[
        str | None, option("TIME", "Only turns saved at or after this time: 2026-11-21, yesterday, or 7d.")
    ] = None,
    until: Annotated[str | None, option("TIME", "Only turns saved before this time.")] = None,
    timezone: Annotated[
        Any, option("ZONE", "Time zone of days, months and times, such as Europe/Oslo. Default: UTC.", parser=zone)
    ] = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    limit: Annotated[int | None, option("NUMBER", "Only the groups with the most tokens.", min=1)] = None,
    chart: Annotated[
        bool, flag("--chart", "Print a bar for each day, with a part for each model. Without --since, of 30 days.")
    ] = False,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """Print the usage of turns by user, day or other groups.

    Token counts are recognized by the names that common providers use.
    The cost is the sum of the costs that are stored with the usage. With
    --json, each group is one line with the sums of all numbers in the
    usage. In a pipe, each group is one line of tab-separated fields without a
    header, in the column order of --csv.

    In --csv, a name that a spreadsheet would take for a formula begins
    with an apostrophe. Use --json for the stored names.
    """
    timezone = timezone or UTC
    if chart:
        if csv_ or json_ or limit is not None:
            raise typer.BadParameter("--chart prints no table: leave out --csv, --json and --limit")
        by, since = ["day", "model"], since or "30d"
    first = None if since is None else time(since, timezone, option="--since")
    end = None if until is None else time(until, timezone, option="--until")
    with open_store(url) as store:
        rows = store.usage(
            by, since=first, until=end, user_id=user, agent_id=agent, key_prefix=prefix, timezone=timezone
        )
    for row in rows:
        row.cost_usd = None if row.cost_usd is None else round(row.cost_usd, _DECIMALS)
    if chart and rows:
        print_chart(rows)
        return
    if limit is not None:
        largest = sorted(rows, key=lambda row: row.input_tokens + row.output_tokens, reverse=True)[:limit]
        rows = [row for row in rows if row in largest]
    columns = {name: partial(_read, name=name) for name in (*by, *_NUMBERS)}
    if json_:
        for row in rows:
            print_json(row)
    elif csv_:
        print_csv(columns, [rows])
    elif not rows:
        say("no turns")
    elif not sys.stdout.isatty():
        print_table(columns, [rows])
    else:
        shown = [name for name in _NUMBERS if name != "cost_usd" or any(row.cost_usd is not None for row in rows)]
        groups = [name.removesuffix("_id") for name in by]
        title = f"Usage by {', '.join(groups)}" if by else "Usage"
        names = [name.replace("_", " ").replace("cost usd", "dollars") for name in shown]
        optional = ("reasoning tokens", "cached tokens", "sessions", "turns")
        cells = [(_group(row, by), *(getattr(row, name) for name in shown)) for row in rows]
        print_bars(title, (" · ".join(groups), *names), cells, optional=optional)


def _read(row: UsageRow, name: str) -> Any:
    """Return a field of a row; dollars have 2 to 6 decimals, and no exponent."""
    value = getattr(row, name)
    return re.sub("0{1,4}$", "", f"{value:.{_DECIMALS}f}") if name == "cost_usd" and value is not None else value


def _group(row: UsageRow, by: Sequence[str]) -> str:
    return " · ".join(getattr(row, name) or "–" for name in by) or "all turns"
