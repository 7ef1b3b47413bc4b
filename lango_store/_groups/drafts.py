"""Drafts of streamed answers: `Conversation.drafts`."""

from lango_store._groups.base import SessionPart
from lango_store._operations import drafts
from lango_store._values.model import Draft, Message


class Drafts(SessionPart):
    """The drafts of a session: `Conversation.drafts`.

    A draft is text that a turn has streamed with `RunningTurn.write` and not appended. Saving a turn deletes its
    drafts.

    Attributes:
        key: The session's key.
    """

    __slots__ = ()

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
