"""The turns and compactions of a session: `Conversation.turns`."""

from __future__ import annotations

from lango_store._connections.context import Context
from lango_store._operations.log import turns
from lango_store._operations.log.turns import ReadWindow
from lango_store._parts.groups import SessionPart
from lango_store._services import appending
from lango_store._values.model import Compaction, Message, Turn
from lango_store._values.summarizer import Summary


class PendingCompaction:
    """A window that waits for its summary: the result of `Conversation.turns.begin_compaction`.

    Attributes:
        key: The session's key.
        session: The session with the window, as they were read.
    """

    __slots__ = ("_context", "_read", "key", "session")

    def __init__(self, context: Context, read: ReadWindow) -> None:
        self._context = context
        self._read = read
        self.key = read.session.key
        self.session = read.session

    @property
    def window(self) -> list[Message]:
        """The messages to summarize."""
        return list(self.session.messages)

    def finish(self, summary: Summary, *, discard: bool = False) -> Compaction:
        """Replace the window with a summary.

        Messages that were appended since the window was read stay in the window, after the summary.

        Args:
            summary: A `Message`, or a list of messages.
            discard: Delete the replaced messages from the log, as in `Conversation.compact`.

        Returns:
            The compaction.

        Raises:
            Conflict: The session was compacted, or messages were edited or removed, since the window was read; nothing
                was changed.
            InvalidMessage: A message of the summary cannot be stored losslessly; nothing was changed.
        """
        new = appending.encoded(self._context, [summary] if isinstance(summary, Message) else summary)
        return self._context.transact(turns.finish_compaction, self._read, new, discard=discard)


class Turns(SessionPart):
    """The turns and compactions of a session: `Conversation.turns`.

    `save_turn` and `compact` of the conversation store new ones.

    Attributes:
        key: The session's key.
    """

    def find(self, turn_no_or_id: int | str) -> Turn | None:
        """Return a turn with its messages, without those that were deleted.

        Args:
            turn_no_or_id: The `turn_no` of the turn (an int), or the `id` that was passed to `save_turn` or `turn`
                (text). The messages of a compaction are the summary.

        Returns:
            The turn, or None if the session has no such turn.
        """
        return self._context.read_together(turns.find, self.key, turn_no_or_id)

    def list_compactions(self) -> list[Compaction]:
        """List the compactions, oldest first, with their summaries."""
        return self._context.read_together(turns.compactions, self.key)

    def begin_compaction(self, *, records: bool = False) -> PendingCompaction | None:
        """Read the window for a compaction in two steps, if a single function call cannot produce the summary.

        Args:
            records: Also read the records between the messages.

        Returns:
            The pending compaction, with the messages in `window` and the method `finish`, or None if the window is
            empty.
        """
        read = self._context.on_primary().read(turns.read_window, self.key, records=records)
        return PendingCompaction(self._context, read) if read.session.messages else None

    def list(self) -> list[Turn]:
        """List the turns and compactions, oldest first, without their messages."""
        return self._context.read_together(turns.read_all, self.key)
