"""Create the tables of sessions, turns, messages and values.

This is the first revision. It combines the revisions 0001 to 0005 from before the first release. Later revisions are
never combined, because existing databases refer to them.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def partial_index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    """Create an index of the rows in which the first column, or the id of a unique index, is not NULL."""
    column = "id" if unique else columns[0]
    where = sa.text(f"{column} IS NOT NULL")
    op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)


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
        sa.Column("record_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("token_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("turn_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_turn_no", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("summary_turn", sa.BigInteger()),
        sa.Column("summarized_upto", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_consolidated", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("forked_from", sa.Text()),
        sa.Column("incarnation", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_lango_session"),
    )
    op.create_index("ix_lango_session_updated_at", "lango_session", ["updated_at", "key"])
    for owner in ("user_id", "agent_id"):
        partial_index(f"ix_lango_session_{owner}", "lango_session", [owner, "updated_at", "key"])
    partial_index("ix_lango_session_expires_at", "lango_session", ["expires_at"])
    op.create_table(
        "lango_turn",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("turn_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("replaced_upto", sa.BigInteger()),
        sa.Column("usage", JSON),
        sa.Column("metadata", JSON),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "turn_no", name="pk_lango_turn"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_turn_session", ondelete="CASCADE"
        ),
    )
    partial_index("uq_lango_turn_id", "lango_turn", ["session_key", "id"], unique=True)
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
        sa.Column("text", sa.Text()),
        sa.Column("content", JSON),
        sa.Column("tool_calls", JSON),
        sa.Column("tokens", sa.BigInteger()),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "seq", name="pk_lango_message"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_message_session", ondelete="CASCADE"
        ),
        sa.CheckConstraint("(text IS NULL) <> (content IS NULL)", name="ck_lango_message_content"),
    )
    partial_index("uq_lango_message_id", "lango_message", ["session_key", "id"], unique=True)
    op.create_table(
        "lango_value",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("value", JSON, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "name", name="pk_lango_value"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_value_session", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "lango_shared_value",
        sa.Column("scope", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("value", JSON, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", name="pk_lango_shared_value"),
    )


def downgrade() -> None:
    op.drop_table("lango_shared_value")
    op.drop_table("lango_value")
    op.drop_table("lango_message")
    op.drop_table("lango_turn")
    op.drop_table("lango_session")
