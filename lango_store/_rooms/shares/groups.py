"""The methods of the room."""

from datetime import datetime
from typing import Unpack

from lango_store._operations.session.lists import Filter, WorkFilters, work_filter
from lango_store._parts.groups import SessionPart, StorePart, store_group
from lango_store._rooms.shares import shared_document, sharing
from lango_store._rooms.shares.values import Share
from lango_store._values.reports import Page


class StoreShares(StorePart):
    """The shares of all sessions: `Store.shares`."""

    def document(self, token: str) -> str:
        """Return the document that a share shows, as HTML for people. `web.shares` serves it.

        The document shows the title of the session, and the messages of users and assistants up to `upto`. Each call
        reads them again, so an edit or a redaction changes it, and a deleted message is missing. A redaction does not
        change the title. The document never shows instructions, records, summaries, authors or other fields of the
        session. It shows tool calls, their results and the thinking of the model only with `tools=True`.

        Args:
            token: The token that `Conversation.share` returned.

        Returns:
            The whole document as one text. Each call builds it again from the database.

        Raises:
            ShareNotFound: No share of a live session has this token, or its `until` has passed.
        """
        found = self._context.on_primary().read_together(shared_document.read, Filter(), sharing.digest(token))
        return "".join(shared_document.render(*found))

    def list(self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[WorkFilters]) -> Page[Share]:
        """List the shares of live sessions, oldest first, also those whose `until` has passed.

        Args:
            limit: The number of shares per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.

        Raises:
            InvalidCursor: The cursor was not returned by this method.
        """
        return self._context.on_primary().read(sharing.page, work_filter(which), limit, cursor)


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    def share(
        self,
        *,
        upto: int | None = None,
        tools: bool = False,
        until: datetime | None = None,
        by: str | None = None,
    ) -> Share:
        """Create a link to the session: anyone who has its token can read the messages up to `upto`.

        `Store.shares.document` returns the document, and says what it shows. Nothing is copied, so redactions,
        deletions, erasures and edits of these messages reach it.

        Args:
            upto: The `seq` of the last message that is shown. Defaults to the last message, which is also used instead
                of a later one. Later messages are never shown.
            tools: Also show tool calls, their results and the thinking of the model. False by default.
            until: The time from which the link no longer works, an aware datetime. Defaults to no end.
            by: Who shares the session, such as the id of a user: `shared_by` of the share.

        Returns:
            The share with its `token`, a random text of 256 bits. No other method returns the token.

        Raises:
            SessionNotFound: There is no such session; nothing was written.
            InvalidValue: `by` cannot be stored losslessly; nothing was written.
            ValueError: `upto` is not a seq, or `until` has passed or has no time zone; nothing was written.
        """
        return self._context.transact(sharing.share, sharing.NewShare(self.key, upto, tools=tools, until=until, by=by))

    def unshare(self, id: str | None = None) -> int:
        """Remove links to the session: their tokens then open nothing.

        Args:
            id: The id of the share. None (default) removes all shares of the session.

        Returns:
            The number of removed shares.

        Raises:
            SessionNotFound: There is no such session; nothing was removed.
        """
        return self._context.transact(sharing.unshare, self.key, id)

    def shares(self, *, limit: int = 50, cursor: str | None = None) -> Page[Share]:
        """List the links to the session, oldest first, also those whose `until` has passed.

        Args:
            limit: The number of shares per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.

        Raises:
            SessionNotFound: There is no such session.
            InvalidCursor: The cursor was not returned by this method.
        """
        return self._context.on_primary().read_together(sharing.page_of_session, self.key, limit, cursor)


class InStore:
    """Adds the members of the room to `Store`."""

    shares = store_group(StoreShares)
    """The links to sessions: list them, and return the documents that they show."""
