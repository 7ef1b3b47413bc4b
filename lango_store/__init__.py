"""Sessions and messages of LLM agents in SQLite or PostgreSQL, behind one `Store`."""

from lango_store._engine.engine import create_engine, read_only_engine
from lango_store._operations.lists import Filters
from lango_store._operations.search import SearchFilters
from lango_store._operations.turns import PendingCompaction
from lango_store._values.model import (
    UNSET,
    Compaction,
    Message,
    MessageRole,
    SessionChanges,
    SessionFields,
    SessionInfo,
    ToolCall,
    Turn,
    Unset,
)
from lango_store._values.reports import ExpiryReport, Finding, Page, SearchHit, SearchPage, Stats
from lango_store._values.session import Session
from lango_store.aio import AsyncConversation, AsyncStore
from lango_store.conversation import Conversation
from lango_store.errors import (
    Conflict,
    DamagedMessage,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidCursor,
    InvalidCut,
    InvalidFile,
    InvalidKey,
    InvalidMessage,
    InvalidValue,
    LangoStoreError,
    MessageNotFound,
    NotPermitted,
    SchemaOutOfDate,
    SearchUnavailable,
    SessionExists,
    SessionExpired,
    SessionHeld,
    SessionNotFound,
    UniqueViolation,
)
from lango_store.store import Store

__all__ = [
    "UNSET",
    "AsyncConversation",
    "AsyncStore",
    "Compaction",
    "Conflict",
    "Conversation",
    "DamagedMessage",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "ExpiryReport",
    "Filters",
    "Finding",
    "InvalidCursor",
    "InvalidCut",
    "InvalidFile",
    "InvalidKey",
    "InvalidMessage",
    "InvalidValue",
    "LangoStoreError",
    "Message",
    "MessageNotFound",
    "MessageRole",
    "NotPermitted",
    "Page",
    "PendingCompaction",
    "SchemaOutOfDate",
    "SearchFilters",
    "SearchHit",
    "SearchPage",
    "SearchUnavailable",
    "Session",
    "SessionChanges",
    "SessionExists",
    "SessionExpired",
    "SessionFields",
    "SessionHeld",
    "SessionInfo",
    "SessionNotFound",
    "Stats",
    "Store",
    "ToolCall",
    "Turn",
    "UniqueViolation",
    "Unset",
    "create_engine",
    "read_only_engine",
]
