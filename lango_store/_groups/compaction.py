"""A compaction in two steps: `Conversation.begin_compaction`."""

from lango_store._connections.context import Context
from lango_store._operations import turns
from lango_store._operations.turns import ReadWindow
from lango_store._services import appending
from lango_store._values.model import Compaction, Message
from lango_store._values.session import Session
from lango_store._values.summarizer import Summary


class PendingCompaction:
    """A window that waits for its summary: the result of `Conversation.begin_compaction`.

    Attributes:
        key: The session's key.
        session: The session with the window, as they were read.
    """

    __slots__ = ("_context", "_read", "key", "session")

    def __init__(self, context: Context, read: ReadWindow) -> None:
        self._context = context
        self._read = read
        self.key = read.session.key
        self.session: Session = read.session

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
