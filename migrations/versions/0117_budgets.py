"""Add the table of budgets."""

import sqlalchemy as sa
from alembic import op

revision = "0117"
down_revision = "0116"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
IS_RESERVATION = sa.text("holder IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "lango_budget",
        sa.Column("scope", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("cap", sa.BigInteger()),
        sa.Column("ends_at", TIME),
        sa.Column("holder", KEY),
        sa.Column("token", sa.BigInteger()),
        sa.Column("after_turn", sa.BigInteger()),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", name="pk_lango_budget"),
    )
    op.create_index(
        "ix_lango_budget_holder",
        "lango_budget",
        ["holder"],
        postgresql_where=IS_RESERVATION,
        sqlite_where=IS_RESERVATION,
    )


def downgrade() -> None:
    op.drop_table("lango_budget")
