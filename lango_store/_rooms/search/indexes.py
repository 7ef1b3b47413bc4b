"""The search index of each database."""

from typing import Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._rooms.search.fts5 import Fts5
from lango_store._rooms.search.gin import Gin
from lango_store._rooms.search.index import SearchIndex

INDEXES: Final[dict[str, SearchIndex]] = {"sqlite": Fts5(), "postgresql": Gin()}
"""The index of each dialect, by its name."""


def index_of(connection: sa.Connection | sa.Engine) -> SearchIndex:
    """Return the index of a connection or an engine."""
    return INDEXES[dialect_of(connection).name]
