"""What Alembic is told of our schema: which tables are ours, how types are written, where the revisions are."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from alembic.autogenerate.api import AutogenContext
from alembic.config import Config
from alembic.script import ScriptDirectory

from lango_store._rows.columns import KEY_TEXT, JsonColumn, RoleColumn, TimeColumn
from lango_store.errors import LangoStoreError
from lango_store.tables import VERSION_TABLE, Base


def is_ours(name: str | None, type_: str, parents: Mapping[str, Any]) -> bool:
    """Return whether a name that Alembic found is one of ours."""
    return type_ != "table" or name in Base.metadata.tables


def render_item(kind: str, item: Any, context: AutogenContext) -> str | Literal[False]:
    """Write plain SQLAlchemy types into a new revision, which may import nothing of the package."""
    plain = {JsonColumn: "postgresql.JSON()", TimeColumn: "sa.DateTime(timezone=True)", RoleColumn: "sa.Text()"}
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


def script_directory() -> ScriptDirectory:
    """Return the revisions that are shipped with this release."""
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _folder() -> Path:
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise LangoStoreError(f"no revisions beside {package}: install the package again")
