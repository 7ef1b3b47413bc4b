"""`python -m benchmarks.proof`: run stores under faults, and print the properties that did not hold."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.proof import driver
from benchmarks.proof.checker import PROPERTIES
from benchmarks.proof.driver import Bench
from benchmarks.proof.mutants import MUTANTS
from benchmarks.proof.stores import BOTH, OURS, STORES
from benchmarks.proof.worker import Record


class Found(NamedTuple):
    """What was wrong, the shortest history that shows it, and how many trials showed it."""

    text: str
    history: list[Record]
    seed: int
    times: int


class Result(NamedTuple):
    """The trials of a store on a database."""

    store: str
    database: str
    seed: int
    trials: int
    found: dict[str, Found | None]


def main() -> None:
    """Run the stores, and print the table; exit with 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    parser.add_argument("--store", nargs="+", choices=[*STORES], default=[*OURS], help="these stores")
    parser.add_argument("--on", nargs="+", choices=BOTH, default=[*BOTH], dest="databases", help="these databases")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each store and database; 0: one trial")
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; each next one has the next number")
    parser.add_argument("--trial", type=int, metavar="SEED", help="the same as --seed SEED --seconds 0")
    parser.add_argument("--mutant", choices=[*MUTANTS], help="a fault of lango_store; ends at the first violation")
    parser.add_argument("--markdown", action="store_true", help="print the table and the histories in Markdown")
    options = parser.parse_args()
    if options.trial is not None:
        options.seed, options.seconds = options.trial, 0.0
    missing = [name for name in options.store if STORES[name].version() is None]
    if missing:
        parser.error(f"not installed: pip install {' '.join(STORES[name].package for name in missing)}")
    driver.preload(options.store)
    results = []
    for name in options.store:
        for database in options.databases:
            if database in STORES[name].databases:
                with driver.database(database) as (url, folder):
                    bench = Bench(name, url, folder, options.mutant)
                    results.append(run(bench, options.seconds, options.seed, ends_early=options.mutant is not None))
                    bench.end()
    (report_in_markdown if options.markdown else report)(results)
    sys.exit(any(each for result in results for each in result.found.values()))


def run(bench: Bench, seconds: float, seed: int, *, ends_early: bool = False) -> Result:
    """Run trials for some seconds, or until the first violation."""
    end = time.monotonic() + seconds
    found: dict[str, Found | None] = {}
    for number in range(seed, sys.maxsize):
        judged, history = bench.trial(number)
        for name, text in judged.items():
            known = found.setdefault(name, None)
            if text is not None:
                times = 1 if known is None else known.times + 1
                if known is None or len(history) < len(known.history):
                    known = Found(text, history, number, times)
                found[name] = known._replace(times=times)
        if time.monotonic() >= end or (ends_early and any(found.values())):
            break
    return Result(bench.name, bench.database, seed, number - seed + 1, found)


_FAULTS = {
    "stop": "stopped {}",
    "kill": "killed {}",
    "cut": "the connection is cut {}",
    "disk": "the disk refuses writes",
    "clock": "the clock is 1 hour behind",
}


def lines(history: Sequence[Record]) -> list[str]:
    """Return a history as text: an operation that nothing interrupted takes one line."""
    shown: list[str] = []
    faults = {each.op: each.data for each in history if each.state == "fault"}
    last = 0
    for each in history:
        fault, at = faults.get(each.op, ("", 1))
        place = {0: "in the model", -1: "in the tool"}.get(at, f"at step {at}")
        values = each.data if isinstance(each.data, list) else []
        data = " ".join(map(str, values[0] if values and isinstance(values[0], list) else values))
        if each.state == "call":
            shown.append(f"{each.who}  {each.do} {data}".rstrip())
        elif each.state in ("ok", "error"):
            result = (
                (data or "nothing" if each.do in ("read", "follow") else "ok") if each.state == "ok" else str(each.data)
            )
            if fault in ("clock", "disk") or (fault == "cut" and each.state == "error"):
                result = f"{result} ({_FAULTS[fault].format(place)})"
            if last == each.op and len(f"{shown[-1]}: {result}") <= 80:
                shown[-1] += f": {result}"
            else:
                shown.append(f"{each.who}    {each.do}: {result}"[:80])
        elif each.state in ("stopped", "killed"):
            shown.append(f"{each.who}    {_FAULTS[fault].format(place)}")
        elif each.state != "fault":
            shown.append(f"{each.who}    {each.state} {data}".rstrip())
        last = each.op if each.state != "fault" else last
    return shown


def report(results: list[Result]) -> None:
    """Print a table, and each violation with its history and the command that repeats it."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
    console.print(_circumstances(results))
    table = Table("store", "database", "trials", *PROPERTIES)
    for each in results:
        table.add_row(each.store, each.database, str(each.trials), *(_cell(each, name) for name in PROPERTIES))
    console.print(table)
    for each in results:
        for found, names in _by_seed(each):
            console.print(f"\n{each.store}, {each.database}: {_summary(each, found, names)}")
            console.print("\n".join(f"    {line}" for line in [*lines(found.history), _command(each, found)]))


def report_in_markdown(results: list[Result]) -> None:
    """Print the same as part of a page."""
    shown = [name for name in PROPERTIES if any(name in each.found for each in results if each.store not in OURS)]
    print(textwrap.fill(f"{_circumstances(results)}.", 120), end="\n\n")
    print(f"| store | database | trials | {' | '.join(shown)} |\n|{'---|' * (len(shown) + 3)}")
    for each in results:
        cells = [_cell(each, name) for name in shown]
        cells = [f"[{cell}](#{_heading(each).lower().replace(' ', '-')})" if "seed" in cell else cell for cell in cells]
        print(f"| {each.store} | {TITLES[each.database]} | {each.trials} | {' | '.join(cells)} |")
    for each in results:
        for number, (found, names) in enumerate(_by_seed(each)):
            if number == 0:
                print(f"\n### {_heading(each)}")
            print(f"\n{textwrap.fill(_summary(each, found, names), 120)}\n\n```text")
            print("\n".join([*lines(found.history), "```", "", "```sh", _command(each, found), "```"]))


TITLES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def _heading(result: Result) -> str:
    return f"{result.store} on {TITLES[result.database]}"


def _circumstances(results: list[Result]) -> str:
    versions = sorted({f"{STORES[each.store].package} {STORES[each.store].version()}" for each in results})
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    return f"{', '.join(versions)}; {machine}; SQLite {sqlite3.sqlite_version}"


def _by_seed(result: Result) -> Iterator[tuple[Found, list[str]]]:
    violated = {name: found for name, found in result.found.items() if found is not None}
    for seed in dict.fromkeys(found.seed for found in violated.values()):
        names = [name for name, found in violated.items() if found.seed == seed]
        yield violated[names[0]], names


def _summary(result: Result, found: Found, names: list[str]) -> str:
    texts = [
        f"{name}: {each.text}, in {each.times} of {result.trials} trials"
        for name in names
        if (each := result.found[name])
    ]
    return f"{'; '.join(texts)}."


def _cell(result: Result, name: str) -> str:
    if name not in result.found:
        return "–"
    found = result.found[name]
    return "none" if found is None else f"seed {found.seed}"


def _command(result: Result, found: Found) -> str:
    return f"python -m benchmarks.proof --store {result.store} --on {result.database} --trial {found.seed}"


if __name__ == "__main__":
    main()
