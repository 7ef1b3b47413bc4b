"""Random concurrent writes by several processes: the session stays consistent and only Conflict is raised.

LANGO_STORE_RACE_SECONDS sets the duration.
"""

import json
import os
from collections import Counter

import pytest
from support.paths import TESTS
from support.processes import Program

from lango_store import Store

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("LANGO_STORE_RACE_SECONDS", "2"))
RACERS = 3


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_session_stays_consistent_under_concurrent_writers(url: str) -> None:
    with Store(url) as store:
        store.create("k")
    program = (TESTS / "support" / "racer.py").read_text()
    running = [Program(program, url, number, SECONDS) for number in range(RACERS)]
    calls: Counter[str] = Counter()
    for process in running:
        out, err = process.communicate(timeout=SECONDS + 120)
        assert (process.returncode, err) == (0, "")
        calls.update(json.loads(out))
    print(url.split(":")[0], dict(sorted(calls.items())))
    with Store(url) as store:
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
    for method in ("compact", "append", "save_turn", "fork", "truncate", "clear"):
        assert calls[method] > 0, f"no process called {method}: {calls}"
