"""Stored turns and turns in progress: `Conversation.turns` and `Store.turns`."""

from lango_store._groups.base import SessionPart, StorePart
from lango_store._operations import leases, turns
from lango_store._values.model import OpenTurn, Turn


class Turns(SessionPart):
    """The turns of a session: `Conversation.turns`. `save_turn` and `turn` of the conversation store new turns.

    Attributes:
        key: The session's key.
    """

    __slots__ = ()

    def find(self, turn_no_or_id: int | str) -> Turn | None:
        """Return a turn with its messages, without those that were deleted.

        Args:
            turn_no_or_id: The `turn_no` of the turn (an int), or the `id` that was passed to `save_turn` or `turn`
                (text). The messages of a compaction are the summary.

        Returns:
            The turn, or None if the session has no such turn.
        """
        return self._read_part(turns.find, turn_no_or_id)

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

    def list(self) -> list[Turn]:
        """List the turns and compactions, oldest first, without their messages."""
        return self._read_part(turns.read)


class StoreTurns(StorePart):
    """The turns of all sessions: `Store.turns`."""

    __slots__ = ()

    def in_progress(self) -> list[OpenTurn]:
        """List the turns that have begun and not ended, of all live sessions.

        At most 1,000 are listed, in the order in which their leases end.

        `held` of a turn is False if its lease has ended, because its process died, was paused, or wrote nothing for too
        long. `Conversation.turns.release` releases a lease.
        """
        return self._context.on_primary().read(leases.read)
