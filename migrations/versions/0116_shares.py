"""Add the table of links to conversations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0116"
down_revision = "0115"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "lango_share",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("digest", KEY, nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("tools", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("until", TIME),
        sa.Column("shared_by", sa.Text()),
        sa.Column("left_out", JSON),
        sa.PrimaryKeyConstraint("session_key", "digest", name="pk_lango_share"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_share_session", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_lango_share_digest", "lango_share", ["digest"])
    op.create_index("ix_lango_share_created_at", "lango_share", ["created_at", "session_key", "digest"])


def downgrade() -> None:
    op.drop_table("lango_share")
