"""Histories of LangChain in a `Store`: `LangoChatMessageHistory("user-123", store)`."""

from lango_store.errors import needs_extra

with needs_extra("langchain"):
    from lango_store.integrations.langchain.history import LangoChatMessageHistory

__all__ = ["LangoChatMessageHistory"]
