"""Sort identifiers by code point on PostgreSQL, as keys already do.

With the database's default collation, an upgrade of glibc or ICU can change the order of text. An index that was built
with the old order then misses rows: a unique index accepts an id again, and a list by user lacks sessions.

PostgreSQL does not rewrite the tables, but it rebuilds the indexes of these columns. An exclusive lock on each table is
held until the migration ends, so reads and writes wait.
"""

from alembic import op

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None

IDENTIFIERS = {
    "lango_session": ("agent_id", "user_id", "forked_from", "lease_turn"),
    "lango_turn": ("id", "copied_from"),
    "lango_message": ("id", "tool_call_id", "taken_by"),
    "lango_draft": ("turn_id",),
    "lango_inbox": ("id", "tool_call_id"),
    "lango_removed_message": ("id", "tool_call_id", "taken_by"),
    "lango_removed_turn": ("id", "copied_from"),
}


def upgrade() -> None:
    _collate("C")


def downgrade() -> None:
    _collate("default")


def _collate(collation: str) -> None:
    if op.get_context().dialect.name != "postgresql":
        return  # SQLite sorts by code point
    for table, columns in IDENTIFIERS.items():
        # One statement, so that an index of several of the columns is rebuilt once.
        changes = ", ".join(f'ALTER COLUMN {column} TYPE TEXT COLLATE "{collation}"' for column in columns)
        op.execute(f"ALTER TABLE {table} {changes}")
