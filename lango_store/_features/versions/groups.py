"""Changes of the log and how to take them back, and a compaction in two steps."""

from datetime import datetime

from lango_store._connections.context import Context
from lango_store._features.groups import SessionPart
from lango_store._features.versions import undo
from lango_store._operations.log import turns
from lango_store._operations.log.turns import ReadWindow
from lango_store._services import appending
from lango_store._values.model import Change, Compaction, Diff, Message, Undone
from lango_store._values.summarizer import Summary


class Versions(SessionPart):
    """The versions of a session's log: `Conversation.versions`. `Conversation.get(as_of=…)` loads an earlier one.

    Attributes:
        key: The session's key.
    """

    def changes(self, *, after: int = 0) -> list[Change]:
        """List the changes of the log, oldest first: cuts, edits, compactions, undos and redos.

        Args:
            after: Only changes with a `seq` above this value. Defaults to 0, all changes.
        """
        return self._context.read_together(undo.changes, self.key, after)

    def undo(self) -> Undone | None:
        """Take back the last cut, edit, replacement (`replace_after`) or compaction.

        A second `undo` takes back the change before that, and so on; `redo` reverses the last undo. Messages that were
        appended after the change stay. Redactions and `drop_sent` are never taken back. Begun calls and suspensions
        that the change deleted are not restored, so a tool of a restored message may run again.

        Returns:
            The change that was taken back, and the numbers of restored and removed messages; None if there is no such
            change.

        Raises:
            NotKept: The messages that the change removed or replaced are not kept: see `Store(keep_removed=…)`. Nothing
                was written.
            Conflict: The id of a removed message or turn was used again; nothing was written.
        """
        return self._context.transact_once(undo.undo, self.key)

    def redo(self) -> Undone | None:
        """Take back the last undo, unless another change followed it.

        Returns:
            The undo that was taken back, and the numbers of restored and removed messages; None if there is no such
            undo.

        Raises:
            NotKept: The messages that the undo removed are no longer kept; nothing was written.
            Conflict: The id of a removed message or turn was used again; nothing was written.
        """
        return self._context.transact_once(undo.redo, self.key)

    def diff(self, a: int | datetime, b: int | datetime) -> Diff:
        """Compare the logs of two moments.

        Args:
            a: The first moment: a `seq`, or an aware datetime, as `as_of` in `Conversation.get`.
            b: The second moment, which may be earlier.

        Raises:
            NotKept: There was a cut, edit or compaction since the earlier moment, and what it removed or replaced is
                not kept.
        """
        return self._context.read_together(undo.diff, self.key, a, b)


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
