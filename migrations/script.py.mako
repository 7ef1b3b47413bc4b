"""${message}."""

# A revision is one transaction, and imports nothing of the package. On a table in use
# `online = op.get_context().opts["online"]` has two verbs that leave it (`lango_store/schema/online.py`):
#   online.in_batches(sa.update(table).where(table.c.new.is_(None)).values(new=...))
#   online.create_index("ix_table_new", "table", ["new"])
# Each wants a revision of its own: killed, it runs again from its start. So one revision adds a column, the next one
# fills it, a third one makes the index. While it runs, and until the last old process is gone, rows come in without the
# new value too: both have to be valid, by a server default, a NULL or a trigger.

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
