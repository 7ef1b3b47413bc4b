"""Add to messages of the inbox the time from which a turn takes them."""

import sqlalchemy as sa
from alembic import op

revision = "0114"
down_revision = "0113"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
    op.add_column("lango_inbox", sa.Column("due_at", time))


def downgrade() -> None:
    # Without the times, the next turn takes the messages.
    op.execute(
        "UPDATE lango_session SET waiting = coalesce(waiting, 0) | 1 "
        "WHERE key IN (SELECT session_key FROM lango_inbox WHERE due_at IS NOT NULL)"
    )
    op.drop_column("lango_inbox", "due_at")
