"""Paging: read a session's rows of one table in pages with a limited number of rows and bytes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect
from lango_store._dialect.statement import Statement, size_of
from lango_store._operations.binds import column, number, of_session
from lango_store._operations.rows import next_start

T = TypeVar("T")

ROWS: Final = 500
BYTES: Final = 1 << 20


class Pages:
    """Pages of a session's rows in one table, ordered by the last column of its primary key."""

    def __init__(self, table: sa.Table, columns: Sequence[sa.ColumnElement[Any]]) -> None:
        self._table, self._columns = table, columns
        *_, self._order = table.primary_key
        self._first: int | str = 0 if isinstance(self._order.type, sa.BigInteger) else ""  # before all values
        self._order_index = next(n for n, each in enumerate(columns) if each is self._order)
        self._statement = Statement(self._write)

    def _write(self, dialect: Dialect) -> sa.Executable:
        of_page = [of_session(self._table), self._order > column(self._order, "after")]
        if dialect.reads_ahead:
            of_page.append(self._order <= self._last(*of_page))
        return sa.select(*self._columns).where(*of_page).order_by(self._order).limit(number("rows"))

    def _last(self, *of_page: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        none: sa.ColumnElement[int] = sa.literal_column("0")
        size = none
        for each in self._columns:  # `size_of` in `read` counts the same columns
            if isinstance(each.type, sa.Text):
                size += sa.func.coalesce(sa.func.octet_length(each), none)
        sized = sa.select(self._order.label("position"), size.label("size")).where(*of_page).order_by(self._order)
        rows = sized.limit(number("rows")).subquery()  # a subquery, so that the window function sums only these rows
        before = sa.func.sum(rows.c.size).over(order_by=rows.c.position, rows=(None, -1))
        counted = sa.select(rows.c.position, sa.func.coalesce(before, none).label("before")).subquery()
        return sa.select(sa.func.max(counted.c.position)).where(counted.c.before < number("bytes")).scalar_subquery()

    def read(self, connection: AnyConnection, key: str) -> Iterator[list[Sequence[Any]]]:
        """Yield rows in pages; a page ends after 500 rows, or with the row that reaches about a megabyte."""
        after: Any = self._first
        rows = ROWS
        bounds = {"key": key, "bytes": BYTES}
        while page_rows := self._statement.run(connection, bounds | {"after": after, "rows": rows}, max_chars=BYTES):
            after = next_start(after, page_rows[-1][self._order_index])
            # A character has at most 4 bytes, so a page with fewer than BYTES / 4 characters did not reach BYTES.
            complete = len(page_rows) < rows and 4 * sum(map(size_of, page_rows)) < BYTES
            rows = min(ROWS, 2 * len(page_rows))  # if rows are large, the next query computes the size of fewer rows
            page = [page_rows]
            del page_rows  # the page may be large: only the caller holds a reference
            yield page.pop()
            if complete:
                return


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split a sequence into parts of at most this size."""
    return (items[start : start + size] for start in range(0, len(items), size))
