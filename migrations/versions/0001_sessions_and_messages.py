"""Sessions and their messages."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "lango_session",
        sa.Column("key", KEY, nullable=False),
        sa.Column("agent_id", sa.Text()),
        sa.Column("user_id", sa.Text()),
        sa.Column("title", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("settings", JSON),
        sa.Column("metadata", JSON),
        sa.Column("tools", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.Column("ttl_seconds", sa.Double()),
        sa.Column("last_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("message_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("token_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("turn_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("summary_turn", sa.BigInteger()),
        sa.Column("summarized_upto", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_consolidated", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("forked_from", sa.Text()),
        sa.Column("extra", JSON),
        sa.PrimaryKeyConstraint("key", name="pk_lango_session"),
    )
    op.create_index("ix_lango_session_updated_at", "lango_session", ["updated_at", "key"])
    op.create_index(
        "ix_lango_session_expires_at",
        "lango_session",
        ["expires_at"],
        sqlite_where=sa.text("expires_at IS NOT NULL"),
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_table(
        "lango_message",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("turn_no", sa.BigInteger()),
        sa.Column("id", sa.Text()),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("author", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("tool_call_id", sa.Text()),
        sa.Column("content", JSON),
        sa.Column("tool_calls", JSON),
        sa.Column("tokens", sa.BigInteger()),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "seq", name="pk_lango_message"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_message_session", ondelete="CASCADE"
        ),
    )
    op.create_index(
        "uq_lango_message_id",
        "lango_message",
        ["session_key", "id"],
        unique=True,
        sqlite_where=sa.text("id IS NOT NULL"),
        postgresql_where=sa.text("id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("lango_message")
    op.drop_table("lango_session")
