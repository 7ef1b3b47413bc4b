"""Which revision of the schema a database is at, asked without Alembic."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.tables import BASELINE, SCHEMA_REVISION, VERSION_TABLE

_MOVE: Final = (
    "no upgrade leads on from there; `lango-store export --all --to FILE --format jsonl` with the checkout that "
    "made it, then `lango-store import FILE` into a new database with this one"
)


def found(connection: sa.Connection) -> str | None:
    """Return the revision of the schema in which tables are created, None if it has none of the store's.

    `SchemaOutOfDate` for a revision from before the baseline.
    """
    dialect = dialect_of(connection)
    schema = dialect.schema(connection)
    versions = connection.dialect.identifier_preparer.format_table(sa.table(VERSION_TABLE, schema=schema))
    if not dialect.has_table(connection, versions):
        return None
    revision = connection.exec_driver_sql(f"SELECT version_num FROM {versions}").scalar()
    if isinstance(revision, str) and revision < BASELINE:
        raise SchemaOutOfDate(revision, SCHEMA_REVISION, schema, remedy=_MOVE)
    if revision is None or isinstance(revision, str):
        return revision
    raise LangoStoreError(
        f"{VERSION_TABLE} says {revision!r}, which is not a revision: `lango-store db stamp` writes one"
    )
