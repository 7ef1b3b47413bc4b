"""The features of sessions beyond their log: one module or package for each, with its SQL and its group of methods.

A group is a small class with one subject, such as `conversation.drafts`. It holds the context and, for one session, the
session's key.
"""

from lango_store._features.maintenance import Maintenance
from lango_store._features.named_values.groups import Values
from lango_store._features.turns_in_progress.groups import Drafts, Inbox, PendingCompaction, StoreTurns, Turns
from lango_store._features.versions.groups import Edits, Versions
from lango_store._parts.groups import SessionPart, session_group, store_group

__all__ = [
    "Drafts",
    "Edits",
    "Inbox",
    "Maintenance",
    "PendingCompaction",
    "SessionPart",
    "StoreTurns",
    "Turns",
    "Values",
    "Versions",
    "session_group",
    "store_group",
]
