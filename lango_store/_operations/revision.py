"""Which revision of the schema a database is at, asked without Alembic."""

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.tables import SCHEMA_REVISION, VERSION_TABLE


def found(connection: sa.Connection) -> str | None:
    """Return the revision of the schema in which tables are created, None if it has none of the store's."""
    dialect = dialect_of(connection)
    table = sa.table(VERSION_TABLE, schema=dialect.schema(connection))
    versions = connection.dialect.identifier_preparer.format_table(table)
    if not dialect.has_table(connection, versions):
        return None
    revision = connection.exec_driver_sql(f"SELECT version_num FROM {versions}").scalar()
    # Revisions are compared as text.
    if revision is None or (isinstance(revision, str) and len(revision) == len(SCHEMA_REVISION) and revision.isdigit()):
        return revision
    raise LangoStoreError(
        f"{VERSION_TABLE} says {revision!r}, which is not a revision: `lango-store db stamp` writes one"
    )


def required(connection: sa.Connection) -> str:
    """Return the revision of the schema; `SchemaOutOfDate` if it is older than the one this release needs."""
    revision = found(connection)
    if revision is None or revision < SCHEMA_REVISION:
        raise SchemaOutOfDate(revision, SCHEMA_REVISION, dialect_of(connection).schema(connection))
    return revision
