"""Printing: stored text made harmless, tables, JSON, errors, progress bars and the pager."""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import TypeVar

from pydantic import BaseModel
from rich.console import Capture, Console
from rich.pager import SystemPager
from rich.table import Table
from rich.text import Text

from lango_store import errors, schema
from lango_store._values.document import ESCAPES, ON_ONE_LINE, PICTURES

Item = TypeVar("Item")
Columns = Mapping[str, Callable[[Item], str | int | datetime | None]]
"""The columns of a table by name, and how each value is read from an item."""

NOTHING_FOUND = "nothing found"

_NARROW, _WHOLE = 120, 16
"""Terminals with fewer columns leave out the wide columns of a table; values this short are never cut."""

_IN_JSON = {code: text for code, text in ESCAPES.items() if code >= 0x7F}  # JSON itself escapes those below


def printable(text: str) -> str:
    """Return stored text with visible characters in place of those that control a terminal."""
    return text.translate(PICTURES)


def one_line(text: str) -> str:
    """Return printable text without line breaks and tabs."""
    return text.translate(ON_ONE_LINE)


def escaped(text: str) -> str:
    r"""Return stored text as a lossless field between tabs: `\t`, `\n`, `\r`, `\\`, `\u001b`."""
    return text.translate(ESCAPES)


def console() -> Console:
    """Return the console for answers. It reads no markup, since stored text may look like it."""
    is_plain = bool(os.environ.get("NO_COLOR"))
    return Console(color_system=None if is_plain else "auto", highlight=False, markup=False, emoji=False)


def captured(out: Console, *, no_pager: bool = False) -> AbstractContextManager[Capture | None]:
    """Collect what the console prints on a terminal, for `page`; otherwise print it at once.

    The pager opens when all of it is read, so that the database is not open while a person reads.
    """
    if no_pager or not sys.stdout.isatty() or os.environ.get("PAGER") == "":
        return nullcontext()
    return out.capture()


def page(out: Console, text: str) -> None:
    """Print a text that the terminal has room for, and show a longer one in `$PAGER`, else `less`."""
    if text.count("\n") < out.height:
        print(text, end="")
    else:
        os.environ.setdefault("LESS", "-FRX")  # with colors, and the text stays on the screen
        SystemPager().show(text)


def say(text: str) -> None:
    """Print a line that is not an answer, on standard error."""
    print(printable(text), file=sys.stderr)


def print_error(error: Exception) -> None:
    """Print an error as one line on standard error, with the command that helps."""
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
            text = f"{error.fact}; `sessions show` shows what can be read, `doctor` lists all damage"
        case _:
            text = str(error)
    say(f"error: {text}")


def print_json(value: BaseModel) -> None:
    """Print a value as one line of JSON, in ASCII if the encoding of the output lacks a character.

    Characters that control a terminal or reverse a line are escaped.
    """
    text = value.model_dump_json().translate(_IN_JSON)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))
    print(text)


def print_table(columns: Columns[Item], pages: Iterable[Sequence[Item]], *, wide: Collection[str] = ()) -> None:
    """Print a table for each page on a terminal; elsewhere a line for each item, its fields between tabs.

    Args:
        columns: The columns. The first, the key, is folded where the others are cut.
        pages: The items.
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
            table.add_column(name, no_wrap=is_whole, max_width=max(36, out.width // 3) if name == names[0] else None)
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        out.print(table)


def _field(value: str | int | datetime | None) -> str:
    return escaped(value.isoformat() if isinstance(value, datetime) else "" if value is None else str(value))


def _cell(value: str | int | datetime | None, *, is_key: bool) -> Text:
    if isinstance(value, int):
        return Text(f"{value:,}", justify="right")
    text = f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else one_line(value or "")
    return Text(text, no_wrap=not is_key, overflow="fold" if is_key else "ellipsis")


@contextmanager
def progress(description: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar if standard error is a terminal, and yield a function that updates it."""
    if quiet or not sys.stderr.isatty():
        yield lambda **state: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Answers are printed above the bar, but only on a terminal: elsewhere rich would print them on standard error.
    redirect = sys.stdout.isatty()
    out = Console(stderr=True)
    with Progress(*columns, console=out, redirect_stdout=redirect, transient=total is None) as bar:
        task = bar.add_task(description, total=total)
        yield lambda **state: bar.update(task, **state)


@contextmanager
def migration_progress(action: str) -> Iterator[schema.OnProgress]:
    """Show the progress of a migration, table by table, if standard error is a terminal."""
    with progress(action) as update:
        yield lambda state: update(description=f"{action} {state.table}", completed=state.rows, total=state.total)
