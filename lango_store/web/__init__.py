"""Web applications: pages of `lango-store serve`, a chat with its page, shares, and OpenAI's Conversations API."""

from lango_store.web.chats import Chat, chat
from lango_store.web.conversations import conversation_id, conversations
from lango_store.web.page import chat_page
from lango_store.web.pages import LOOPBACK, application, new_token
from lango_store.web.requests import bearer_tokens, single_user
from lango_store.web.shares import shares

__all__ = [
    "LOOPBACK",
    "Chat",
    "application",
    "bearer_tokens",
    "chat",
    "chat_page",
    "conversation_id",
    "conversations",
    "new_token",
    "shares",
    "single_user",
]
