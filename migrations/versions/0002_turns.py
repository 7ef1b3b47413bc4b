"""Turns: which messages were appended together, and what they cost."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
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
    op.create_index(
        "uq_lango_turn_id",
        "lango_turn",
        ["session_key", "id"],
        unique=True,
        sqlite_where=sa.text("id IS NOT NULL"),
        postgresql_where=sa.text("id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("lango_turn")
