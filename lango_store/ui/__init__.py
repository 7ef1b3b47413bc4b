"""Conversations in the protocols that front ends read. Each protocol is one module."""

from lango_store.ui.agui import AGUIStream, agui, agui_messages, from_agui
from lango_store.ui.aisdk import AISDKStream, aisdk, aisdk_messages, from_aisdk
from lango_store.ui.streams import ChatRequest, Messages

__all__ = ["AGUIStream", "AISDKStream", "ChatRequest", "Messages", "agui", "agui_messages", "aisdk", "aisdk_messages"]
__all__ += ["from_agui", "from_aisdk"]
