"""Messages that wait for a turn: `Conversation.inbox`."""

from lango_store._groups.base import SessionPart
from lango_store._operations import inbox
from lango_store._operations.appends import Batch
from lango_store._values.model import Message


class Inbox(SessionPart):
    """The inbox of a session: `Conversation.inbox`.

    A message in the inbox is not in the log and not in the window until a turn calls `RunningTurn.take_inbox`, which
    moves it to the log.

    Attributes:
        key: The session's key.
    """

    __slots__ = ()

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
