"""SQL runs in one way: as a `Statement`, which is compiled once, except where the SQL depends on the arguments."""

import ast
from pathlib import Path

import pytest
from support.paths import PACKAGE

pytestmark = pytest.mark.slow

PACKAGES = ("_connections", "_operations", "_parts", "_rooms", "_rows", "_services", "rows")

BUILT_PER_CALL = {
    "_parts/checks.py": 1,  # for repairs
    "_rooms/search/gin.py": 5,  # the index, in batches; time limits
    "_rooms/search/hits.py": 3,  # filters and words; savepoints and time limits need SQLAlchemy's errors
    "_rooms/search/index.py": 2,  # messages that are streamed, for a condition
    "_rooms/search/state.py": 2,  # a random sample for `doctor`
    "_rooms/usage/report.py": 1,  # filters and groups, row by row
    "_operations/log/counters.py": 2,  # of one session or of all, row by row; only the wrong counters are set
    "_operations/log/changes.py": 1,  # all sessions of a table whose rows refer to messages, for `examine`
    "_rooms/examination/checks.py": 12,  # all sessions, row by row, and repairs
    "_rooms/erasure/authors.py": 1,  # any table with authors
    "_rooms/erasure/person.py": 10,  # any table, conditions and lists of keys, and rows that are streamed
    "_rooms/erasure/erasing.py": 1,  # keys of sessions that were there at the beginning
    "_rooms/expiry/batches.py": 10,  # filters of a purge, holds, and lists of keys, by which Citus chooses servers
    "_operations/session/levels.py": 1,  # ranges of keys
    "_operations/log/messages.py": 1,  # any condition, for `turns`
    "_operations/log/removals.py": 1,  # one session or all, for a repair
    "_operations/session/sessions.py": 1,  # any columns and expressions
    "rows/transfer.py": 5,  # lists of keys, and rows that are streamed
    "_operations/log/turns.py": 5,  # could be compiled once
    "_rooms/expiry/archiving.py": 3,  # could be compiled once
    "_rooms/stats/payload_sizes.py": 1,  # migrations and checks, which run once
    "_rooms/examination/payload_faults.py": 1,  # migrations and checks, which run once
    "_rooms/alternatives/checks.py": 4,  # migrations and checks, which run once
    "_rooms/turns_in_progress/checks.py": 1,  # migrations and checks, which run once
    "_rooms/distribution/schema.py": 3,  # migrations and checks, which run once
}
"""By file: how many statements SQLAlchemy builds per call. Most depend on arguments, or return too many rows."""


def count_executions(path: Path) -> int:
    """Count the calls of `execute` of a SQLAlchemy connection in a source file."""
    called = [ast.unparse(each.func) for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)]
    return called.count("connection.execute") + called.count("self._connection.execute")


def test_statements_are_compiled_once_except_those_in_this_list() -> None:
    paths = [path for package in PACKAGES for path in (PACKAGE / package).rglob("*.py")]
    counts = {path.relative_to(PACKAGE).as_posix(): count_executions(path) for path in paths}
    assert {name: count for name, count in counts.items() if count} == BUILT_PER_CALL
