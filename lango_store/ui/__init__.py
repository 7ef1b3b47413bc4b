"""Conversations in the protocols that front ends read. Each protocol is one module."""

from lango_store.ui.agui import AGUIStream, agui, agui_messages, from_agui
from lango_store.ui.aisdk import AISDKStream, aisdk, aisdk_messages, from_aisdk
from lango_store.ui.requests import ChatRequest, OpenCall, open_calls, open_turn
from lango_store.ui.streams import Messages

__all__ = ["AGUIStream", "AISDKStream", "ChatRequest", "Messages", "OpenCall", "agui", "agui_messages", "aisdk"]
__all__ += ["aisdk_messages", "from_agui", "from_aisdk", "open_calls", "open_turn"]
