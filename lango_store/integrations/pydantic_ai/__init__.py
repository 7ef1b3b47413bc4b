"""Conversations of pydantic-ai in a `Store`: `LangoConversationStore` implements its `ConversationStore`."""

from lango_store.errors import needs_extra

with needs_extra("pydantic-ai"):
    from lango_store.integrations.pydantic_ai.store import LangoConversationStore

__all__ = ["LangoConversationStore"]
