"""Add when messages entered the log, the turns that took messages from the inbox, and a mark of copied turns."""

import sqlalchemy as sa
from alembic import op

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None

TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
MESSAGES = ("lango_message", "lango_removed_message")
TURNS = ("lango_turn", "lango_removed_turn")


def upgrade() -> None:
    for table in MESSAGES:
        op.add_column(table, sa.Column("logged_at", TIME))
        op.add_column(table, sa.Column("taken_by", sa.Text()))
    is_unfinished = sa.text("taken_by IS NOT NULL AND turn_no IS NULL")
    op.create_index(
        "ix_lango_message_taken_by",
        "lango_message",
        ["session_key", "taken_by"],
        sqlite_where=is_unfinished,
        postgresql_where=is_unfinished,
    )
    for table in TURNS:
        op.add_column(table, sa.Column("copied_from", sa.Text()))
        # Until this revision, a turn of a fork was a copy if it was older than the fork.
        op.execute(
            f"UPDATE {table} SET copied_from = (SELECT s.forked_from FROM lango_session AS s "
            f"WHERE s.key = {table}.session_key) WHERE EXISTS (SELECT 1 FROM lango_session AS s "
            f"WHERE s.key = {table}.session_key AND s.forked_from IS NOT NULL AND {table}.created_at < s.created_at)"
        )


def downgrade() -> None:
    for table in TURNS:
        op.drop_column(table, "copied_from")
    op.drop_index("ix_lango_message_taken_by", "lango_message")
    for table in MESSAGES:
        op.drop_column(table, "taken_by")
        op.drop_column(table, "logged_at")
