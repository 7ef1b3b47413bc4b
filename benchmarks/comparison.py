"""`python -m benchmarks --peers`: this store and other stores against the strict floor."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.lines import LINES
from benchmarks.peers import FLOOR, FLOORS, OURS, SIDES
from benchmarks.turns import Worker, in_turns, ratio

WIDTH = 110  # of the table, even if the terminal is narrower


@dataclass(frozen=True)
class Measured:
    """One measurement: the strict floor's median in seconds, ratios to it, and contenders with wrong results."""

    floor: float
    ratios: dict[str, float]
    wrong: dict[str, str]

    def ahead(self) -> str:
        """Return the name of the fastest side except the floors, and how far it is ahead."""
        first, *others = sorted(
            (each for each in self.ratios.items() if each[0] not in FLOORS), key=lambda each: each[1]
        )
        if not others:
            return f"{first[0]}, alone"
        if first[0] == OURS:
            return f"{OURS}, {others[0][1] / first[1]:.2f} times as fast as the next, {others[0][0]}"
        return f"{first[0]}, {self.ratios[OURS] / first[1]:.2f} times as fast as {OURS}"


def compare(console: Console, database: str, url: str, *, fsync: str, rounds: int | None) -> None:
    """Measure every side that serves the database and is installed, and print a row of ratios for each."""
    console.width = max(console.width, WIDTH)
    names = []
    for name, side in SIDES.items():
        if database not in side.databases:
            continue
        if missing := side.missing():
            console.print(f"{name} is not measured: pip install {' '.join(missing)}", soft_wrap=True)
        else:
            names.append(name)
    workers = [Worker("lines", name, url) for name in names]
    lines = {}
    for key, line in LINES.items():
        with console.status(f"{database}: {line.title}"):
            able = [worker for worker in workers if SIDES[worker.name].batches or not line.batches]
            lines[key] = measured(key, able, rounds or line.rounds)
    for worker in workers:
        worker.stop()
    console.print(table(database, names, lines, fsync=fsync))
    for name in names:
        if not SIDES[name].batches:
            console.print(f"–: {name} takes one message a call, and minutes for thousands", soft_wrap=True)
    for key, line in LINES.items():
        console.print(f"{line.title}: ahead is {lines[key].ahead()}", soft_wrap=True)
        for name, how in lines[key].wrong.items():
            console.print(f"{line.title}: {name} does not count: {how}", soft_wrap=True)


def measured(key: str, workers: list[Worker], rounds: int) -> Measured:
    """Run the contenders of a line in turns, and count only those that read back what was written."""
    for worker in workers:
        worker.say(line=key)
    found = in_turns(workers, rounds)
    answers = {worker.name: worker.say(compare=key) for worker in workers}
    wrong = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
    floor = found[FLOOR]
    if spoilt := wrong.keys() & {FLOOR, OURS}:
        raise RuntimeError(f"{LINES[key].title}: {', '.join(f'{name}: {wrong[name]}' for name in spoilt)}")
    ratios = {name: ratio(seconds, floor) for name, seconds in found.items() if name not in wrong}
    return Measured(statistics.median(floor), ratios, wrong)


def table(database: str, names: list[str], lines: dict[str, Measured], *, fsync: str) -> Table:
    """Make a row for each side, and one for the limits of our ratio to the floor."""
    title = f"{database}, median ratio to the strict floor (fsync {fsync})"
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    made.add_column("store", no_wrap=True)
    made.add_column("returns", no_wrap=True)
    for line in LINES.values():
        made.add_column(line.title, justify="right")
    made.add_row(FLOOR, SIDES[FLOOR].returns, *(f"{each.floor * 1e3:.3g} ms" for each in lines.values()))
    for name in names:
        if name != FLOOR:
            made.add_row(name, SIDES[name].returns, *(_shown(name, each) for each in lines.values()))
    bars = [line.bars[0 if database == "SQLite" else 1] for line in LINES.values()]
    made.add_row("bar", "", *(f"{bar:.2f}" for bar in bars), style="dim")
    return made


def _shown(name: str, line: Measured) -> str:
    if name in line.wrong:
        return "differs"
    return f"{line.ratios[name]:.2f}" if name in line.ratios else "–"
