"""SQLite files that are prepared to stop or to mislead their reader."""

import sqlite3
import struct
from contextlib import closing
from itertools import pairwise
from pathlib import Path


def run_statements(path: Path, *statements: str) -> None:
    """Run statements on a file, without any protection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def replace_by_endless_view(path: Path, table: str) -> None:
    """Replace a table by a view of the same columns that has endless rows."""
    with closing(sqlite3.connect(path)) as connection:
        columns = [f"n AS {row[1]}" for row in connection.execute(f"PRAGMA table_info({table})")]
    numbers = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number)"
    view = f"CREATE VIEW {table} AS {numbers} SELECT {', '.join(columns)} FROM number"
    run_statements(path, f"DROP TABLE {table}", view)


def repeat_rows(path: Path, table: str, *, levels: int = 6) -> None:
    """Put pages above a table, each of which refers many times to the next one: the rows are read billions of times."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", [table]).fetchone()
    data = bytearray(path.read_bytes())
    pages = len(data) // size
    data += bytes(size * (levels - 1)) + data[(root - 1) * size : root * size]
    chain = [root, *range(pages + 1, pages + levels + 1)]
    for page, child in pairwise(chain):
        data[(page - 1) * size : page * size] = _interior_page(size, child)
    data[28:32] = struct.pack(">I", pages + levels)  # the number of pages
    path.write_bytes(data)


def _interior_page(size: int, child: int) -> bytes:
    cell = struct.pack(">IB", child, 1)  # the child page, and the highest row id in it
    count = (size - 12) // (len(cell) + 2)
    start = size - count * len(cell)
    pointers = b"".join(struct.pack(">H", start + number * len(cell)) for number in range(count))
    header = struct.pack(">BHHHBI", 5, 0, count, start, 0, child)
    return (header + pointers).ljust(start, b"\0") + cell * count
