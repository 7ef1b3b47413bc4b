"""Which life of its key a session is: a random number that it gets when it comes into being; 0 was made before."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lango_session", sa.Column("incarnation", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("lango_session") as batch:
        batch.drop_column("incarnation")
