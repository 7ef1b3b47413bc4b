"""`python -m benchmarks --peers`: this store and other stores against the strict floor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import psycopg
import sqlalchemy as sa
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import leases
from benchmarks.figures import write_table
from benchmarks.lines import LINES
from benchmarks.peers import FLOORS, OURS, SIDES
from benchmarks.turns import Worker, in_turns

WIDTH = 165  # of the tables, even if the terminal is narrower


@dataclass(frozen=True)
class Measured:
    """One measurement: the seconds of the rounds of each side, and sides with wrong results."""

    seconds: dict[str, list[float]]
    wrong: dict[str, str]

    def ratio(self, name: str, choose: Callable[[list[float]], float]) -> float:
        """Return the ratio of a side's least or median time to that of its floor."""
        return choose(self.seconds[name]) / choose(self.seconds[SIDES[name].floor])

    def compared(self) -> list[str]:
        """Return the sides without floors and without `AsyncStore`, the fastest first."""
        names = [each for each in self.seconds if not (each in FLOORS or SIDES[each].is_async or each in self.wrong)]
        return sorted(names, key=lambda each: min(self.seconds[each]))

    def ahead(self) -> str:
        """Return the name of the fastest side except the floors, and how far it is ahead."""
        first, *others = self.compared()
        if not others:
            return f"{first}, alone"
        if first == OURS:
            times = min(self.seconds[others[0]]) / min(self.seconds[OURS])
            return f"{OURS}, {times:.2f} times as fast as the next, {others[0]}"
        return f"{first}, {min(self.seconds[OURS]) / min(self.seconds[first]):.2f} times as fast as {OURS}"


def compare(
    console: Console,
    database: str,
    url: str,
    *,
    fsync: str,
    rounds: int | None,
    only: Collection[str] | None,
    write: bool,
) -> None:
    """Measure every side that serves the database and is installed, and print the ratios of each line."""
    console.width = max(console.width, WIDTH)
    names = []
    for name, side in SIDES.items():
        if database not in side.databases:
            continue
        if missing := side.missing():
            console.print(f"{name} is not measured: pip install {' '.join(missing)}", soft_wrap=True)
        else:
            names.append(name)
    console.print(f"{database}: {versions(database, url, names)}", soft_wrap=True)
    workers = [Worker("lines", name, url) for name in names]
    lines = {}
    for key, line in LINES.items():
        if not only or key in only:
            with console.status(f"{database}: {line.title}"):
                able = [worker for worker in workers if line.needs in SIDES[worker.name].can]
                lines[key] = measured(key, able, rounds or line.rounds)
    for worker in workers:
        worker.stop()
    for what, choose in (("least of the rounds", min), ("medians", statistics.median)):
        title = f"{database}, ratio to the strict floor, {what} (fsync {fsync})"
        header, *rows = table(database, names, lines, choose)
        shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for place, column in enumerate(header):
            shown.add_column(column, justify="left" if place < 2 else "right", no_wrap=place < 2)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    if write:
        write_table(database, table(database, names, lines, min)[:-1])  # without the limits
    console.print("–: the store has no such method, or takes one message a call and minutes for thousands")
    for key, measurement in lines.items():
        console.print(f"{LINES[key].title}: ahead is {measurement.ahead()}", soft_wrap=True)
        for name, how in measurement.wrong.items():
            console.print(f"{LINES[key].title}: {name} does not count: {how}", soft_wrap=True)
    if not only:
        console.print(leases.table({database: url}, rounds or leases.ROUNDS))


def measured(key: str, workers: list[Worker], rounds: int) -> Measured:
    """Run the contenders of a line in turns, and count only those that read back what was written."""
    for worker in workers:
        worker.say(line=key)
    found = in_turns(workers, rounds)
    answers = {worker.name: worker.say(compare=key) for worker in workers}
    wrong = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
    if spoilt := [name for name in wrong if name in FLOORS or name == OURS]:
        raise RuntimeError(f"{LINES[key].title}: {', '.join(f'{name}: {wrong[name]}' for name in spoilt)}")
    return Measured(found, wrong)


def table(
    database: str, names: list[str], lines: dict[str, Measured], choose: Callable[[list[float]], float]
) -> list[list[str]]:
    """Make a row for each side, floors in milliseconds and others as ratios, and one for the limits of our ratio."""
    rows = [["store", "returns", *(LINES[key].title for key in lines)]]
    for name in names:
        is_floor = SIDES[name].floor == name
        shown = f"{name}, in ms" if is_floor else name
        row = [shown, SIDES[name].returns]
        for measurement in lines.values():
            if name in measurement.wrong:
                row.append("differs")
            elif name not in measurement.seconds:
                row.append("–")
            elif is_floor:
                row.append(f"{choose(measurement.seconds[name]) * 1e3:.3g}")
            else:
                row.append(f"{measurement.ratio(name, choose):.2f}")
        rows.append(row)
    bars = [LINES[key].bars[0 if database == "SQLite" else 1] for key in lines]
    return [*rows, ["limit", "", *(f"{bar:.2f}" for bar in bars)]]


def versions(database: str, url: str, names: list[str]) -> str:
    """Return the versions of the database and of the packages."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        query = "SELECT sqlite_version()" if database == "SQLite" else "SHOW server_version"
        server = connection.exec_driver_sql(query).scalar_one()
    engine.dispose()
    packages = ["lango_store", "sqlalchemy", "pydantic"]
    packages += dict.fromkeys(package for name in names for package in SIDES[name].packages.values())
    found = [f"{database} {server}", f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__})"]
    return ", ".join([*found, *(f"{package} {_version(package)}" for package in packages)])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"
