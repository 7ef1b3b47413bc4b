"""The SQLModel classes of the tables, for your own queries.

The classes have a separate `metadata`, so that your `SQLModel.metadata` does not include these tables. Use the classes
only to read. Write with the methods of the store, which validate values and maintain the session's counters.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import Relationship

from lango_store._rows.buckets import TRIGGERS
from lango_store._rows.definitions import session_table

# isort: off
# Backups have the rows in this order, and their digests depend on it: the core first, then each room.
from lango_store.tables.core import (
    BASELINE,
    FEATURE_TABLE,
    KNOWN_FEATURES,
    VERSION_TABLE,
    Base,
    ChangeRow,
    FeatureRow,
    MessageRow,
    PayloadRow,
    OF_SESSION,
    SessionColumns,
    SharedValueRow,
    TurnRow,
    ValueRow,
    expired_at,
    live_at,
)
from lango_store._rooms.turns_in_progress import tables as turns_in_progress
from lango_store._rooms.turns_in_progress.tables import DraftRow, InboxRow
from lango_store._rooms.tool_calls.tables import CallRow, SuspensionRow
from lango_store._rooms.versions.tables import RemovedMessageRow, RemovedTurnRow
from lango_store._rooms.shares.tables import ShareRow
from lango_store._rooms.budgets.tables import BudgetRow
from lango_store._rooms.alternatives import tables as alternatives
from lango_store._rooms.alternatives.tables import AlternativeMessageRow, AlternativeRow, AlternativeTurnRow

# isort: on

SCHEMA_REVISION: Final = "0119"
"""The migration revision that this release needs."""

_PARTS = [OF_SESSION, turns_in_progress.OF_SESSION, alternatives.OF_SESSION]


class SessionRow(alternatives.SessionColumns, turns_in_progress.SessionColumns, SessionColumns, table=True):
    """A row of `lango_session`: one session.

    The attributes are the columns, which the documentation explains on the page "Tables and columns".

    Attributes:
        meta: The column `metadata`. SQLAlchemy reserves that name.
        messages: The messages of the session, for queries that load them with `selectinload`; read-only.
    """

    __tablename__ = "lango_session"
    __table_args__ = session_table(_PARTS)

    messages: list["MessageRow"] = Relationship(
        sa_relationship_kwargs={"viewonly": True, "lazy": "raise", "order_by": "MessageRow.seq"}
    )


_ddl: Any = sa.DDL  # has no annotations
for _trigger in TRIGGERS.values():
    sa.event.listen(SessionRow.__table__, "after_create", _ddl(_trigger).execute_if(dialect="sqlite"))

__all__ = ["BASELINE", "FEATURE_TABLE", "KNOWN_FEATURES", "SCHEMA_REVISION", "VERSION_TABLE", "expired_at", "live_at"]
__all__ += ["Base", "ChangeRow", "FeatureRow", "MessageRow", "PayloadRow"]
__all__ += ["SessionRow", "SharedValueRow", "TurnRow", "ValueRow"]
__all__ += ["DraftRow", "InboxRow"]
__all__ += ["CallRow", "SuspensionRow"]
__all__ += ["RemovedMessageRow", "RemovedTurnRow"]
__all__ += ["ShareRow"]
__all__ += ["BudgetRow"]
__all__ += ["AlternativeMessageRow", "AlternativeRow", "AlternativeTurnRow"]

for _name in __all__:  # the documentation and pickles show the public name
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
