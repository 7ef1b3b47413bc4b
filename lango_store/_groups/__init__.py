"""The groups of methods that properties of `Store` and `Conversation` return, such as `conversation.drafts`.

A group is a small class with one subject. It holds the context and, for one session, the session's key. SQL belongs in
`_operations`.
"""

from typing import Final

from lango_store._groups.base import SessionPart
from lango_store._groups.calls import Calls, StoreCalls
from lango_store._groups.compaction import PendingCompaction
from lango_store._groups.drafts import Drafts
from lango_store._groups.inbox import Inbox
from lango_store._groups.suspensions import StoreSuspensions, Suspensions
from lango_store._groups.turns import StoreTurns, Turns
from lango_store._groups.values import Values
from lango_store._groups.versions import Versions

ALL: Final = (Calls, Drafts, Inbox, StoreCalls, StoreSuspensions, StoreTurns, Suspensions, Turns, Values, Versions)
"""The classes of the groups."""

__all__ = [
    "ALL",
    "Calls",
    "Drafts",
    "Inbox",
    "PendingCompaction",
    "SessionPart",
    "StoreCalls",
    "StoreSuspensions",
    "StoreTurns",
    "Suspensions",
    "Turns",
    "Values",
    "Versions",
]
