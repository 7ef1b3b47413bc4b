"""`python -m benchmarks.proof`: run stores under faults, and print as Markdown which properties did not hold."""

import argparse
import os
import platform
import sqlite3
import sys
import textwrap
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

from benchmarks.proof import driver
from benchmarks.proof.checker import PROPERTIES
from benchmarks.proof.mutants import MUTANTS
from benchmarks.proof.stores import STORES, TITLES
from benchmarks.proof.worker import Record


class Found(NamedTuple):
    """A violation: its description, the shortest history that shows it, its seed, and the number of trials."""

    text: str
    history: list[Record]
    seed: int
    times: int


class Result(NamedTuple):
    """The trials of a store on a database; None is a property without a violation."""

    store: str
    database: str
    trials: int
    found: dict[str, Found | None]

    @property
    def title(self) -> str:
        return f"{self.store} on {TITLES[self.database]}"


def main() -> None:
    """Run the stores, and print the table; exit with 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    ours = ["lango_store", "lango_store-async"]
    parser.add_argument("--store", nargs="+", choices=[*STORES], default=ours, help="these stores")
    parser.add_argument("--on", nargs="+", choices=[*TITLES], default=[*TITLES], dest="databases")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each store and database; 0: one trial")
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; each next one has the next number")
    parser.add_argument("--trial", type=int, metavar="SEED", help="the same as --seed SEED --seconds 0")
    parser.add_argument("--mutant", choices=[*MUTANTS], help="a fault of lango_store; ends at the first violation")
    options = parser.parse_args()
    if options.trial is not None:
        options.seed, options.seconds = options.trial, 0.0
    driver.preload([STORES[name].module for name in options.store])
    chosen = [(name, each) for name in options.store for each in options.databases if each in STORES[name].databases]
    results = [run(*each, options.seconds, options.seed, options.mutant) for each in chosen]
    report(results, f" --mutant {options.mutant}" if options.mutant else "")
    sys.exit(any(each for result in results for each in result.found.values()))


def run(store: str, database: str, seconds: float, seed: int, mutant: str | None) -> Result:
    """Run trials for some seconds or, with a mutant, until the first violation."""
    found: dict[str, Found | None] = {}
    with driver.bench(store, database, mutant) as bench:
        end = time.monotonic() + seconds
        for number in range(seed, sys.maxsize):
            judged, history = bench.trial(number)
            for name, text in judged.items():
                known = found.setdefault(name, None)
                if text is not None:
                    times = 1 if known is None else known.times + 1
                    if known is None or len(history) < len(known.history):
                        known = Found(text, history, number, times)
                    found[name] = known._replace(times=times)
            if time.monotonic() >= end or (mutant and any(found.values())):
                break
    return Result(store, database, number - seed + 1, found)


def report(results: list[Result], mutant: str) -> None:
    """Print a table, and for each violation its history and the command that repeats it."""
    packages = sorted({name for each in results for name in STORES[each.store].packages.split()})
    versions = [f"{name} {version(name)}" for name in packages]
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    print(
        textwrap.fill(
            f"{', '.join(versions)}; {machine}, SQLite {sqlite3.sqlite_version}.", 120, break_on_hyphens=False
        )
    )
    print(f"\n| store | trials | {' | '.join(PROPERTIES)} |\n|{'---|' * (len(PROPERTIES) + 2)}")
    for each in results:
        link = f"](#{each.title.lower().replace(' ', '-')})"
        cells = [f"[seed {found.seed}{link}" if found else "none" for found in each.found.values()]
        by_name = dict(zip(each.found, cells, strict=True))
        print(f"| {each.title} | {each.trials} | {' | '.join(by_name.get(name, '–') for name in PROPERTIES)} |")
    for each in results:
        violated = {name: found for name, found in each.found.items() if found}
        for number, seed in enumerate(dict.fromkeys(found.seed for found in violated.values())):
            own = {name: found for name, found in violated.items() if found.seed == seed}
            texts = [f"{name}: {found.text}, in {found.times} of {each.trials} trials" for name, found in own.items()]
            print(f"\n### {each.title}\n" * (not number), textwrap.fill(f"{'; '.join(texts)}.", 120), sep="\n")
            history = "\n".join(lines(next(iter(own.values())).history))
            command = f"python -m benchmarks.proof --store {each.store} --on {each.database} --trial {seed}{mutant}"
            print(f"\n```text\n{history}\n```\n\n```sh\n{command}\n```")


_FAULTS = {"cut": "the connection was cut", "disk": "the disk is full", "clock": "the clock is 1 hour behind"}


def lines(history: Sequence[Record]) -> list[str]:
    """Return a history as text: an operation that nothing interrupted takes one line."""
    shown: list[str] = []
    faults = {each.op: each.data for each in history if each.state == "fault"}
    last = 0
    for each in (each for each in history if each.state != "fault"):
        fault, at = faults.get(each.op, ("", 1))
        values = each.data if isinstance(each.data, list) else []
        data = " ".join(map(str, values[0] if values and isinstance(values[0], list) else values))
        if each.state in ("ok", "error"):
            result = str(each.data) if each.state == "error" else data or ("nothing" if each.do == "read" else "ok")
            shows = fault == "clock" or (fault in _FAULTS and each.state == "error")
            result += f" ({_FAULTS[fault]})" if shows else ""
            if last == each.op and len(f"{shown[-1]}: {result}") <= 80:
                shown[-1] += f": {result}"
            else:
                shown.append(f"{each.who}    {each.do}: {result}"[:80])
        elif each.state in ("stopped", "killed"):
            place = {0: "in the model", -1: "in the tool"}.get(at, f"at step {at}")
            shown.append(f"{each.who}    {each.state} {place}")
        else:
            shown.append(f"{each.who}  {each.do if each.state == 'call' else f'  {each.state}'} {data}".rstrip())
        last = each.op
    return shown


if __name__ == "__main__":
    main()
