"""Add the table of payloads, which are large strings of messages. Earlier releases do not read them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from lango_store.errors import LangoStoreError

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
JSON = sa.Text().with_variant(postgresql.JSON(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "lango_payload",
        sa.Column("session_key", KEY, nullable=False),
        sa.Column("digest", KEY, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_key", "digest", name="pk_lango_payload"),
        sa.ForeignKeyConstraint(
            ["session_key"], ["lango_session.key"], name="fk_lango_payload_session", ondelete="CASCADE"
        ),
    )
    op.add_column("lango_message", sa.Column("payloads", JSON))
    is_set = sa.text("payloads IS NOT NULL")
    op.create_index(
        "ix_lango_message_payloads",
        "lango_message",
        ["session_key", "seq"],
        sqlite_where=is_set,
        postgresql_where=is_set,
    )
    op.execute("INSERT INTO lango_feature (name) VALUES ('payloads')")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE lango_message, lango_payload")  # a running append could store a payload after the count
    is_last = op.get_context().opts.get("destination_rev") == "base"  # it drops the messages too
    moved = sa.text("SELECT count(*) FROM lango_message WHERE payloads IS NOT NULL")
    if not is_last and op.get_bind().scalar(moved):
        raise LangoStoreError("lango_payload has parts of messages: run `lango-store payloads move --back` first")
    op.execute("DELETE FROM lango_feature WHERE name = 'payloads'")
    op.drop_index("ix_lango_message_payloads", "lango_message")
    op.drop_column("lango_message", "payloads")
    op.drop_table("lango_payload")
