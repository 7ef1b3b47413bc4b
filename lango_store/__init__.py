"""Sessions and messages of LLM agents in SQLite or PostgreSQL, behind one `Store`."""

from lango_store.aio import AsyncStore
from lango_store.engine import create_engine
from lango_store.errors import (
    Conflict,
    DamagedMessage,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidCursor,
    InvalidKey,
    InvalidMessage,
    LangoStoreError,
    SchemaOutOfDate,
    SessionExists,
    SessionExpired,
    SessionNotFound,
)
from lango_store.model import UNSET, ExpiryReport, Message, MessageRole, Page, Session, SessionInfo, ToolCall
from lango_store.store import Store

__all__ = [
    "UNSET",
    "AsyncStore",
    "Conflict",
    "DamagedMessage",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "ExpiryReport",
    "InvalidCursor",
    "InvalidKey",
    "InvalidMessage",
    "LangoStoreError",
    "Message",
    "MessageRole",
    "Page",
    "SchemaOutOfDate",
    "Session",
    "SessionExists",
    "SessionExpired",
    "SessionInfo",
    "SessionNotFound",
    "Store",
    "ToolCall",
    "create_engine",
]
