"""Virtual table modules of SQLite: an engine without FTS5, as in builds of SQLite that do not include it."""

import _sqlite3
import ctypes
from typing import Any, Final

import sqlalchemy as sa

from lango_store import create_engine

_HEAD: Final = object.__basicsize__  # sqlite3.Connection begins with the pointer to the database
_LIBRARY: Final = ctypes.CDLL(getattr(_sqlite3, "__file__", None))


def engine_without_fts5(url: str) -> sa.Engine:
    """Return an engine whose connections have no module but the JSON functions."""
    engine = create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def drop_modules(driver: Any, _: object) -> None:
        database = ctypes.c_void_p.from_address(id(driver) + _HEAD)
        remaining = (ctypes.c_char_p * 2)(b"json_each", None)
        assert _LIBRARY.sqlite3_drop_modules(database, remaining) == 0

    return engine
