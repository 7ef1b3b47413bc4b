"""`LangoChatMessageHistory`, a chat message history of LangChain."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict

from lango_store import AsyncStore, SessionNotFound, Store
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import level_key
from lango_store.interchange.langchain_messages import message_of, stored_of


class LangoChatMessageHistory(Adapter, BaseChatMessageHistory):
    """A chat message history of LangChain, stored in a `Store`.

    The session is created when its first message is added.

    Args:
        session_id: The id of the session. Its key in the store is `prefix` followed by the id, in which `%` and `/` are
            percent-escaped.
        store: A `Store`, an `AsyncStore`, or the URL of a database. Share one store among many histories.
        prefix: A prefix of the session key.
        **options: Options of `Store`; only with a URL.

    Raises:
        TypeError: `options` are given together with a store.
        ValueError: The database of the URL is not supported, or an option is invalid.
        InvalidKey: The session key is not text of 1 to 512 characters, or contains a NUL or a lone surrogate.
    """

    def __init__(
        self, session_id: str, store: Store | AsyncStore | str | sa.URL, *, prefix: str = "", **options: Any
    ) -> None:
        super().__init__(store, **options)
        self._key = self.store.conversation(level_key(session_id, prefix)).key

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages of the history; empty if the session does not exist.

        Raises:
            DamagedMessage: A message cannot be read.
        """
        try:
            messages = self.store.conversation(self._key).messages()
        except SessionNotFound:
            return []
        return messages_from_dict([stored for message in messages for stored in stored_of(message)])

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages at the end of the history, all or none.

        Args:
            messages: The messages.

        Raises:
            InvalidMessage: A message cannot be stored. No message was added.
        """
        new = [message_of(message_to_dict(message)) for message in messages]
        self.store.conversation(self._key).append_messages(new, create=True)

    def clear(self) -> None:
        """Remove all messages. The session itself is kept, with its title, user and metadata."""
        if self.store.exists(self._key):
            self.store.conversation(self._key).clear()
