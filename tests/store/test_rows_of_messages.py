"""A table whose rows name a message: what its description alone makes of its rows."""

import json
from pathlib import Path

import pytest
from support.copies_of_project import copy_project, run_in_copy
from support.notes import NOTE

FIRST, SECOND, THIRD, OF_NO_MESSAGE = [1, "on 1"], [2, "on 2"], [3, "on 3"], [None, "on None"]
ALL = [FIRST, SECOND, THIRD, OF_NO_MESSAGE]
TWO = [FIRST, SECOND, OF_NO_MESSAGE]

EXPECTED = {
    "delete": [FIRST, THIRD, OF_NO_MESSAGE],
    "delete, then": [FIRST, THIRD, OF_NO_MESSAGE],
    "pop": TWO,
    "truncate": [FIRST, OF_NO_MESSAGE],
    "clear": [OF_NO_MESSAGE],
    "redact": [FIRST, [2, None], THIRD, OF_NO_MESSAGE],
    "update": ALL,
    "update, then": ALL,
    "compaction": [FIRST, SECOND, THIRD, [5, "on 5"], OF_NO_MESSAGE],
    "compaction, then": ALL,
    "discard": [OF_NO_MESSAGE],
    "fork": ALL,
    "fork upto": [FIRST, OF_NO_MESSAGE],
    "fork as_of": TWO,
    "import": TWO,
    "copy": TWO,
    "examine": [
        ["whole", "session 'whole': 1 rows of lango_note belong to messages that do not exist, such as 7"],
    ],
    "repair": TWO,
    "archive": [],
    "restore": TWO,
}


@pytest.mark.slow
def test_rows_of_a_new_table_follow_the_messages_that_they_name(url: str, tmp_path: Path) -> None:
    copy = copy_project(tmp_path / "project", "lango_store", "migrations", "alembic.ini", "tests/support")
    with (copy / "lango_store" / "tables" / "core.py").open("a") as tables:
        tables.write(NOTE)
    databases = tmp_path / "databases"
    databases.mkdir()
    done = run_in_copy(copy, "-m", "support.notes", url, str(databases))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED
