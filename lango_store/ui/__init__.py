"""Conversations in the protocols that front ends read. Each protocol is one module."""

from lango_store.ui.agui import agui, agui_messages, from_agui
from lango_store.ui.aisdk import aisdk, aisdk_messages, from_aisdk
from lango_store.ui.requests import ChatRequest, OpenCall, open_calls, submit
from lango_store.ui.streams import Awaited, Messages

__all__ = ["Awaited", "ChatRequest", "Messages", "OpenCall", "agui", "agui_messages", "aisdk", "aisdk_messages"]
__all__ += ["from_agui", "from_aisdk", "open_calls", "submit"]
