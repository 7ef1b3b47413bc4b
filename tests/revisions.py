"""Revisions of the tests' own behind those that are shipped, for what a schema of several has to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lango_store import access, schema
from lango_store.schema import options
from lango_store.tables import SCHEMA_REVISION

SHIPPED = Path(__file__).parent.parent / "migrations"
LATER = ("0998", "0999")

_TEXT = '''"""Moods, part {number}."""

import sqlalchemy as sa
from alembic import op

revision = "{number}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("lango_mood_{number}", sa.Column("name", sa.Text(), primary_key=True))
    for table in ("lango_session", "lango_message"):
        op.add_column(table, sa.Column("mood_{number}", sa.Text(), server_default="fine", nullable=False))


def downgrade() -> None:
    for table in ("lango_session", "lango_message"):
        with op.batch_alter_table(table) as batch:
            batch.drop_column("mood_{number}")
    op.drop_table("lango_mood_{number}")
'''


def add_later_revisions(folder: Path, monkeypatch: pytest.MonkeyPatch, *, needed: bool = False) -> None:
    """Ship two more revisions, as a later release does; with `needed` it is the code of that release too."""
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for before, number in zip((SCHEMA_REVISION, *LATER), LATER, strict=False):
        (folder / "versions" / f"{number}_moods.py").write_text(_TEXT.format(number=number, before=before))
    monkeypatch.setattr(options, "_folder", lambda: folder)
    if needed:
        for module in (access, schema):
            monkeypatch.setattr(module, "SCHEMA_REVISION", LATER[-1])
