"""Alembic's options for our tables and types, and the comparison of a database with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._operations.derived_data import DERIVED
from lango_store._rows.columns import KEY_TEXT, TEXT, JsonColumn, RoleColumn, TimeColumn
from lango_store.tables import VERSION_TABLE, Base

if TYPE_CHECKING:  # importing Alembic takes longer than most commands
    from alembic.autogenerate.api import AutogenContext

_TABLES: Final = Base.metadata.tables


def is_ours(name: str | None, type_: str, parents: Mapping[str, Any]) -> bool:
    """Return False for the tables of the host application, which Alembic must ignore."""
    return type_ != "table" or name in _TABLES


def render_item(kind: str, item: Any, context: AutogenContext) -> str | Literal[False]:
    """Render plain SQLAlchemy types in a new revision, because revisions must not import the package."""
    plain = {JsonColumn: "postgresql.JSON()", TimeColumn: "sa.DateTime(timezone=True)", RoleColumn: "sa.Text()"}
    if item is TEXT:
        return "sa.Text()"
    if kind != "type" or (type(item) not in plain and item is not KEY_TEXT):
        return False
    if type(item) is JsonColumn:
        context.imports.add("from sqlalchemy.dialects import postgresql")
    variant = plain.get(type(item), 'sa.Text(collation="C")')
    return f'sa.Text().with_variant({variant}, "postgresql")'


OPTIONS: Final[dict[str, Any]] = {
    "target_metadata": Base.metadata,
    "version_table": VERSION_TABLE,
    "include_name": is_ours,
    "render_as_batch": True,
    "render_item": render_item,
    "transactional_ddl": True,
    "compare_type": True,
}


def differences(connection: sa.Connection) -> Iterator[str]:
    """Yield a sentence for each difference between the tables of a database and those that this release needs."""
    from alembic.autogenerate import produce_migrations, render_python_code
    from alembic.runtime.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={**OPTIONS, "script": None})
    script = produce_migrations(context, Base.metadata)
    assert script.upgrade_ops is not None
    code = render_python_code(script.upgrade_ops, render_item=render_item, migration_context=context)
    for line in map(str.strip, code.splitlines()):
        if line.startswith(("op.", "batch_op.")):
            yield f"to be as this release needs it: {line}"
    yield from _conditions(connection)
    for derived in DERIVED:
        if (fault := derived.fault(connection)) is not None:
            yield f"the {derived.name} cannot be used: {fault}"


def _conditions(connection: sa.Connection) -> Iterator[str]:
    """Yield the differences that Alembic does not find: predicates of partial indexes, and CHECKs of tables."""
    inspector, where = sa.inspect(connection), f"{dialect_of(connection).name}_where"
    indexes = inspector.get_multi_indexes(filter_names=[*_TABLES]).values()
    stored = {index["name"]: index.get("dialect_options", {}).get(where) for index in chain(*indexes)}
    checks = inspector.get_multi_check_constraints(filter_names=[*_TABLES]).values()
    sql = {check["name"]: check["sqltext"] for check in chain(*checks)}
    for table in _TABLES.values():
        for index in table.indexes:
            actual, needed = stored.get(index.name), index.dialect_kwargs.get(where)
            if index.name in stored and _normalized(needed) != _normalized(actual):
                yield f"index {index.name} is WHERE {actual}, this release needs WHERE {needed}: recreate it"
        for each in table.constraints:
            if not isinstance(each, sa.CheckConstraint):
                continue
            actual = sql.get(str(each.name))
            if _normalized(actual) != _normalized(each.sqltext):
                yield f"constraint {each.name} is CHECK {actual}, this release needs CHECK {each.sqltext}: recreate it"


def _normalized(predicate: object) -> str:
    return re.sub(r"[\s()\"]", "", str(predicate)).lower()
