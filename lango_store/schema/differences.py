"""Where the tables of a database differ from what this release needs."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.runtime.migration import MigrationContext

from lango_store._dialect import dialect_of
from lango_store.schema.options import OPTIONS, render_item
from lango_store.tables import Base


def columns_and_tables(connection: sa.Connection) -> list[str]:
    """Return what Alembic would change, a sentence each."""
    options = {**OPTIONS, "script": None}
    context = MigrationContext.configure(connection, opts=options)
    script = produce_migrations(context, Base.metadata)
    assert script.upgrade_ops is not None
    code = render_python_code(script.upgrade_ops, render_item=render_item, migration_context=context)
    lines = [line.strip() for line in code.splitlines()]
    return [f"to be as this release needs it: {line}" for line in lines if line.startswith(("op.", "batch_op."))]


def predicates(connection: sa.Connection) -> list[str]:
    """Compare what partial indexes are partial by, which Alembic does not."""
    found: list[str] = []
    dialect = dialect_of(connection).name
    for (_, name), indexes in sa.inspect(connection).get_multi_indexes(filter_names=[*Base.metadata.tables]).items():
        there: dict[Any, Any] = {index["name"]: index for index in indexes}
        for index in Base.metadata.tables[name].indexes:
            needed = index.dialect_options[dialect].get("where")
            has = there.get(index.name, {}).get("dialect_options", {}).get(f"{dialect}_where")
            if index.name in there and _bare(needed) != _bare(has):
                found.append(f"index {index.name} is WHERE {has}, this release needs WHERE {needed}: make it again")
    return found


def constraints(connection: sa.Connection) -> list[str]:
    """Compare what rows are checked for, which Alembic does not."""
    found: list[str] = []
    checks = sa.inspect(connection).get_multi_check_constraints(filter_names=[*Base.metadata.tables])
    for (_, name), checked in checks.items():
        there = {each["name"]: each["sqltext"] for each in checked}
        for each in Base.metadata.tables[name].constraints:
            if isinstance(each, sa.CheckConstraint) and _bare(there.get(str(each.name))) != _bare(each.sqltext):
                has = there.get(str(each.name))
                found.append(
                    f"constraint {each.name} is CHECK {has}, this release needs CHECK {each.sqltext}: make it again"
                )
    return found


def _bare(predicate: object) -> str:
    return re.sub(r"[\s()\"]", "", str(predicate)).lower()
