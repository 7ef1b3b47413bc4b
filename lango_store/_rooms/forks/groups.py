"""The methods of the room."""

from datetime import datetime, timedelta
from typing import Self, Unpack

import sqlalchemy as sa

from lango_store._dialect import Moment
from lango_store._operations.session import levels, lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._parts.groups import SessionPart
from lango_store._rooms.forks import copying
from lango_store._services import lifecycle
from lango_store._values.model import UNSET, SessionFields, SessionInfo, Unset


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    def child(
        self,
        name: str,
        *,
        ttl: timedelta | None | Unset = UNSET,
        renew: bool = False,
        **fields: Unpack[SessionFields],
    ) -> Self:
        """Return a `Conversation` for a child session, and create the child if necessary.

        Use a child session for a subagent. Its key is the key of this session, "/" and the name.

        Args:
            name: The name of the child, without "/".
            ttl: The TTL of a new child session, as in `Store.create`. Defaults to the TTL of this session.
            renew: Replace an expired child session with a new one instead of raising `SessionExpired`.
            **fields: Fields of a new child session, as in `Store.create`. `user_id` defaults to that of this session.

        Raises:
            SessionNotFound: This session does not exist; nothing was written.
            SessionExpired: This session has expired, or the child session has and `renew` is False; nothing was
                written.
            InvalidKey: `name` is empty or contains "/", or the key would be too long; nothing was written.
        """
        key = lifecycle.open_child(self._context, self.key, name, ttl, fields, renew=renew)
        return type(self)(self._context, key)

    def children(self) -> list[SessionInfo]:
        """List the live child sessions in the order of their keys, without their own children.

        `Store.iter_sessions(key_prefix=f"{key}/")` lists all descendants.
        """
        chosen = self._context.narrowed(Filter(level=self.key.count("/") + 1, key_prefix=levels.below(self.key)))

        def read(connection: sa.Connection, now: Moment, key: str) -> list[SessionInfo]:
            sessions.row_of(connection, now, key)
            pages = lists.pages(
                lambda after: lists.walk(connection, now, chosen, after, lists.MAX_PAGE), lists.MAX_PAGE
            )
            return [info for page in pages for info in page]

        return self._context.read_together(read, self.key)

    def fork(
        self,
        key: str | None = None,
        *,
        upto: int | None = None,
        as_of: int | datetime | None = None,
        ttl: timedelta | None | Unset = UNSET,
    ) -> Self:
        """Copy the session to another key.

        The copy has the messages, turns, values and fields, but not the inbox, drafts, begun calls and suspensions. Its
        `SessionInfo.forked_from` names this session.

        Args:
            key: The key of the copy. Defaults to a new UUIDv7.
            upto: Copy only messages with a `seq` up to this value, and turns that end at or before it. A summary is
                copied only if it covers no later message. Defaults to the whole log.
            as_of: Copy the log of an earlier moment, as in `get`: a `seq` or an aware datetime. Cannot be combined with
                `upto`.
            ttl: The TTL of the copy, which starts now. Defaults to the TTL of this session.

        Returns:
            The copy.

        Raises:
            SessionExists: A session with this key exists, live or expired; nothing was written.
            InvalidCut: A compaction discarded messages up to a `seq` above `upto`, so the log as it was at `upto` no
                longer exists; nothing was written.
            NotKept: There was a cut, edit or compaction since `as_of`, and what it removed or replaced is not kept;
                nothing was written.
        """
        if upto is not None and as_of is not None:
            raise TypeError("upto cuts the present log, and as_of copies an earlier one: give one of them")
        new = self._context.new_id() if key is None else key
        copying.create(self._context, self.key, new, own_key=key is None, upto=upto, as_of=as_of, ttl=ttl)
        return type(self)(self._context, new)
