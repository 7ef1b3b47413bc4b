"""The SQLModel classes of the tables, for your own queries.

The classes have a separate `metadata`, so that your `SQLModel.metadata` does not include these tables. Use the classes
only to read. Write with the methods of the store, which validate values and maintain the session's counters.
"""

# isort: off
# Backups have the rows in this order, and their digests depend on it: the core first, then each room.
from lango_store.tables.core import (
    BASELINE,
    FEATURE_TABLE,
    KNOWN_FEATURES,
    SCHEMA_REVISION,
    VERSION_TABLE,
    Base,
    ChangeRow,
    DraftRow,
    FeatureRow,
    InboxRow,
    MessageRow,
    PayloadRow,
    SessionRow,
    SharedValueRow,
    TurnRow,
    ValueRow,
    expired_at,
    live_at,
)
from lango_store._rooms.tool_calls.tables import CallRow, SuspensionRow
from lango_store._rooms.versions.tables import RemovedMessageRow, RemovedTurnRow

# isort: on

__all__ = ["BASELINE", "FEATURE_TABLE", "KNOWN_FEATURES", "SCHEMA_REVISION", "VERSION_TABLE", "expired_at", "live_at"]
__all__ += ["Base", "ChangeRow", "DraftRow", "FeatureRow", "InboxRow", "MessageRow", "PayloadRow"]
__all__ += ["SessionRow", "SharedValueRow", "TurnRow", "ValueRow"]
__all__ += ["CallRow", "SuspensionRow"]
__all__ += ["RemovedMessageRow", "RemovedTurnRow"]

for _name in __all__:  # the documentation and pickles show the public name
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
