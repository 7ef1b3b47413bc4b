"""Rows for people and for programs: a table as wide as the terminal, or whole fields between tabs in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from lango_store.cli.text import as_field, on_one_line

Item = TypeVar("Item")

_GAP = 2


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column: how an item stands in it for programs, and for people where that differs."""

    name: str
    text: Callable[[Item], str]
    shown: Callable[[Item], str] | None = None
    right: bool = False
    least: int | None = None
    """The width that it can be cut down to; None for one that is whole or left out."""

    def cell(self, item: Item) -> str:
        """Return what a person sees of an item."""
        return on_one_line((self.shown or self.text)(item))


@dataclass(frozen=True)
class Listing(Generic[Item]):
    """Columns in their order. The first, the `key`, is always whole; `importance` names those that stay the longest."""

    columns: Sequence[Column[Item]]
    importance: Sequence[str]

    def print(self, pages: Iterable[Sequence[Item]]) -> None:
        """Print items page by page: a table on a terminal, laid out by its first page; elsewhere lines of fields."""
        if not sys.stdout.isatty():
            for page in pages:
                lines = ("\t".join(as_field(column.text(item)) for column in self.columns) for item in page)
                sys.stdout.write("".join(f"{line}\n" for line in lines))
            return
        layout: _Layout[Item] | None = None
        for page in pages:
            if layout is None:
                layout = _Layout(self, page, Console().width)
                sys.stdout.write(layout.header())
            sys.stdout.write("".join(map(layout.line, page)))
            sys.stdout.flush()


class _Layout(Generic[Item]):
    """Which columns a terminal has room for, and how wide they are."""

    def __init__(self, listing: Listing[Item], page: Sequence[Item], width: int) -> None:
        key, *others = listing.columns
        natural = {
            column.name: max([len(column.name), *(cell_len(column.cell(item)) for item in page)])
            for column in listing.columns
        }
        by_importance = sorted(others, key=lambda column: listing.importance.index(column.name))
        first = by_importance[0]
        # A key that leaves no room for anything gets a line of its own, and the others stay aligned.
        beside = width - _GAP - natural[first.name]
        fitting = [size for size in (cell_len(key.cell(item)) for item in page) if size <= beside]
        self._widths = {key.name: max([len(key.name), *fitting])}
        room = width - self._widths[key.name]
        for column in by_importance:
            least = natural[column.name] if column.least is None else min(column.least, natural[column.name])
            if least + _GAP <= room:
                self._widths[column.name] = least
                room -= least + _GAP
        for column in by_importance:
            if column.name in self._widths:
                wider = min(room, natural[column.name] - self._widths[column.name])
                self._widths[column.name] += wider
                room -= wider
        self._columns = [column for column in listing.columns if column.name in self._widths]

    def header(self) -> str:
        return self._line([column.name for column in self._columns])

    def line(self, item: Item) -> str:
        return self._line([column.cell(item) for column in self._columns])

    def _line(self, cells: list[str]) -> str:
        key, *others = cells
        width, *widths = (self._widths[column.name] for column in self._columns)
        alone = cell_len(key) > width
        parts = [" " * width if alone else _padded(key, width, right=False)]
        for cell, column, wide in zip(others, self._columns[1:], widths, strict=True):
            parts.append(_padded(cell, wide, right=column.right))
        line = (" " * _GAP).join(parts).rstrip()
        return f"{key}\n{line}\n" if alone else f"{line}\n"


def _padded(cell: str, width: int, *, right: bool) -> str:
    size = cell_len(cell)
    if size > width:
        return set_cell_size(cell, width - 1) + "…"
    return " " * (width - size) + cell if right else cell + " " * (width - size)
