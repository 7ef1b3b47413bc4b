"""Several processes write to one session at random: it stays whole, and a Conflict is the only error that they meet.

LANGO_STORE_RACE_SECONDS says for how long.
"""

import json
import os
from collections import Counter

import pytest
from support.paths import TESTS
from support.processes import Program

from lango_store import Store

SECONDS = float(os.environ.get("LANGO_STORE_RACE_SECONDS", "2"))
RACERS = 3


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_a_session_that_many_write_to_at_once_stays_whole(url: str) -> None:
    with Store(url) as store:
        store.create("k")
    program = (TESTS / "support" / "racer.py").read_text()
    running = [Program(program, url, number, SECONDS) for number in range(RACERS)]
    done: Counter[str] = Counter()
    for process in running:
        out, err = process.communicate(timeout=SECONDS + 120)
        assert (process.returncode, err) == (0, "")
        done.update(json.loads(out))
    print(url.split(":")[0], dict(sorted(done.items())))
    with Store(url) as store:
        assert [finding for finding in store.examine() if finding.name != "settings"] == []
    for verb in ("compact", "append", "save_turn", "fork", "truncate", "clear"):
        assert done[verb] > 0, f"nobody came to {verb}: {done}"
