"""Schema revision: read a database's migration revision and features without Alembic."""

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store.errors import DamagedDatabase, SchemaOutOfDate, UnknownFeature, quoted
from lango_store.tables import FEATURE_TABLE, KNOWN_FEATURES, SCHEMA_REVISION, VERSION_TABLE, Base


def found(connection: sa.Connection) -> str | None:
    """Return the migration revision in the schema where tables are created; None without a version table."""
    dialect = dialect_of(connection)
    table = sa.table(VERSION_TABLE, schema=dialect.schema(connection))
    versions = connection.dialect.identifier_preparer.format_table(table)
    if not dialect.has_table(connection, versions):
        return None
    rows = connection.exec_driver_sql(f"SELECT version_num FROM {versions}").scalars().all()
    if len(rows) > 1:
        raise DamagedDatabase(f"{VERSION_TABLE} has {len(rows)} rows instead of one: `lango-store db stamp` writes it")
    revision = rows[0] if rows else None
    # Revisions are compared as text, so all have the same length and only digits.
    if revision is None or (isinstance(revision, str) and len(revision) == len(SCHEMA_REVISION) and revision.isdigit()):
        return revision
    raise DamagedDatabase(
        f"{VERSION_TABLE} says {quoted(revision)}, which is not a revision: `lango-store db stamp` writes one"
    )


def required(connection: sa.Connection) -> str:
    """Return the migration revision; raise `SchemaOutOfDate` if it is older than this release needs."""
    revision = found(connection)
    if revision is None or revision < SCHEMA_REVISION:
        raise SchemaOutOfDate(revision, SCHEMA_REVISION, dialect_of(connection).schema(connection))
    return revision


def features(connection: sa.Connection) -> list[str]:
    """Return the features that a database uses; none if it has no table of features."""
    if not dialect_of(connection).has_table(connection, FEATURE_TABLE):
        return []  # damage, which other checks report
    return list(connection.exec_driver_sql(f"SELECT name FROM {FEATURE_TABLE} ORDER BY name").scalars())


def reject_unknown_features(connection: sa.Connection) -> None:
    """Raise `UnknownFeature` for a database that only a newer release may use."""
    if unknown := [name for name in features(connection) if name not in KNOWN_FEATURES]:
        raise UnknownFeature(unknown)


def missing_tables(connection: sa.Connection) -> list[str]:
    """Return the names of the store's tables that do not exist, whatever the revision says."""
    dialect, preparer = dialect_of(connection), connection.dialect.identifier_preparer
    schema = dialect.schema(connection)
    names = {name: preparer.format_table(sa.table(name, schema=schema)) for name in sorted(Base.metadata.tables)}
    return [name for name, quoted in names.items() if not dialect.has_table(connection, quoted)]
