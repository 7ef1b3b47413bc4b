"""Migration revisions for tests, newer than those of the release."""

import shutil
from pathlib import Path

import pytest
from support.paths import ROOT

from lango_store._connections import schema_gate
from lango_store._operations import revision as revisions
from lango_store.schema import core, running
from lango_store.tables import SCHEMA_REVISION

SHIPPED = ROOT / "migrations"
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
    """Add two revisions, as a later release does; with `needed` the code requires them."""
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for before, number in zip((SCHEMA_REVISION, *LATER), LATER, strict=False):
        (folder / "versions" / f"{number}_moods.py").write_text(_TEXT.format(number=number, before=before))
    monkeypatch.setattr(running, "_folder", lambda: folder)
    if needed:
        for module in (core, schema_gate, revisions):
            monkeypatch.setattr(module, "SCHEMA_REVISION", LATER[-1])


def ship_revision(folder: Path, monkeypatch: pytest.MonkeyPatch, upgrade: str) -> str:
    """Add a revision with this body of `upgrade()`, and return its number."""
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = f'''"""A revision of a test."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0998", "{SCHEMA_REVISION}"
branch_labels = depends_on = None


def upgrade() -> None:
    {upgrade}


def downgrade() -> None:
    pass
'''
    (folder / "versions" / "0998_of_a_test.py").write_text(text)
    monkeypatch.setattr(running, "_folder", lambda: folder)
    return "0998"
