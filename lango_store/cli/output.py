"""Output of the commands: escaped text, tables, JSON, errors, progress bars and the pager."""

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Capture, Console
from rich.pager import SystemPager
from rich.table import Table
from rich.text import Text

from lango_store import Page, errors, schema
from lango_store._rooms.documents.characters import ESCAPES, ON_ONE_LINE, PICTURES

Item = TypeVar("Item")
Stored = TypeVar("Stored", bound=BaseModel)
Columns = Mapping[str, Callable[[Item], str | int | datetime | None]]
"""The columns of a table: each name with a function that reads the value from an item."""

NOTHING_FOUND = "nothing found"

_MIN_BAR, _MAX_BAR, _MIN_NAME = 6, 30, 8
"""The least and greatest width of a table's bars, and the least of its names. Without room, a table has no bars."""

_NARROW, _WHOLE = 120, 16
"""Terminals narrower than `_NARROW` omit the wide columns of a table. Values up to `_WHOLE` wide are never cut."""

_FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # spreadsheets also accept the wide forms

_IN_JSON = {code: text for code, text in ESCAPES.items() if code >= 0x7F}  # JSON already escapes lower codes


def printable(text: str) -> str:
    """Return stored text with each terminal control character replaced by a visible one."""
    return text.translate(PICTURES)


def one_line(text: str) -> str:
    """Return printable text on one line: line breaks and tabs are replaced too."""
    return text.translate(ON_ONE_LINE)


def escaped(text: str) -> str:
    r"""Return stored text as one field of a tab-separated line, with escapes such as `\t` for control characters."""
    return text.translate(ESCAPES)


def quantity(count: int, noun: str) -> str:
    """Return a number with its noun: "1 turn", "2 turns", "1,000 batches"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def rows_by_table(counts: Mapping[str, int]) -> str:
    """Describe numbers of rows by table."""
    return ", ".join(f"{count:,} {table}" for table, count in sorted(counts.items())) or "no rows"


def console() -> Console:
    """Return the console for results. Markup is off, because stored text may contain it."""
    is_plain = bool(os.environ.get("NO_COLOR"))
    return Console(color_system=None if is_plain else "auto", highlight=False, markup=False, emoji=False)


def captured(out: Console, *, no_pager: bool = False) -> AbstractContextManager[Capture | None]:
    """On a terminal, collect the output of the console for `page`; elsewhere, print it at once.

    The pager opens after all output is collected, so that the database is closed while a person reads.
    """
    if no_pager or not sys.stdout.isatty() or os.environ.get("PAGER") == "":
        return nullcontext()
    return out.capture()


def page(out: Console, text: str) -> None:
    """Print the text if it fits on the terminal; otherwise show it in `$PAGER`, by default `less`."""
    if text.count("\n") < out.height:
        print(text, end="")
    else:
        os.environ.setdefault("LESS", "-FRX")  # show colors, and leave the text on the screen
        SystemPager().show(text)


def say(text: str) -> None:
    """Print a line about the run, rather than a result, on standard error."""
    print(printable(text), file=sys.stderr)


def print_error(error: Exception) -> None:
    """Print an error and what to do about it, as one line on standard error."""
    match error:
        case errors.SessionExpired():
            text = f"{error.fact}: `sessions touch` revives it, `sessions show --expired` shows it"
        case errors.SessionNotFound():
            text = f"{error.fact}: check the key; `sessions list` lists the keys"
        case errors.SessionExists():
            text = f"{error.fact} and was not changed: delete it first with `sessions delete`"
        case errors.SchemaOutOfDate():
            text = f"{error.fact}: {error.remedy}"
        case errors.DamagedMessage():
            text = f"{error.fact}; `sessions show` shows the readable messages, `doctor` lists all damage"
        case _:
            text = str(error)
    say(f"error: {text}")


def print_json(value: BaseModel) -> None:
    """Print a value as one line of JSON, in ASCII if the output encoding lacks a character.

    Characters that control a terminal or reverse a line are escaped.
    """
    text = value.model_dump_json().translate(_IN_JSON)
    try:
        text.encode(sys.stdout.encoding or "utf-8")  # a StringIO has none
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))
    print(text)


def all_pages(method: Callable[..., Page[Stored]], **which: Any) -> Iterator[list[Stored]]:
    """Yield the items of each page of a list; `method` takes `limit`, `cursor` and these filters."""
    cursor = None
    while True:
        page = method(limit=500, cursor=cursor, **which)
        yield page.items
        if (cursor := page.next) is None:
            return


def print_items(
    columns: Columns[Stored], pages: Iterable[Sequence[Stored]], *, as_json: bool, none: str, as_csv: bool = False
) -> None:
    """Print values as lines of JSON, as CSV or as tables; say `none` in place of an empty table."""
    found = False
    if as_csv and not as_json:
        print_csv(columns, pages)
        return
    for page in pages:
        found |= bool(page)
        if as_json:
            for item in page:
                print_json(item)
        elif page:
            print_table(columns, [page])
    if not found and not as_json:
        say(none)


def print_csv(columns: Columns[Item], pages: Iterable[Sequence[Item]]) -> None:
    """Print a header and a line of CSV for each item."""
    writer = csv.writer(sys.stdout)
    writer.writerow(columns)
    for page in pages:
        writer.writerows([_csv_field(read(item)) for read in columns.values()] for item in page)


def _csv_field(value: Any) -> Any:
    """Replace control characters, which a terminal would obey, and quote formulas, which a spreadsheet would run."""
    if isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip()[:1] in _FORMULAS else text


def print_bars(
    title: str,
    columns: Sequence[str],
    rows: Iterable[tuple[str | int | float | None, ...]],
    *,
    optional: Sequence[str] = (),
) -> None:
    """Print names and numbers as a table, with a bar for the last number if there is room.

    Columns in `optional` are left out, in this order, until the table fits on the terminal.
    """
    names, *numbers = zip(*rows, strict=True)
    texts = [[printable(str(name)) for name in names], *map(_formatted, numbers)]
    cells = dict(zip(columns, texts, strict=True))
    widths = {column: max(map(cell_len, [*column.split(), *cells[column]])) for column in columns}
    out = console()
    first = columns[0]
    widths[first] = min(widths[first], _max_key_width(out))
    room = out.width - sum(widths.values()) - 2 * len(widths)  # for a bar, after the gap of each column
    for column in optional:
        if room < -2:
            room += widths.pop(column) + 2
    if room < -2:
        widths[first] = max(widths[first] + room + 2, _MIN_NAME)
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column, width in widths.items():
        table.add_column(column, width=width, justify="left" if column == first else "right", overflow="fold")
    lengths = [float(number or 0) for number in numbers[-1]]
    for index, length in enumerate(lengths):
        bar = [Bar(max(lengths) or 1.0, 0, length, width=min(room, _MAX_BAR))] if room >= _MIN_BAR else []
        table.add_row(*(Text(cells[column][index]) for column in widths), *bar)
    out.print()
    out.print(table)


def _formatted(numbers: Sequence[int | float | None]) -> list[str]:
    """Format a column of numbers. Fractions get 2 to 6 decimals, so that the smallest one shows two digits."""
    decimals = 0
    if fractions := [abs(number) for number in numbers if isinstance(number, float)]:
        least = min(filter(None, fractions), default=1)
        decimals = min(max(2, 1 - math.floor(math.log10(least))), 6)
    return ["–" if number is None else f"{number:,.{decimals}f}" for number in numbers]


def print_table(columns: Columns[Item], pages: Iterable[Sequence[Item]], *, wide: Collection[str] = ()) -> None:
    """Print a table for each page on a terminal, and tab-separated lines elsewhere.

    Args:
        columns: The columns. Long values of the first column, the key, are wrapped; those of other columns are cut.
        pages: The items, one table for each page.
        wide: Names of columns that only a wide terminal shows.
    """
    if not sys.stdout.isatty():
        for item in (item for page in pages for item in page):
            print("\t".join(_field(read(item)) for read in columns.values()))
        return
    out = console()
    names = [name for name in columns if out.width >= _NARROW or name not in wide]
    for page in pages:
        table = Table(box=None, pad_edge=False)
        cells = [[_cell(columns[name](item), is_key=name == names[0]) for item in page] for name in names]
        for name, column in zip(names, cells, strict=True):
            is_whole = name == names[0] or all(cell.cell_len <= _WHOLE for cell in column)
            table.add_column(name, no_wrap=is_whole, max_width=_max_key_width(out) if name == names[0] else None)
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        out.print(table)


def _max_key_width(out: Console) -> int:
    return max(36, out.width // 3)


def _field(value: str | int | datetime | None) -> str:
    return escaped(value.isoformat() if isinstance(value, datetime) else "" if value is None else str(value))


def _cell(value: str | int | datetime | None, *, is_key: bool) -> Text:
    if isinstance(value, int):
        return Text(f"{value:,}", justify="right")
    text = f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else one_line(value or "")
    return Text(text, no_wrap=not is_key, overflow="fold" if is_key else "ellipsis")


@contextmanager
def progress(description: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar if standard error is a terminal. Yields a function that updates the bar."""
    if quiet or not sys.stderr.isatty():
        yield lambda **state: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Results are printed above the bar, but only on a terminal: elsewhere rich would print them on standard error.
    redirect = sys.stdout.isatty()
    out = Console(stderr=True)
    with Progress(*columns, console=out, redirect_stdout=redirect, transient=total is None) as bar:
        task = bar.add_task(description, total=total)
        yield lambda **state: bar.update(task, **state)


@contextmanager
def migration_progress(action: str) -> Iterator[schema.OnProgress]:
    """Show the progress of a migration for each table, if standard error is a terminal."""
    with progress(action) as update:
        yield lambda state: update(description=f"{action} {state.table}", completed=state.rows, total=state.total)
