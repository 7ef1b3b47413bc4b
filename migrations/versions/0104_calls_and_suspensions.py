"""Add the tables of tool calls that were begun and of suspensions."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")
TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def _session_reference(name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["session_key"], ["lango_session.key"], name=name, ondelete="CASCADE")


def _index_where(condition: str, name: str, table: str, *columns: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, list(columns), sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    op.create_table(
        "lango_call",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("effect_key", KEY, nullable=False),
        sa.Column("message_seq", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger()),
        sa.Column("begun_at", TIME, nullable=False),
        sa.Column("until", TIME, nullable=False),
        sa.Column("result_seq", sa.BigInteger()),
        sa.PrimaryKeyConstraint("session_key", "effect_key", name="pk_lango_call"),
        _session_reference("fk_lango_call_session"),
    )
    op.create_index("uq_lango_call_position", "lango_call", ["session_key", "message_seq", "position"], unique=True)
    _index_where("result_seq IS NULL", "ix_lango_call_open", "lango_call", "until")
    op.create_table(
        "lango_suspension",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("digest", KEY, nullable=False),
        sa.Column("message_seq", sa.BigInteger()),
        sa.Column("positions", JSON),
        sa.Column("state", JSON),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("due_at", TIME),
        sa.Column("answer", JSON),
        sa.Column("answered_at", TIME),
        sa.PrimaryKeyConstraint("session_key", "digest", name="pk_lango_suspension"),
        _session_reference("fk_lango_suspension_session"),
    )
    index = ("ix_lango_suspension_open", "lango_suspension", "created_at", "session_key", "digest")
    _index_where("answered_at IS NULL", *index)


def downgrade() -> None:
    op.drop_table("lango_suspension")
    op.drop_table("lango_call")
