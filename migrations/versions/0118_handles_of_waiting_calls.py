"""Add to suspensions the handle of a tool call that waits for its result from outside."""

import sqlalchemy as sa
from alembic import op

revision = "0118"
down_revision = "0117"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lango_suspension", sa.Column("handle", sa.Text()))
    where = sa.text("handle IS NOT NULL")
    columns = ["handle", "session_key", "digest"]
    op.create_index(
        "ix_lango_suspension_handle", "lango_suspension", columns, sqlite_where=where, postgresql_where=where
    )


def downgrade() -> None:
    op.drop_index("ix_lango_suspension_handle", "lango_suspension")
    # Without the handle, a call that waits would be a question to a person, whose answer is not the result of the call.
    op.execute("DELETE FROM lango_suspension WHERE handle IS NOT NULL")
    op.drop_column("lango_suspension", "handle")
