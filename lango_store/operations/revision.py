"""Which revision of the schema a database is at, asked without Alembic."""

from __future__ import annotations

import sqlalchemy as sa

from lango_store.dialect import dialect_of
from lango_store.errors import LangoStoreError
from lango_store.tables import VERSION_TABLE


def found(connection: sa.Connection) -> str | None:
    """Return the revision of the schema in which tables are created, None if it has none of the store's."""
    schema = dialect_of(connection).schema(connection)
    if not sa.inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    versions = sa.table(VERSION_TABLE, sa.column("version_num", sa.Text), schema=schema)
    revision = connection.execute(sa.select(versions.c.version_num)).scalar()
    if revision is None or isinstance(revision, str):
        return revision
    raise LangoStoreError(
        f"{VERSION_TABLE} says {revision!r}, which is not a revision: `lango-store db stamp` writes one"
    )
