"""The check of the room."""

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._parts.checks import Check, Fault


def _undistributed(connection: sa.Connection) -> Iterator[Fault]:
    for table in dialect_of(connection).undistributed_tables(connection):
        detail = f"{table} is not distributed, although other tables of the store are"
        yield table, detail, "run `lango-store db distribute`"


DISTRIBUTION: Final = Check("distribution", _undistributed)
