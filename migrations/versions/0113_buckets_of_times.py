"""Replace the indexes on the times of sessions, which every append changes, by indexes on times of five minutes."""

import sqlalchemy as sa
from alembic import op

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None

TABLE = "lango_session"
BUCKETS = ("updated_bucket", "expires_bucket")
BEFORE = (
    ("ix_lango_session_updated_at", ["updated_at", "key"], None),
    ("ix_lango_session_user_id", ["user_id", "updated_at", "key"], "user_id"),
    ("ix_lango_session_agent_id", ["agent_id", "updated_at", "key"], "agent_id"),
    ("ix_lango_session_expires_at", ["expires_at"], "expires_at"),
)
AFTER = (
    ("ix_lango_session_updated_bucket", ["updated_bucket"], None),
    ("ix_lango_session_user_id", ["user_id", "updated_bucket"], "user_id"),
    ("ix_lango_session_agent_id", ["agent_id", "updated_bucket"], "agent_id"),
    ("ix_lango_session_expires_bucket", ["expires_bucket"], "expires_bucket"),
)
BIN = "date_bin('00:05:00'::interval, {}, to_timestamp(0))"
MINUTES = "CASE WHEN substr({0}, 16, 1) < '5' THEN '0:00.000000+00:00' ELSE '5:00.000000+00:00' END"
TEXT = "substr({0}, 1, 15) || " + MINUTES
SET = f"UPDATE {TABLE} SET updated_bucket = {TEXT.format('updated_at')}, expires_bucket = {TEXT.format('expires_at')}"
OF_ROW = f"BEGIN {SET} WHERE rowid = new.rowid; END"
IS_WRONG = " OR ".join(f"new.{name}_bucket IS NOT {TEXT.format(f'new.{name}_at')}" for name in ("updated", "expires"))
TRIGGERS = {
    "lango_session_bucket_inserted": f"INSERT ON {TABLE} {OF_ROW}",
    "lango_session_bucket_updated": f"UPDATE OF updated_at, expires_at ON {TABLE} WHEN {IS_WRONG} {OF_ROW}",
}


def upgrade() -> None:
    for name, _, _ in BEFORE:  # first, so that PostgreSQL does not build them again when it rewrites the table
        op.drop_index(name, TABLE)
    if op.get_context().dialect.name == "sqlite":
        for name in BUCKETS:
            op.add_column(TABLE, sa.Column(name, sa.Text()))
        op.execute(SET)
        for name, body in TRIGGERS.items():
            op.execute(f"CREATE TRIGGER {name} AFTER {body}")
    else:
        columns = (
            f"ADD COLUMN {name}_bucket TIMESTAMP WITH TIME ZONE GENERATED ALWAYS AS ({BIN.format(f'{name}_at')}) STORED"
            for name in ("updated", "expires")
        )
        op.execute(f"ALTER TABLE {TABLE} {', '.join(columns)}")  # one statement rewrites the table once
    create_indexes(AFTER)


def downgrade() -> None:
    for name, _, _ in AFTER:
        op.drop_index(name, TABLE)
    if op.get_context().dialect.name == "sqlite":
        for name in TRIGGERS:
            op.execute(f"DROP TRIGGER IF EXISTS {name}")
    for name in reversed(BUCKETS):
        op.drop_column(TABLE, name)
    create_indexes(BEFORE)


def create_indexes(indexes: tuple[tuple[str, list[str], str | None], ...]) -> None:
    for name, columns, nullable in indexes:
        where = None if nullable is None else sa.text(f"{nullable} IS NOT NULL")
        op.create_index(name, TABLE, columns, sqlite_where=where, postgresql_where=where)
