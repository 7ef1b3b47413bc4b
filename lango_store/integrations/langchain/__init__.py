"""Histories of LangChain in a `Store`: `LangoChatMessageHistory("user-123", store)`."""

from lango_store.integrations.langchain.history import LangoChatMessageHistory

__all__ = ["LangoChatMessageHistory"]
