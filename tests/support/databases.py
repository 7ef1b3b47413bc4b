"""The databases that tests run on."""

import os
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

MakeDatabase = Callable[..., str]
"""Creates a database and returns its URL; without tables if called with `migrated=False`."""

CITUS = os.environ.get("LANGO_STORE_TEST_CITUS")
"""The URL of the coordinator of a Citus cluster, if there is one. All tests then run only on its databases."""

AS_ROWS_LIE = {"options": "".join(f" -c enable_{way}=off" for way in ("indexscan", "indexonlyscan", "bitmapscan"))}
"""Connection options that make PostgreSQL read rows in table order, not in the order of an index."""

KINDS = ["postgresql"] if CITUS else ["sqlite", "postgresql"]
"""The databases that every behavior is tested on."""


def not_on_a_cluster(reason: str) -> pytest.MarkDecorator:
    """Skip a test that cannot pass with distributed tables."""
    return pytest.mark.skipif(CITUS is not None, reason=f"not on a cluster: {reason}")


class LeavesDeletedTexts(sqlite3.Connection):
    """A connection of a SQLite that leaves deleted texts in the file by default, as most builds do."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA secure_delete = OFF")
