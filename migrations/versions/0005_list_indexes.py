"""The sessions of a user, or of an agent, by their last update: without an index each list reads the whole table."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

OWNERS = ("user_id", "agent_id")


def upgrade() -> None:
    for owner in OWNERS:
        op.create_index(
            f"ix_lango_session_{owner}",
            "lango_session",
            [owner, "updated_at", "key"],
            sqlite_where=sa.text(f"{owner} IS NOT NULL"),
            postgresql_where=sa.text(f"{owner} IS NOT NULL"),
        )


def downgrade() -> None:
    for owner in OWNERS:
        op.drop_index(f"ix_lango_session_{owner}", "lango_session")
