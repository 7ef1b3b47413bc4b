"""How far a command is: a bar on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def progress(doing: str, total: int | None, *, transient: bool = False) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=transient)
    with bar:  # which writes its line anew at the end, over the ^C of the terminal
        yield bar, bar.add_task(doing, total=total)
