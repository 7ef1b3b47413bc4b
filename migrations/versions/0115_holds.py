"""Add to sessions the hold that protects them from deletion."""

import sqlalchemy as sa
from alembic import op

revision = "0115"
down_revision = "0114"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lango_session", sa.Column("hold", sa.Text()))


def downgrade() -> None:
    op.drop_column("lango_session", "hold")
