"""Pages of a session's rows, bounded in rows and in bytes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect
from lango_store._dialect.statement import Statement, size_of
from lango_store._operations.binds import column, number, of_session
from lango_store._operations.rows import next_start

ROWS: Final = 500
BYTES: Final = 1 << 20


class Pages:
    """The rows of a session in one table, ordered by a column, after the value `first`."""

    def __init__(
        self,
        table: sa.Table,
        place: str,
        columns: Sequence[sa.ColumnElement[Any]],
        first: int | str = 0,
    ) -> None:
        self._first = first
        self._table, self._columns = table, columns
        self._place = table.c[place]
        self._position = next(n for n, each in enumerate(columns) if each is self._place)
        self._statement = Statement(self._write)

    def _write(self, dialect: Dialect) -> sa.Executable:
        of_page = [of_session(self._table), self._place > column(self._place, "after")]
        if dialect.reads_ahead:
            of_page.append(self._place <= self._last(*of_page))
        return sa.select(*self._columns).where(*of_page).order_by(self._place).limit(number("rows"))

    def _last(self, *of_page: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        none: sa.ColumnElement[int] = sa.literal_column("0")
        size = none
        for each in self._columns:  # `read` counts the same ones
            if isinstance(each.type, sa.Text):
                size += sa.func.coalesce(sa.func.octet_length(each), none)
        sized = sa.select(self._place.label("place"), size.label("size")).where(*of_page).order_by(self._place)
        rows = sized.limit(number("rows")).subquery()  # so that the window function sums these rows only
        before = sa.func.sum(rows.c.size).over(order_by=rows.c.place, rows=(None, -1))
        counted = sa.select(rows.c.place, sa.func.coalesce(before, none).label("before")).subquery()
        return sa.select(sa.func.max(counted.c.place)).where(counted.c.before < number("bytes")).scalar_subquery()

    def read(self, connection: AnyConnection, key: str) -> Iterator[list[Sequence[Any]]]:
        """Yield rows in pages of about a megabyte, or of a single larger row."""
        after: Any = self._first
        rows = ROWS
        bounds = {"key": key, "bytes": BYTES}
        while found := self._statement.run(connection, bounds | {"after": after, "rows": rows}, max_chars=BYTES):
            after = next_start(after, found[-1][self._position])
            # A character takes at most four bytes: a page of fewer was not cut by the bound on bytes.
            complete = len(found) < rows and 4 * sum(map(size_of, found)) < BYTES
            rows = min(ROWS, 2 * len(found))  # large rows: ask for the size of few
            page = [found]
            del found  # it may be large: only the caller keeps it
            yield page.pop()
            if complete:
                return
