"""`python -m benchmarks.proof`: run stores under faults, and print the properties that did not hold."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.proof import driver
from benchmarks.proof.checker import PROPERTIES, Violation
from benchmarks.proof.driver import Bench
from benchmarks.proof.mutants import MUTANTS
from benchmarks.proof.stores import BOTH, OURS, STORES
from benchmarks.proof.worker import Record


class Found(NamedTuple):
    """A violation with the shortest history that shows it, and how many trials showed it."""

    violation: Violation
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
    parser.add_argument("--database", nargs="+", choices=BOTH, default=[*BOTH], help="on these databases")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each store and database; 0: one trial")
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; each next one has the next number")
    parser.add_argument("--mutant", choices=[*MUTANTS], help="a fault of lango_store; ends at the first violation")
    parser.add_argument("--markdown", action="store_true", help="print the table and the histories in Markdown")
    options = parser.parse_args()
    missing = [name for name in options.store if STORES[name].version() is None]
    if missing:
        parser.error(f"not installed: pip install {' '.join(STORES[name].package for name in missing)}")
    driver.preload(options.store)
    results = []
    for name in options.store:
        for database in options.database:
            if database in STORES[name].databases:
                with driver.database(database) as (url, folder):
                    bench = Bench(name, url, folder, options.mutant)
                    results.append(run(bench, options.seconds, options.seed, ends_early=options.mutant is not None))
                    bench.end()
    report(results, is_markdown=options.markdown)
    sys.exit(any(each for result in results for each in result.found.values()))


def run(bench: Bench, seconds: float, seed: int, *, ends_early: bool = False) -> Result:
    """Run trials for some seconds, or until the first violation."""
    end = time.monotonic() + seconds
    found: dict[str, Found | None] = {}
    for number in range(seed, sys.maxsize):
        judged, history = bench.trial(number)
        for name, violation in judged.items():
            known = found.setdefault(name, None)
            if violation is not None:
                times = 1 if known is None else known.times + 1
                if known is not None and len(known.history) <= len(history):
                    violation, history_, seed_ = known.violation, known.history, known.seed
                else:
                    history_, seed_ = history, number
                found[name] = Found(violation, history_, seed_, times)
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
        data = each.data if isinstance(each.data, list) else []
        data = " ".join(map(str, data[0] if data and isinstance(data[0], list) else data))
        if each.state == "call":
            shown.append(f"{each.who}  {each.do} {data}".rstrip())
        elif each.state in ("ok", "error"):
            result = (data or "nothing" if each.do in ("read", "follow") else "ok") if each.state == "ok" else str(each.data)
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


def report(results: list[Result], *, is_markdown: bool) -> None:
    """Print a table, and each violation with its history and the command that repeats it."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    versions = {f"{STORES[each.store].package} {STORES[each.store].version()}" for each in results}
    machine = f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    console.print(f"{', '.join(sorted(versions))}; {machine}")
    table = Table("store", "database", "trials", *PROPERTIES)
    for each in results:
        cells = [_cell(each, name) for name in PROPERTIES]
        table.add_row(each.store, each.database, str(each.trials), *cells)
    console.print(table)
    for each in results:
        for name, found in each.found.items():
            if found is not None:
                console.print(f"\n{each.store}, {each.database}: {name}: {found.violation.text}", markup=False)
                console.print(f"in {found.times} of {each.trials} trials; again: {_command(each, found)}")
                for line in lines(found.history):
                    console.print(f"    {line}", markup=False)


def _cell(result: Result, name: str) -> str:
    if name not in result.found:
        return "–"
    found = result.found[name]
    return "no violation" if found is None else f"seed {found.seed}"


def _command(result: Result, found: Found) -> str:
    return (
        f"python -m benchmarks.proof --store {result.store} --database {result.database} --seed {found.seed} --seconds 0"
    )


if __name__ == "__main__":
    main()
