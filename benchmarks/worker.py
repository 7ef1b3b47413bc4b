"""One contender in a process of its own: reads works from standard input, writes numbers to standard output."""

from __future__ import annotations

import json
import sys

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.peers import PEERS
from benchmarks.works import CURVES, WORKS, Run


def main() -> None:
    """Answer `{"prepare": name}`, `{"curve": [name, size]}` and `{"run": n}`, a line each."""
    name, url = sys.argv[1:]
    contender: Contender = (PEERS | CONTENDERS)[name](url)
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


main()
