"""Conversations in the protocols that front ends read. Each protocol is one module, and needs no package of its own."""

from lango_store.ui.aisdk import AISDKRequest, AISDKStream, aisdk, aisdk_messages, from_aisdk

__all__ = ["AISDKRequest", "AISDKStream", "aisdk", "aisdk_messages", "from_aisdk"]
