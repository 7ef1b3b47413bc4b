"""How far a command is: a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lango_store import schema


@contextmanager
def progress(doing: str, total: int | None, *, transient: bool = False) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=transient)
    with bar:  # which writes its line anew at the end, over the ^C of the terminal
        yield bar, bar.add_task(doing, total=total)


@contextmanager
def migrating(doing: str = "changing") -> Iterator[schema.OnProgress | None]:
    """Show a bar on a terminal from the first rows that a migration reports on, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as stack:
        shown: list[tuple[Progress, TaskID]] = []

        def on_progress(found: schema.Progress) -> None:
            if not shown:
                shown.append(stack.enter_context(progress("", found.total)))
            bar, task = shown[0]
            bar.update(task, description=f"{doing} {found.table}", completed=found.rows, total=found.total)

        yield on_progress
