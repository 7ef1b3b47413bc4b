"""One contender in a separate process: reads works from standard input, writes numbers to standard output."""

from __future__ import annotations

import json
import sys

from benchmarks.contenders import CONTENDERS
from benchmarks.lines import LINES, Differs, Prepared, Sessions
from benchmarks.peers import SIDES
from benchmarks.works import CURVES, WORKS, Run


def answer_works(name: str, url: str) -> None:
    """Answer `{"prepare": name}`, `{"curve": [name, size]}` and `{"run": n}`, each on one line."""
    contender = CONTENDERS[name](url)
    run: Run | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: float | None = None
        if "prepare" in order:
            run = WORKS[order["prepare"]].prepare(contender, url)
        elif "curve" in order:
            what, size = order["curve"]
            run = CURVES[what](size)(contender, url)
        else:
            assert run is not None
            answer = run()
        print(json.dumps(answer), flush=True)
    contender.close()


def answer_lines(name: str, url: str) -> None:
    """Answer `{"line": name}`, `{"run": n}` and `{"compare": name}`, each on one line."""
    sessions = Sessions(name, SIDES[name], url)
    prepared: Prepared | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: float | str | None = None
        if "line" in order:
            prepared = LINES[order["line"]].prepare(sessions)
        else:
            assert prepared is not None
            run, compare = prepared
            try:
                answer = run() if "run" in order else compare()
            except Differs as error:
                answer = str(error)
        print(json.dumps(answer), flush=True)
    sessions.close()


def main() -> None:
    """Run the contender that the command line names: `works` or `lines`, its name, a URL."""
    kind, name, url = sys.argv[1:]
    (answer_lines if kind == "lines" else answer_works)(name, url)


main()
