"""The number of a session's last turn, given out like `last_seq`: never twice, whatever is deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lango_session", sa.Column("last_turn_no", sa.BigInteger(), server_default="0", nullable=False))
    op.execute(
        "UPDATE lango_session SET last_turn_no = turns.last FROM "
        "(SELECT session_key, max(turn_no) AS last FROM lango_turn GROUP BY session_key) AS turns "
        "WHERE turns.session_key = lango_session.key"
    )


def downgrade() -> None:
    with op.batch_alter_table("lango_session") as batch:
        batch.drop_column("last_turn_no")
