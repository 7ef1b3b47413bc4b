"""`python -m benchmarks`: median ratios of the store to the floor, which is hand-written code over the driver."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.comparison import compare
from benchmarks.figures import note
from benchmarks.lines import LINES
from benchmarks.picture import Curve, draw
from benchmarks.turns import Worker, databases, in_turns, ratio
from benchmarks.works import CURVE_SIZES, SCALES, WORKS, contents_agree


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all works, more rounds, the curves up to 100,000 messages")
    parser.add_argument("--only", nargs="+", choices=list(WORKS | LINES), help="these works, or lines of --peers, only")
    parser.add_argument("--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--rounds", type=int, help="that many rounds of each work")
    parser.add_argument("--orm", action="store_true", help="measure the naive ORM way too")
    parser.add_argument("--peers", action="store_true", help="compare with the stores of others instead, if installed")
    parser.add_argument(
        "--no-fsync",
        nargs="+",
        choices=["sqlite", "postgresql"],
        default=[],
        help="leave out what an fsync costs there",
    )
    parser.add_argument("--write", action="store_true", help="put the ratios into docs/figures.json and the pages")
    parser.add_argument("--picture", type=Path, help="draw the growth curves into this SVG file")
    options = parser.parse_args()
    if options.peers and (options.full or options.orm or options.picture):
        parser.error("--peers has lines of its own: leave out --full, --orm and --picture")
    console = Console()
    names = ["floor", "lango_store", *(["orm"] if options.orm else [])]
    with databases(options.database, options.no_fsync) as urls:
        for database, url in urls.items():
            fsync = "off" if database.lower() in options.no_fsync else "on"
            if options.peers:
                compare(
                    console,
                    database,
                    url,
                    fsync=fsync,
                    rounds=options.rounds,
                    only=options.only,
                    write=options.write,
                )
                continue
            console.print(f"{database}: {contents_agree(url)} messages compared field by field, all equal")
            workers = [Worker("works", name, url) for name in names]
            console.print(measured(f"{database}, median ratio to the floor (fsync {fsync})", workers, options))
            if options.picture:
                curves = list(grown(workers, CURVE_SIZES if options.full else CURVE_SIZES[:-1]))
                target = options.picture.with_stem(f"{options.picture.stem}-{database.lower()}")
                target.write_text(draw(database, curves))
                console.print(f"drawn: {target}")
            for worker in workers:
                worker.stop()


def measured(title: str, workers: list[Worker], options: argparse.Namespace) -> Table:
    """Run the measurements, and return a table of the results."""
    table = Table(title=title, title_justify="left")
    for column in ("work", "floor", *(worker.name for worker in workers[1:]), "bar", "rounds"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for name, work in WORKS.items():
        rounds = options.rounds or (work.full if options.full else work.rounds)
        if (options.only and name not in options.only) or not rounds:
            continue
        for worker in workers:
            worker.say(prepare=name)
        found = in_turns(workers, rounds)
        floor = found["floor"]
        ratios = [f"{ratio(found[worker.name], floor):.2f}" for worker in workers[1:]]
        if options.write:
            note(title.partition(",")[0], work.title, ratio(found["lango_store"], floor))
        shown = f"{statistics.median(floor) * SCALES[work.unit]:.4g} {work.unit}"
        bar = work.bars[0 if title.startswith("SQLite") else 1]
        table.add_row(work.title, shown, *ratios, f"{bar:.2f}", str(rounds))
    return table


def grown(workers: list[Worker], sizes: tuple[int, ...]) -> Iterator[Curve]:
    """Measure how append and load grow with the session."""
    for what in ("append", "load"):
        points: dict[str, list[tuple[int, float]]] = {worker.name: [] for worker in workers}
        for size in sizes:
            for worker in workers:
                worker.say(curve=[what, size])
            for name, seconds in in_turns(workers, 3 if size >= 100_000 else 7).items():
                points[name].append((size, statistics.median(seconds)))
        yield Curve(what, points)


if __name__ == "__main__":
    main()
