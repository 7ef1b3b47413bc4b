"""Add the table of changes, which explains missing seqs, and the table of features that a database uses."""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "lango_change",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("after_seq", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.Text()),
        sa.Column("changed_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("session_key", "seq", name="pk_lango_change"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_change_session", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "lango_feature",
        sa.Column("name", KEY, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lango_feature"),
    )


def downgrade() -> None:
    op.drop_table("lango_feature")
    op.drop_table("lango_change")
