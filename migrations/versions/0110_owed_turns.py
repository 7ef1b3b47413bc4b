"""Add to sessions what workers need: since when a turn is owed, why, and how often it has failed."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None

TIME = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
COLUMNS: dict[str, Any] = {
    "owed_at": TIME,
    "waiting": sa.BigInteger(),
    "attempts": sa.BigInteger(),
    "last_error": sa.Text(),
}


def upgrade() -> None:
    for name, type_ in COLUMNS.items():
        op.add_column("lango_session", sa.Column(name, type_))
    op.execute("UPDATE lango_session SET owed_at = lease_until WHERE lease_token IS NOT NULL")
    op.execute(
        "UPDATE lango_session SET owed_at = coalesce(owed_at, updated_at), waiting = 1 "
        "WHERE key IN (SELECT session_key FROM lango_inbox)"
    )
    is_owed = sa.text("owed_at IS NOT NULL")
    op.create_index(
        "ix_lango_session_owed_at",
        "lango_session",
        ["owed_at", "key"],
        sqlite_where=is_owed,
        postgresql_where=is_owed,
    )


def downgrade() -> None:
    op.drop_index("ix_lango_session_owed_at", "lango_session")
    for name in reversed(COLUMNS):
        op.drop_column("lango_session", name)
