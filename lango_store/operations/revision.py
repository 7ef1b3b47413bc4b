"""Which revision of the schema a database is at, asked without Alembic."""

from __future__ import annotations

import sqlalchemy as sa

from lango_store.tables import VERSION_TABLE

_versions = sa.table(VERSION_TABLE, sa.column("version_num", sa.Text))


def found(connection: sa.Connection) -> str | None:
    """Tell the database's revision, None if it has none."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(sa.select(_versions.c.version_num)).scalar()
    return revision
