"""The program for pandas and DuckDB on the page about usage and cost."""

from pathlib import Path

from support.framework_pages import started
from support.pages import blocks


def test_program_prints_totals_of_each_user(tmp_path: Path) -> None:
    first, second = blocks("docs/howto/usage.md", "python")
    started("-c", first, folder=tmp_path)
    lines = started("-W", "error", "-c", second, folder=tmp_path).splitlines()
    assert [line.split()[-3:] for line in lines if line.endswith(("80", "40", "20"))] == [
        ["ann", "1500", "80"],
        ["bob", "500", "40"],
        ["eve", "700", "20"],
    ]
    assert lines[-1] == "[('ann', 80), ('bob', 40), ('eve', 20)]"
