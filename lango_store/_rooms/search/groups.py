"""The methods of the room."""

from datetime import datetime
from functools import partial
from typing import Unpack

from lango_store._connections.context import Context
from lango_store._parts.groups import SessionPart
from lango_store._rooms.search import searching
from lango_store._rooms.search.hits import SearchFilters
from lango_store._rooms.search.values import SearchPage
from lango_store._values.model import MessageRole


class InStore:
    """Adds the members of the room to `Store`."""

    _context: Context

    def search(
        self,
        words: str,
        *,
        alternatives: bool = False,
        limit: int = 20,
        cursor: str | None = None,
        **which: Unpack[SearchFilters],
    ) -> SearchPage:
        """Find messages of live sessions by their words, best matches first.

        The text of a message ranks higher than names of tools and their outputs. Records are not searched. Needs a
        search index, except with `alternatives`: see `schema.enable_search`.

        Args:
            words: The words to find. A message must contain all of them, in any order and case. `"two words"` in quotes
                is a phrase, `-word` excludes messages with this word, and `word*` is a prefix. Only the first 2,000
                characters and 64 words or phrases are used.
            alternatives: Search the messages that `keep=True` has set aside, instead of those of the log: up to 5,000,
                or as many as can be compared in 0.2 s, first those of the session that was updated last.
            limit: The number of hits per page, 1 to 1,000. Defaults to 20.
            cursor: The `next` of the previous page. None (default) reads the first page. Hits move if messages are
                written between two pages.
            **which: Search only messages that match all of these filters: `user_id`, `agent_id`, `key_prefix`, `role`
                (`model` counts as assistant, `function` as tool), `model` (the exact name of the model that made the
                message), `since`, and `until` (exclusive).

        Returns:
            A page of hits. If too many messages match to rank them in time, only the newest messages are searched: then
            `newest` is their number, and the hits are not ranked.

        Raises:
            InvalidCursor: The cursor was not returned by `search`.
            SearchUnavailable: The search index is missing, incomplete or damaged.
        """
        find = partial(searching.find, self._context, words, limit, cursor, which, alternatives=alternatives)
        return self._context.trying(find)


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    def search(
        self,
        words: str,
        *,
        role: MessageRole | str | None = None,
        model: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        alternatives: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SearchPage:
        """Find messages of the session by their words, best matches first.

        Needs a search index, except with `alternatives`: see `schema.enable_search`.

        Args:
            words: The words to find, as in `Store.search`. A message must contain all of them, in any order and case.
                `"two words"` in quotes is a phrase, `-word` excludes messages with this word, and `word*` is a prefix.
            role: Search only messages of this role: `model` counts as assistant, `function` as tool.
            model: Search only messages that this model made: the exact name.
            since: Search only messages from this time on, an aware datetime.
            until: Search only messages before this time, an aware datetime.
            alternatives: Search the messages that `keep=True` has set aside, instead of those of the log: the newest
                5,000, or as many as can be compared in 0.2 s. `alternative` of a hit is the id for `switch` and `get`.
            limit: The number of hits per page, 1 to 1,000. Defaults to 20.
            cursor: The `next` of the previous page. None (default) reads the first page.

        Returns:
            A page of hits, as from `Store.search`; with `alternatives` the newest first.

        Raises:
            InvalidCursor: The cursor was not returned by `search`.
            SearchUnavailable: The search index is missing, incomplete or damaged.
        """
        which: SearchFilters = {"role": role, "model": model, "since": since, "until": until}
        find = partial(searching.find, self._context, words, limit, cursor, which, self.key, alternatives=alternatives)
        return self._context.trying(find)
