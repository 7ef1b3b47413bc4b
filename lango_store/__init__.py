"""Sessions and messages of LLM agents in SQLite or PostgreSQL, through one `Store`."""

from lango_store._engine.engine import create_engine, read_only_engine
from lango_store._operations.session.lists import Filters, WorkFilters
from lango_store._parts.turns import PendingCompaction
from lango_store._parts.values import Values
from lango_store._rooms.alternatives.values import Alternative, MessagePreview
from lango_store._rooms.budgets.budget import Budget
from lango_store._rooms.budgets.groups import StoreBudgets
from lango_store._rooms.budgets.values import BudgetState
from lango_store._rooms.erasure.values import ErasureReceipt
from lango_store._rooms.examination.values import Finding
from lango_store._rooms.expiry.values import ExpiryReport
from lango_store._rooms.search.hits import SearchFilters
from lango_store._rooms.search.values import SearchHit, SearchPage
from lango_store._rooms.shares.groups import StoreShares
from lango_store._rooms.shares.values import Share
from lango_store._rooms.stats.values import Stats
from lango_store._rooms.tail.values import Appended, Changed, Ended, Event, Piece, TurnBegan, TurnEnded
from lango_store._rooms.tool_calls.effects import Effect
from lango_store._rooms.tool_calls.groups import Calls, StoreCalls, StoreSuspensions, Suspensions
from lango_store._rooms.tool_calls.values import BegunCall, Suspension
from lango_store._rooms.turns_in_progress.groups import Drafts, Inbox, StoreTurns
from lango_store._rooms.turns_in_progress.values import Draft, OpenTurn, OwedTurn
from lango_store._rooms.usage.values import UsageRow
from lango_store._rooms.versions.groups import Edits, Versions
from lango_store._rooms.versions.values import Change, Diff, Undone
from lango_store._values.model import (
    UNSET,
    Compaction,
    Message,
    MessageRole,
    Payload,
    SessionChanges,
    SessionFields,
    SessionInfo,
    ToolCall,
    Turn,
    Unset,
)
from lango_store._values.reports import Page
from lango_store._values.session import Session
from lango_store.aio import (
    AsyncConversation,
    AsyncPendingCompaction,
    AsyncRunningTurn,
    AsyncStore,
    AsyncValues,
)
from lango_store.conversation import Conversation, RunningTurn, Turns
from lango_store.errors import (
    AlreadyAnswered,
    BudgetExhausted,
    CallFinished,
    CallInProgress,
    CallNotFound,
    CallUnknown,
    Conflict,
    DamagedDatabase,
    DamagedMessage,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnavailable,
    DraftNotFound,
    InProgress,
    InstallationIncomplete,
    InstructionsChanged,
    InvalidCursor,
    InvalidCut,
    InvalidFile,
    InvalidKey,
    InvalidMessage,
    InvalidState,
    InvalidValue,
    LangoStoreError,
    LeaseLost,
    MessageNotFound,
    MigrationRefused,
    NotFound,
    NotKept,
    NotPermitted,
    PayloadNotFound,
    SchemaOutOfDate,
    SearchUnavailable,
    SessionExists,
    SessionExpired,
    SessionHeld,
    SessionNotFound,
    SessionOnHold,
    ShareNotFound,
    StoreClosed,
    SuspensionExpired,
    SuspensionNotFound,
    TurnInProgress,
    UniqueViolation,
    UnknownFeature,
    UnsupportedDatabase,
)
from lango_store.store import Maintenance, Store

__all__ = ["AsyncConversation", "AsyncRunningTurn", "AsyncStore", "Conversation", "RunningTurn", "Store"]
__all__ += ["Filters", "SearchFilters", "WorkFilters", "create_engine", "read_only_engine"]
__all__ += [
    "AsyncPendingCompaction",
    "AsyncValues",
    "Calls",
    "Drafts",
    "Edits",
    "Inbox",
    "Maintenance",
    "PendingCompaction",
]
__all__ += ["StoreCalls", "StoreShares", "StoreSuspensions", "StoreTurns", "Suspensions", "Turns", "Values", "Versions"]
__all__ += ["Budget", "BudgetExhausted", "BudgetState", "StoreBudgets"]
__all__ += ["Alternative", "MessagePreview"]
__all__ += ["UNSET", "Appended", "BegunCall", "Change", "Changed", "Compaction", "Diff", "Draft", "Effect", "Ended"]
__all__ += [
    "ErasureReceipt",
    "Event",
    "ExpiryReport",
    "Finding",
    "Message",
    "MessageRole",
    "OpenTurn",
    "OwedTurn",
    "Page",
]
__all__ += ["Payload", "Piece"]
__all__ += ["SearchHit", "SearchPage", "Session", "SessionChanges", "SessionFields", "SessionInfo"]
__all__ += ["Share", "Stats"]
__all__ += ["Suspension", "ToolCall", "Turn", "TurnBegan", "TurnEnded", "Undone", "Unset", "UsageRow"]
__all__ += ["AlreadyAnswered", "CallFinished", "CallInProgress", "CallNotFound", "CallUnknown", "Conflict"]
__all__ += ["DamagedDatabase", "DamagedMessage", "DatabaseBusy", "DatabaseError", "DatabaseUnavailable"]
__all__ += ["DraftNotFound", "InProgress", "InstallationIncomplete", "InvalidCursor", "InvalidCut", "InvalidFile"]
__all__ += [
    "InstructionsChanged",
    "InvalidKey",
    "InvalidMessage",
    "InvalidState",
    "InvalidValue",
    "LangoStoreError",
    "LeaseLost",
]
__all__ += ["MessageNotFound", "MigrationRefused", "NotFound", "NotKept", "NotPermitted", "PayloadNotFound"]
__all__ += ["SchemaOutOfDate", "SearchUnavailable", "SessionExists", "SessionExpired", "SessionHeld"]
__all__ += ["SessionOnHold", "ShareNotFound"]
__all__ += ["SessionNotFound", "StoreClosed", "SuspensionExpired", "SuspensionNotFound", "TurnInProgress"]
__all__ += ["UniqueViolation", "UnknownFeature", "UnsupportedDatabase"]

for _name in __all__:  # tracebacks and pickles show the public name; that of an exception is `lango_store.errors`
    if isinstance(_public := globals()[_name], type) and not issubclass(_public, LangoStoreError):
        _public.__module__ = __name__
