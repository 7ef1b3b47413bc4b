"""Add to suspensions who has answered, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None

COLUMNS = ("answered_by", "answered_why")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("lango_suspension", sa.Column(name, sa.Text()))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("lango_suspension", name)
