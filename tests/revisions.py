"""Revisions of the tests' own, after those that are shipped, for tests that need several."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from factories import messages

from lango_store import Store, create_engine, schema, schema_gate
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
    """Ship two more revisions, as a later release does; with `needed` the code is that release's too."""
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for before, number in zip((SCHEMA_REVISION, *LATER), LATER, strict=False):
        (folder / "versions" / f"{number}_moods.py").write_text(_TEXT.format(number=number, before=before))
    monkeypatch.setattr(options, "_folder", lambda: folder)
    if needed:
        for module in (schema, schema_gate):
            monkeypatch.setattr(module, "SCHEMA_REVISION", LATER[-1])


ONLINE = ("0991", "0992", "0993")
NEWEST = ONLINE[-1]

_HEAD = '''"""{about}."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "{number}", "{before}"
branch_labels = depends_on = None
online = lambda: op.get_context().opts["online"]
message = sa.table("lango_message", sa.column("role"), sa.column("shout"))


'''

_ADD_COLUMN = """def upgrade() -> None:
    op.add_column("lango_message", sa.Column("shout", sa.Text()))


def downgrade() -> None:
    op.drop_column("lango_message", "shout")
"""

_FILL = """def upgrade() -> None:
    online().in_batches(
        sa.update(message).where(message.c.shout.is_(None)).values(shout=sa.func.upper(message.c.role))
    )


def downgrade() -> None:
    online().in_batches(sa.update(message).where(message.c.shout.is_not(None)).values(shout=None))
"""

_INDEX = """def upgrade() -> None:
    online().create_index("ix_lango_message_shout", "lango_message", ["shout"])


def downgrade() -> None:
    op.drop_index("ix_lango_message_shout", "lango_message")
"""


def write_online_revisions(folder: Path, *, fill: str = _FILL, index: str = _INDEX) -> Path:
    """Write three revisions that change a table in use: a column, what stands in it, and an index of it."""
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    parts = {"A column": _ADD_COLUMN, "What stands in it": fill, "An index": index}
    for before, number, (about, part) in zip((SCHEMA_REVISION, *ONLINE), ONLINE, parts.items(), strict=False):
        text = _HEAD.format(about=about, number=number, before=before) + part
        (folder / "versions" / f"{number}_online.py").write_text(text)
    return folder


UPGRADE = """
import sys
from pathlib import Path
from lango_store import schema
from lango_store.schema import options

options._folder = lambda: Path(sys.argv[2])
print(schema.upgrade(*sys.argv[1::2], on_progress=lambda progress: print(progress.rows, flush=True)))
"""


def fill(url: str, number: int) -> None:
    with Store(url) as store:
        for session in range(10):
            store.create(f"k{session}", messages=messages(number // 10))


def value(url: str, query: str) -> Any:
    engine = create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


SHOUTING = "SELECT count(*) FROM lango_message WHERE shout = upper(role)"
SILENT = "SELECT count(*) FROM lango_message WHERE shout IS NULL"


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ship three more revisions: a column, what stands in it, and an index of it."""
    folder = write_online_revisions(tmp_path / "online")
    monkeypatch.setattr(options, "_folder", lambda: folder)
    return folder
