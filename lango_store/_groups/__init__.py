"""The groups of methods that properties of `Store` and `Conversation` return, such as `conversation.drafts`.

A group is a small class with one subject. It holds the context and, for one session, the session's key. SQL belongs in
`_operations`.
"""

from lango_store._groups.base import SessionPart, of_session, of_store
from lango_store._groups.calls import Calls, StoreCalls, StoreSuspensions, Suspensions
from lango_store._groups.turns import Drafts, Inbox, StoreTurns, Turns
from lango_store._groups.values import Values
from lango_store._groups.versions import PendingCompaction, Versions

__all__ = ["Calls", "Drafts", "Inbox", "PendingCompaction", "SessionPart", "StoreCalls", "StoreSuspensions"]
__all__ += ["StoreTurns", "Suspensions", "Turns", "Values", "Versions", "of_session", "of_store"]
