"""Add the lease of the turn in progress to sessions, and the tables of drafts and of inbox messages."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def _session_reference(name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["session_key"], ["lango_session.key"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    op.add_column("lango_session", sa.Column("lease_token", sa.BigInteger()))
    op.add_column("lango_session", sa.Column("lease_turn", sa.Text()))
    op.add_column("lango_session", sa.Column("lease_until", TIME))
    op.create_table(
        "lango_draft",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("piece", JSON, nullable=False),
        sa.Column("written_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "n", name="pk_lango_draft"),
        _session_reference("fk_lango_draft_session"),
    )
    op.create_table(
        "lango_inbox",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text()),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("author", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("tool_call_id", sa.Text()),
        sa.Column("text", sa.Text()),
        sa.Column("content", JSON),
        sa.Column("sent", JSON),
        sa.Column("tool_calls", JSON),
        sa.Column("tokens", sa.BigInteger()),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "n", name="pk_lango_inbox"),
        _session_reference("fk_lango_inbox_session"),
        sa.CheckConstraint("(text IS NULL) <> (content IS NULL)", name="ck_lango_inbox_content"),
    )
    id_is_set = sa.text("id IS NOT NULL")
    op.create_index(
        "uq_lango_inbox_id",
        "lango_inbox",
        ["session_key", "id"],
        unique=True,
        sqlite_where=id_is_set,
        postgresql_where=id_is_set,
    )


def downgrade() -> None:
    op.drop_table("lango_inbox")
    op.drop_table("lango_draft")
    for column in ("lease_until", "lease_turn", "lease_token"):
        op.drop_column("lango_session", column)
