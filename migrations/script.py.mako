"""${message}."""

# An upgrade is one transaction, and a revision imports nothing from the package. Until the last old process has stopped,
# rows are added without the new value: they have to be valid, by a server default or NULL.

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
