"""pydantic-ai on a `Store`: `LangoConversationStore` where its `ConversationStore` is asked for."""

from lango_store.integrations.pydantic_ai.store import LangoConversationStore

__all__ = ["LangoConversationStore"]
