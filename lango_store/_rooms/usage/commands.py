"""`lango-store usage`: the usage and the cost of turns, by groups."""

import csv
import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

import typer

from lango_store._rooms.usage.report import GROUPS
from lango_store._rooms.usage.values import UsageRow
from lango_store.cli.options import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    example,
    flag,
    open_store,
    option,
    time_option,
)
from lango_store.cli.output import print_bars, print_json, print_table, printable, say
from lango_store.cli.root import app

_NAMES = {"user": "user_id", "agent": "agent_id"}
_FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # spreadsheets also accept the wide forms
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
    since: Annotated[Any, time_option("Only turns saved since this time: 2026-11-21, or 30d ago.")] = None,
    until: Annotated[Any, time_option("Only turns saved before this time.")] = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    csv_: Annotated[bool, flag("--csv", "Print CSV with a header.")] = False,
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
    with open_store(url) as store:
        rows = store.usage(by, since=since, until=until, user_id=user, agent_id=agent, key_prefix=prefix)
    if json_:
        for row in rows:
            print_json(row)
    elif csv_:
        writer = csv.writer(sys.stdout)
        writer.writerow([*by, *_NUMBERS])
        writer.writerows([_cell(getattr(row, name)) for name in (*by, *_NUMBERS)] for row in rows)
    elif not rows:
        say("no turns")
    elif not sys.stdout.isatty():
        print_table({name: attrgetter(name) for name in (*by, *_NUMBERS)}, [rows])
    else:
        shown = [name for name in _NUMBERS if name != "cost_usd" or any(row.cost_usd is not None for row in rows)]
        groups = [name.removesuffix("_id") for name in by]
        title = f"Usage by {', '.join(groups)}" if by else "Usage"
        names = [name.replace("_", " ").replace("cost usd", "dollars") for name in shown]
        optional = ("reasoning tokens", "cached tokens", "sessions", "turns")
        cells = [(_group(row, by), *(getattr(row, name) for name in shown)) for row in rows]
        print_bars(title, (" · ".join(groups), *names), cells, optional=optional)


def _cell(value: Any) -> Any:
    """Replace control characters, which a terminal would obey, and quote formulas, which a spreadsheet would run."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip()[:1] in _FORMULAS else text


def _group(row: UsageRow, by: Sequence[str]) -> str:
    return " · ".join(getattr(row, name) or "–" for name in by) or "all turns"
