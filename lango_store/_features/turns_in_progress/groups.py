"""Turns and compactions, drafts of answers, and messages that wait for a turn: `turns`, `drafts` and `inbox`."""

from typing import Unpack

from lango_store._connections.context import Context
from lango_store._features.turns_in_progress import claims, drafts, inbox
from lango_store._operations.log import leases, turns
from lango_store._operations.log.appends import Batch
from lango_store._operations.log.turns import ReadWindow
from lango_store._operations.session.lists import WorkFilters, work_filter
from lango_store._parts.groups import SessionPart, StorePart
from lango_store._services import appending
from lango_store._values.model import Compaction, Draft, Message, OpenTurn, Turn
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

    `save_turn`, `turn` and `compact` of the conversation store new ones.

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

    def in_progress(self) -> OpenTurn | None:
        """Return the session's turn that has begun and not ended, or None.

        `held` of the turn is False if its lease has ended, because its process died, was paused, or wrote nothing for
        too long.
        """
        return self._context.on_primary().read(leases.find, self.key)

    def release(self) -> OpenTurn | None:
        """Release the lease of the turn in progress, so that another turn can begin at once.

        If the process of the turn still runs, its next write raises `LeaseLost`. Only the result of a call that it has
        begun can still be stored.

        Returns:
            The turn as it was before the release, or None if there was none.
        """
        return self._context.transact(leases.release_any, self.key)

    def retry(self) -> bool:
        """Make the turn that the session is owed due now, with all attempts, for example after it was given up.

        Returns:
            True if the session is owed a turn that is not running; see `Store.owed`.
        """
        return self._context.transact(claims.retry, self.key)

    def compactions(self) -> list[Compaction]:
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


class StoreTurns(StorePart):
    """The turns of all sessions: `Store.turns`."""

    def in_progress(self, **which: Unpack[WorkFilters]) -> list[OpenTurn]:
        """List the turns that have begun and not ended, of live sessions.

        At most 1,000 are listed, in the order in which their leases end.

        `held` of a turn is False if its lease has ended, because its process died, was paused, or wrote nothing for too
        long. `Conversation.turns.release` releases a lease.

        Args:
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.
        """
        return self._context.on_primary().read(leases.read, work_filter(which))


class Drafts(SessionPart):
    """The drafts of a session: `Conversation.drafts`.

    A draft is text that a turn has streamed with `RunningTurn.write` and not appended. Saving a turn deletes its
    drafts.

    Attributes:
        key: The session's key.
    """

    def keep(self, id: str) -> Message:
        """Append a draft to the log as an interrupted answer, and delete the draft.

        Args:
            id: The id of the draft.

        Returns:
            The stored message: an assistant message whose `extra` has `"interrupted": true`.

        Raises:
            TurnInProgress: The turn that writes the draft still has the lease; nothing was written.
            DraftNotFound: The session has no such draft; nothing was written.
        """
        return self._context.transact(drafts.keep, self.key, id, lambda answer: self._context.batch([answer]))

    def drop(self, id: str) -> bool:
        """Delete a draft.

        Args:
            id: The id of the draft.

        Returns:
            True if the draft existed, otherwise False.

        Raises:
            TurnInProgress: The turn that writes the draft still has the lease; nothing was deleted.
        """
        return self._context.transact(drafts.drop, self.key, id)

    def list(self) -> list[Draft]:
        """List the drafts, oldest first, including the draft of a turn in progress."""
        return self._context.on_primary().read_together(drafts.read, self.key)


class Inbox(SessionPart):
    """The inbox of a session: `Conversation.inbox`.

    A message in the inbox is not in the log and not in the window until a turn calls `RunningTurn.take_inbox`, which
    moves it to the log.

    Attributes:
        key: The session's key.
    """

    def put(self, message: Message) -> Message:
        """Store a message in the inbox, for example while a turn is running.

        Like an append, this sets `updated_at` and restarts the session's TTL, but `revision` does not change.

        Args:
            message: The message to store. A message whose `id` is in the inbox or in the log already is not stored
                again; the stored one is returned with `replayed=True`.

        Returns:
            The stored message. Its `seq` is 0 until it is in the log. A message without an id gets one from
            `RunningTurn.take_inbox`.

        Raises:
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
        """
        new = Batch([self._context.counted(message)])
        run = self._context.transact if new.ids else self._context.transact_once
        return run(inbox.enqueue, self.key, new)

    def list(self) -> list[Message]:
        """List the messages in the order of their arrival. Their `seq` is 0."""
        return self._context.on_primary().read_together(inbox.read, self.key)

    def drop(self, id: str) -> bool:
        """Delete a message that waits in the inbox.

        Args:
            id: The id of the message.

        Returns:
            True if the inbox had the message, otherwise False.
        """
        return self._context.transact(inbox.drop, self.key, id)

    def redact(self, id: str, *, reason: str | None = None) -> Message:
        """Remove the content of a message that waits in the inbox, as `edits.redact` does in the log.

        Args:
            id: The id of the message, which stays in the inbox.
            reason: A reason to store in its `extra`. Default: None.

        Returns:
            The redacted message.

        Raises:
            MessageNotFound: The inbox has no message with this id.
        """
        return self._context.transact(inbox.redact, self.key, id, reason)
