"""The methods of the room for asyncio."""

from collections.abc import AsyncGenerator
from typing import cast

from lango_store._connections.threads import Threads
from lango_store._parts.groups import SessionPart
from lango_store._rooms.tail import following
from lango_store._rooms.tail.values import Event


class InConversation:
    """Adds the members of the room to `AsyncConversation`."""

    _twin: SessionPart
    _threads: Threads

    def tail(self, *, after: int | str = 0, follow: bool = True) -> AsyncGenerator[Event, None]:
        """Follow the session: yield its stored events after a position, then new events.

        New events may come from any process. Each message is yielded once, in the order of `seq`. Waiting for an event
        uses no thread and no connection.

        One thread per store asks with one statement whether any of the followed sessions has changed: every 20 ms for
        two seconds after an event, then less and less often, down to once a second. A write through the same store
        makes it ask earlier. If readers in an event loop take long to process events, it asks less often: if they take
        10 ms, after 200 ms, and after 1 s at most. It reads new rows once for all readers of a session; a reader that
        has fallen behind makes its own reads.

        Args:
            after: A `seq`, to start after that message, or the `cursor` of an event. Defaults to 0, the start of the
                session. With a `seq`, whichever session has the key now is followed. With a cursor, the session that
                the cursor came from is followed: if that session no longer exists, the only event is `Ended`, even if
                another session has the key now.
            follow: Wait for more events (default). If False, end after the stored ones.

        Yields:
            `Appended`, `Changed`, `Piece`, `TurnBegan`, `TurnEnded` and, if the session is deleted, replaced or
            expires, `Ended`. Do not change the events: other calls of `tail` in this process may yield the same
            objects.

        Raises:
            InvalidCursor: `after` is text, but not a cursor.
            InvalidState: The store was closed; or `follow` is True and the store belongs to a transaction.
        """
        context = self._twin._context
        reader = following.Reader(context, self._twin.key, after, follow=follow)
        events = following.follow_async(self._threads, reader)
        return context.telemetry.each_async("tail", self._twin.key, cast(AsyncGenerator[Event, None], events))
