"""Add the tables of removed messages and turns, from which changes can be taken back."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def _version_of(table: str, number: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("session_key", KEY, nullable=False),
        sa.Column(number, sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("removed_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("next_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("session_key", number, "removed_at", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["session_key"], ["lango_session.key"], name=f"fk_{table}_session", ondelete="CASCADE"),
    ]


def upgrade() -> None:
    op.create_table(
        "lango_removed_message",
        *_version_of("lango_removed_message", "seq"),
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
        sa.Column("sent", JSON),
        sa.Column("payloads", JSON),
    )
    op.create_index("ix_lango_removed_message_removed_at", "lango_removed_message", ["session_key", "removed_at"])
    op.create_table(
        "lango_removed_turn",
        *_version_of("lango_removed_turn", "turn_no"),
        sa.Column("id", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("replaced_upto", sa.BigInteger()),
        sa.Column("usage", JSON),
        sa.Column("metadata", JSON),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
    )
    op.add_column("lango_change", sa.Column("undo_until", TIME))
    op.add_column("lango_change", sa.Column("added_upto", sa.BigInteger()))
    op.add_column("lango_change", sa.Column("consolidated", sa.BigInteger()))
    is_set = sa.text("undo_until IS NOT NULL")
    op.create_index(
        "ix_lango_change_undo_until", "lango_change", ["undo_until"], sqlite_where=is_set, postgresql_where=is_set
    )


def downgrade() -> None:
    op.drop_index("ix_lango_change_undo_until", "lango_change")
    for column in ("consolidated", "added_upto", "undo_until"):
        op.drop_column("lango_change", column)
    op.drop_table("lango_removed_turn")
    op.drop_table("lango_removed_message")
