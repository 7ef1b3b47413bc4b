"""Add to messages which model wrote them, who ran it, and the fingerprint of the request that they answer."""

import sqlalchemy as sa
from alembic import op

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None

TABLES = ("lango_message", "lango_removed_message")
COLUMNS = ("model", "provider", "request")


def upgrade() -> None:
    for table in TABLES:
        for name in COLUMNS:
            op.add_column(table, sa.Column(name, sa.Text()))


def downgrade() -> None:
    for table in reversed(TABLES):
        for name in reversed(COLUMNS):
            op.drop_column(table, name)
