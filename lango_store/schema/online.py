"""What a revision may do while the store is in use: change rows in batches, and make an index beside the writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, Final

import sqlalchemy as sa
from alembic.operations import Operations

from lango_store.dialect import dialect_of
from lango_store.schema.migration import Migration

_SECONDS: Final = 0.1
"""How long a batch should take, since that long an append may wait."""

_CUT_AFTER: Final = 1.0
"""How long a statement of a batch may take: where rows are suddenly large, or locked, the batch gets smaller."""

_FIRST, _LARGEST = 500, 10_000


@dataclass(frozen=True)
class Progress:
    """How far a revision has come with a table: `rows` of about `total`."""

    table: str
    rows: int
    total: int


OnProgress = Callable[[Progress], None]


class Online:
    """In a revision `op.get_context().opts["online"]`, since revisions import nothing of the package."""

    def __init__(self, context: Migration, on_progress: OnProgress | None) -> None:
        self._context = context
        self._on_progress = on_progress

    def in_batches(self, statement: sa.Update | sa.Delete) -> int:
        """Run an UPDATE or a DELETE on all of a table, some rows a transaction; return how many rows it changed.

        Nobody waits for more than a batch: about 0.1 s, and 1 s at most unless one row takes longer. The walk follows
        the primary key, and ends where the table ended when it began. A killed one starts again, so that the WHERE of
        the statement names the rows that are still to be done (ValueError without one), and the revision does nothing
        else: it would be done twice. Rows that come in behind the walk stay as they came. On a caller's connection all
        of it is in the caller's transaction.
        """
        table: Any = statement.table
        if statement.whereclause is None:
            raise ValueError(f"the statement on {table.name} has no WHERE: say which rows are still to be done")
        if self._context.as_sql:
            self._context.impl.static_output(f"-- `lango-store db upgrade` runs this in batches of {table.name}:")
            self._context.execute(statement)
            return 0
        with self._context.left():
            return self._walk(table.name, statement)

    def create_index(self, name: str, table: str, columns: Sequence[str], **options: Any) -> None:
        """Make an index as `op.create_index` does, on PostgreSQL CONCURRENTLY; what a killed run left is made anew.

        In a caller's transaction, where that cannot be, and on SQLite the usual way is taken, and writers wait.
        """
        context, op = self._context, Operations(self._context)
        database = dialect_of(op.get_bind())
        if not database.migrations.concurrent_indexes or not (context.as_sql or context.owns_transactions):
            op.create_index(name, table, columns, if_not_exists=True, **options)
            return
        with context.autocommit_block():
            if not context.as_sql and name in database.migrations.unfinished_indexes(op.get_bind(), table):
                # Of a table that is distributed, some parts may not have it yet.
                op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
            op.create_index(name, table, columns, if_not_exists=True, postgresql_concurrently=True, **options)

    def _walk(self, table: str, statement: sa.Update | sa.Delete) -> int:
        context = self._context
        with context.reading() as connection:
            names = sa.inspect(connection).get_pk_constraint(table)["constrained_columns"]
            columns: list[sa.ColumnElement[Any]] = [sa.literal_column(f"{table}.{name}") for name in names]
            key = sa.tuple_(*columns)
            keys = sa.select(*columns).select_from(sa.table(table))
            end = connection.execute(keys.order_by(*(column.desc() for column in columns)).limit(1)).first()
            total = 0 if self._on_progress is None else _count(connection, table)
        database = dialect_of(connection)
        rest = database.migrations.batch_rest if context.owns_transactions else 0.0
        rows, changed, size = 0, 0, _FIRST
        behind: sa.ColumnElement[bool] = sa.true()
        while end is not None:  # each batch ends behind the one before, or is smaller than it was
            began = perf_counter()
            try:
                with context.batch(_CUT_AFTER if size > 1 else None) as connection:
                    ahead = keys.where(behind, key <= _tuple(end)).order_by(*columns).offset(size - 1).limit(1)
                    last = connection.execute(ahead).first() or end
                    done = connection.execute(statement.where(behind, key <= _tuple(last))).rowcount
            except sa.exc.DBAPIError as error:
                if size == 1 or not database.migrations.was_cut(error.orig):
                    raise
                size //= 2
                continue
            changed += done
            took = perf_counter() - began
            rows = total if last == end else min(rows + size, total)
            if self._on_progress is not None:
                self._on_progress(Progress(table, rows, total))
            if last == end:
                break
            behind = key > _tuple(last)
            size = min(max(1, int(size * min(max(_SECONDS / took, 0.5), 2.0))), _LARGEST)
            sleep(rest)
        return changed


def _tuple(values: Sequence[Any]) -> sa.ColumnElement[Any]:
    return sa.tuple_(*(sa.literal(value) for value in values))


def _count(connection: sa.Connection, table: str) -> int:
    found: int = connection.execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar_one()
    return found
