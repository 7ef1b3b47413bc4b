"""Add the tables of alternatives, and their number to sessions."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0119"
down_revision = "0118"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def _table(name: str, number: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("session_key", KEY, nullable=False),
        sa.Column(number, sa.BigInteger(), autoincrement=False, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("session_key", number, name=f"pk_{name}"),
        sa.ForeignKeyConstraint(["session_key"], ["lango_session.key"], name=f"fk_{name}_session", ondelete="CASCADE"),
    )


def upgrade() -> None:
    op.add_column("lango_session", sa.Column("alternatives", sa.BigInteger()))
    _table(
        "lango_alternative",
        "first_seq",
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("after_seq", sa.BigInteger(), nullable=False),
        sa.Column("within", sa.BigInteger()),
        sa.Column("message_count", sa.BigInteger(), nullable=False),
        sa.Column("set_aside_at", TIME, nullable=False),
    )
    _table(
        "lango_alternative_message",
        "seq",
        sa.Column("turn_no", sa.BigInteger()),
        sa.Column("id", KEY),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("author", sa.Text()),
        sa.Column("name", sa.Text()),
        sa.Column("tool_call_id", KEY),
        sa.Column("text", sa.Text()),
        sa.Column("content", JSON),
        sa.Column("tool_calls", JSON),
        sa.Column("tokens", sa.BigInteger()),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("sent", JSON),
        sa.Column("payloads", JSON),
        sa.Column("logged_at", TIME),
        sa.Column("taken_by", KEY),
        sa.Column("model", sa.Text()),
        sa.Column("provider", sa.Text()),
        sa.Column("request", sa.Text()),
        sa.Column("alternative", sa.BigInteger(), nullable=False),
    )
    op.create_index(
        "ix_lango_alternative_message_alternative", "lango_alternative_message", ["session_key", "alternative"]
    )
    id_is_set = sa.text("id IS NOT NULL")
    op.create_index(
        "uq_lango_alternative_message_id",
        "lango_alternative_message",
        ["session_key", "id"],
        unique=True,
        sqlite_where=id_is_set,
        postgresql_where=id_is_set,
    )
    _table(
        "lango_alternative_turn",
        "turn_no",
        sa.Column("id", KEY),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("replaced_upto", sa.BigInteger()),
        sa.Column("usage", JSON),
        sa.Column("metadata", JSON),
        sa.Column("extra", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("copied_from", KEY),
        sa.Column("alternative", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    for table in ("lango_alternative_turn", "lango_alternative_message", "lango_alternative"):
        op.drop_table(table)
    op.drop_column("lango_session", "alternatives")
