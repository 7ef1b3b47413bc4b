"""Tokens per day and model as bars on a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Final

from rich.table import Table
from rich.text import Text

from lango_store._rooms.usage.values import UsageRow
from lango_store.cli.output import console, one_line

_OTHERS: Final = "other models"
_STYLES: Final = (("█", "cyan"), ("▓", "magenta"), ("▒", "yellow"), ("░", "green"), ("▚", "blue"), ("·", "dim"))
"""A character and a color for each model; the last one is of all others. Without colors, the characters differ."""


def print_chart(rows: Sequence[UsageRow]) -> None:
    """Print a bar for each day, from the first to the last one, with a part for each model."""
    models = Counter[str]()
    for row in rows:
        models[row.model or "–"] += _tokens(row)
    styles = dict(zip([name for name, _ in models.most_common(len(_STYLES) - 1)], _STYLES, strict=False))
    days = {day: Counter[str]() for day in _days(rows)}
    dollars = dict.fromkeys(days, 0.0)
    for row in rows:
        model = row.model or "–"
        days[str(row.day)][model if model in styles else _OTHERS] += _tokens(row)
        dollars[str(row.day)] += row.cost_usd or 0
    if len(models) > len(styles):
        styles[_OTHERS] = _STYLES[-1]
    out = console()
    greatest = max(counts.total() for counts in days.values())
    numbers = [f"{counts.total():,}" for counts in days.values()]
    costs = [f"{dollars[day]:,.2f}" if dollars[day] else "" for day in days]
    width = max(out.width - len("2026-11-21") - max(map(len, [*numbers, "tokens"])) - max(map(len, costs)) - 10, 10)
    table = Table(box=None, pad_edge=False, title="Tokens per day", title_justify="left")
    for name in ("day", "", "tokens", *(["dollars"] if any(costs) else [])):
        table.add_column(name, justify="right" if name in ("tokens", "dollars") else "left", no_wrap=True)
    for (day, counts), *cells in zip(days.items(), numbers, costs, strict=True):
        bar, end, drawn = Text(), 0, 0
        for model, (character, color) in styles.items():
            end += counts[model]
            position = round(end * width / (greatest or 1))
            bar.append(character * (position - drawn), color)
            drawn = position
        table.add_row(day, bar, *cells[: len(table.columns) - 2])
    out.print(table)
    for model, (character, color) in styles.items():
        out.print(Text.assemble((character * 2, color), f" {one_line(model)}"))


def _tokens(row: UsageRow) -> int:
    return row.input_tokens + row.output_tokens


def _days(rows: Sequence[UsageRow]) -> Iterator[str]:
    found = [date.fromisoformat(str(row.day)) for row in rows]
    for number in range((max(found) - min(found)).days + 1):
        yield str(min(found) + timedelta(days=number))
