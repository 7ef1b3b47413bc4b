"""Add the content that a model received to messages, where it differs from the stored content."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None

JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")


def upgrade() -> None:
    op.add_column("lango_message", sa.Column("sent", JSON))


def downgrade() -> None:
    op.drop_column("lango_message", "sent")
