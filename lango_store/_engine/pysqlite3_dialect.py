"""The SQLAlchemy dialect for `sqlite+pysqlite3://`: the package pysqlite3, which has a newer SQLite than Python."""

from importlib import import_module
from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from lango_store.errors import InstallationIncomplete


class PySQLite3(SQLiteDialect_pysqlite):
    """SQLite through pysqlite3."""

    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the driver's module."""
        try:
            return import_module("pysqlite3.dbapi2")
        except ImportError as error:
            raise InstallationIncomplete("pysqlite3 is missing: pip install 'lango-store[sqlite]'") from error
